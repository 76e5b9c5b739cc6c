"""Checks of flow-matching checkpoints against outputs recorded from the original implementation, in float32.

Every stored value is compared: prepared images; masks and positions of prefix and step; embeddings, keys and values
and hidden states of the valid rows of the prefix; rows of the steps; and from the engine that serves, frame by frame
and with frames in each other's passes, latents and velocities of every step and the chunk. Cases of real-time chunking
likewise (rtc.py). A stored value that is not compared is infinitely off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edgeflow.artifacts.sessions import Runtime
from edgeflow.engine.placement import operator_table
from edgeflow.engine.policy import Placement
from edgeflow.lab.verify.bundle import TENSORS_FILE
from edgeflow.lab.verify.comparison import Results, Verification, artifact_of, judged
from edgeflow.lab.verify.policies.flow.inner_values import values_inside
from edgeflow.lab.verify.policies.flow.recorded import (
    RecordedBatch,
    RecordedPolicy,
    Tolerances,
    Values,
    read_recordings,
    unknown,
)
from edgeflow.lab.verify.policies.flow.recorded_runs import CHUNK, FLOW_MODES, SERIAL, Runner, answers_of
from edgeflow.lab.verify.policies.flow.rtc import check_continuations
from edgeflow.policies.flow.exported import OpenedFlow
from edgeflow.policies.flow.policy import FlowArchitecture, Network
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode

WITHOUT_MODE = "network"
GIVEN = "in."


def verify_architecture(
    directory: Path,
    architecture: FlowArchitecture[Network],
    asked: Verification,
    *,
    tolerances: Tolerances,
    more: Callable[[Network], Values],
) -> Results:
    """Every comparison of a bundle; ConfigError for other weights.

    more: computes the values that only the family has, from its networks.
    """
    if asked.weights != "float":
        raise ConfigError(f"weights: {asked.weights} is not measured for {architecture.family}")
    modes = tuple(asked.modes) or FLOW_MODES
    table = operator_table(asked.operators, "float", asked.device, torch.float32)
    if asked.artifact is not None:
        return verify_exported(directory, asked.artifact, architecture, asked=asked, modes=modes, tolerances=tolerances)
    network = architecture.read_network(directory, Placement(dtype=torch.float32, device=asked.device, table=table))
    subject = RecordedPolicy(
        directory=directory,
        config=architecture.flow,
        sizes=architecture.sizes,
        network=network,
        margin=architecture.margin,
        tolerances=tolerances,
        more=more(network),
    )
    return _verify(subject, asked, modes)


def _verify(subject: RecordedPolicy, asked: Verification, modes: tuple[Mode, ...]) -> Results:
    recordings = read_recordings(subject.directory, subject.config, subject.margin)
    runner, results = Runner(subject.network, subject.sizes), []
    with torch.inference_mode():
        for index, recording in enumerate(recordings):
            asked.progress(recording.case.name, index, len(recordings) + 1)
            results += _check(subject, recording, runner, modes)
        asked.progress("real-time chunking", len(recordings), len(recordings) + 1)
        results += check_continuations(subject, recordings, runner, modes)
    return results


def _check(subject: RecordedPolicy, recording: RecordedBatch, runner: Runner, modes: tuple[Mode, ...]) -> Results:
    case, results = recording.case, []
    if CHUNK not in case.tensors:
        raise CheckpointError(f"{TENSORS_FILE} lacks {case.name}.{CHUNK}: name the directory of a bundle")
    serial = runner.runs(recording.frames, recording.steps)
    sizes = replace(subject.sizes, steps=recording.steps)
    found = values_inside(subject.network, sizes, recording, torch.stack([run.x for run in serial], dim=1))
    found |= subject.more(recording, sizes)
    results += [(WITHOUT_MODE, each) for each in subject.tolerances.compared(case, found)]
    names = set(found)
    for name, pace in runner.paces(modes, recording.steps).items():
        runs = serial if pace == SERIAL else runner.runs(recording.frames, recording.steps, pace)
        answers = answers_of(subject.config, runs)
        names |= set(answers)
        results += [(name, each) for each in subject.tolerances.compared(case, answers)]
    given = {name for name in case.tensors if name.startswith(GIVEN)}
    return results + [(WITHOUT_MODE, each) for each in unknown(case.name, case.tensors.keys() - names - given)]


def verify_exported(
    directory: Path,
    artifact: Path,
    architecture: FlowArchitecture[Any],
    *,
    asked: Verification,
    modes: Sequence[Mode],
    tolerances: Tolerances,
) -> Results:
    """The graphs' answers to all recordings with the exported number of steps; ConfigError if there are none, or if a
    prompt is longer than every bucket.
    """
    artifact_of(directory, artifact)
    opened = OpenedFlow(artifact, architecture)
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
    graphs = opened.load(Runtime(threads=torch.get_num_threads()))
    runner, results = Runner(graphs, opened.sizes), []
    with torch.inference_mode():
        for index, recording in enumerate(fitting):
            asked.progress(recording.case.name, index, len(fitting))
            for name, pace in runner.paces(modes, recording.steps).items():
                runs = runner.runs(recording.frames, recording.steps, pace)
                answers = answers_of(architecture.flow, runs)
                results += [(name, each) for each in tolerances.compared(recording.case, answers)]
    return judged(opened.manifest, results)
