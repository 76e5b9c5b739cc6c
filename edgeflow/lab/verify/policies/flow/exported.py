"""Checks of an exported flow policy against a bundle's recordings: latents, velocities and chunks of every frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.artifacts.sessions import Runtime
from edgeflow.engine.exported.flow import StaticNetwork
from edgeflow.lab.verify.policies.flow.recorded import Recording, read_recordings
from edgeflow.lab.verify.policies.flow.runs import Runner, answers_of
from edgeflow.lab.verify.policies.flow.subject import Results, Tolerances
from edgeflow.lab.verify.policies.request import Verification
from edgeflow.lab.verify.recorded.comparison import CheckResult
from edgeflow.lab.verify.recorded.exported import artifact_of, judged
from edgeflow.policies.flow.exported import load_graphs, open_flow
from edgeflow.policies.flow.published import FlowArchitecture
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode


def verify_exported(
    directory: Path,
    artifact: Path,
    architecture: FlowArchitecture[Any],
    *,
    asked: Verification,
    modes: Sequence[Mode],
    tolerances: Tolerances,
) -> Results:
    """The answers of the graphs to all recordings with the exported number of steps; ConfigError where none has it,
    or where a prompt is longer than every bucket."""
    artifact_of(directory, artifact)
    opened = open_flow(artifact, architecture)
    recordings = read_recordings(directory, architecture.flow, architecture.margin)
    fitting = [each for each in recordings if each.steps == opened.steps]
    if not fitting:
        raise ConfigError(
            f"artifact: {artifact} was exported for {opened.steps} steps; the recordings have "
            f"{', '.join(str(each.steps) for each in recordings)}"
        )
    longest = max(len(frame.prompt_ids) for each in fitting for frame in each.frames)
    if longest > opened.manifest.text:
        raise ConfigError(
            f"artifact: {artifact} was exported for prompts of {opened.manifest.text} tokens; the recordings have up "
            f"to {longest}: export it with --text {longest}"
        )
    graphs = load_graphs(artifact, opened, Runtime(threads=torch.get_num_threads()))
    runner, results = Runner(StaticNetwork(graphs), opened.sizes), []
    with torch.inference_mode():
        for index, recording in enumerate(fitting):
            asked.progress(recording.case.name, index, len(fitting))
            for name, pace in runner.paces(modes, recording.steps).items():
                runs = runner.runs(recording.frames, recording.steps, pace)
                found = _compared(recording, answers_of(architecture.flow, runs), tolerances)
                results += [(name, each) for each in found]
    return judged(opened.manifest, results)


def _compared(recording: Recording, answers: Mapping[str, Tensor], tolerances: Tolerances) -> list[CheckResult]:
    case = recording.case
    return [
        tolerances.compare(case.name, name, found, case.tensors[name])
        for name, found in answers.items()
        if name in case.tensors
    ]
