"""Frames to calibrate a quantised export on: recorded, from the demo's simulated robot, or random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from edgeflow.artifacts.manifest import StageName
from edgeflow.contract import Observation
from edgeflow.engine.flow.frames import FlowFrame
from edgeflow.engine.policy import LoadOptions, Placement, Policy, PreparedFrame
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.export.graphs.flow import FlowExport
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.graphs.tokens import TokenExport
from edgeflow.lab.progress import Report
from edgeflow.lab.quantize.policies.frames import RecordedFrame, read_frames
from edgeflow.lab.quantize.policies.served import prepared_frames, settings_of
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import ConfigError, InvalidArgument

FRAMES, RECORDED = 32, 128
EMBEDDED = (EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY)
RANDOM = "random frames"
IDS = 32
"""Random texts use token ids below this number; every vocabulary has as many."""


def calibration_frames(
    folder: Path, program: ModelProgram, recorded: Path | None, report: Report
) -> tuple[list[Any], str]:
    """FRAMES prepared frames, and a name for their source.

    recorded: a file of frames, of which the held-out ones are skipped. Without a file, the embedded policies use
    frames of the demo and all others random frames: good enough to try graphs, not to drive a robot. ConfigError for
    frames that do not fit the policy.
    """
    if recorded is not None:
        shown = [each.observation for each in read_frames(recorded) if not each.held_out]
        return prepared(loaded(folder), shown, FRAMES), str(recorded)
    if folder in EMBEDDED:
        frames = demo_frames(folder, report, held_out=0)
        return prepared(loaded(folder), [each.observation for each in frames], FRAMES), "the demo's closed loop"
    return random_frames(program, FRAMES), RANDOM


def demo_frames(folder: Path, report: Report, *, held_out: int) -> list[RecordedFrame]:
    """RECORDED frames of the demo's closed loop, and `held_out` held-out ones."""
    import torch._dynamo  # noqa: F401 - tracing needs it; loaded behind Mesa, its LLVM would end the process

    from edgeflow.lab.quantize.policies.closed_loop import record_frames

    return record_frames(folder, 0, report, shown=RECORDED, held_out=held_out)


def loaded(folder: Path) -> Any:
    """The policy of a checkpoint, to prepare observations with."""
    placement = Placement(dtype=torch.float32, device=torch.device("cpu"), table=built_in_table())
    return family_of(folder).load(folder, settings_of(folder), LoadOptions()).load(placement)


def prepared(policy: Policy, observations: Sequence[Observation], most: int) -> list[Any]:
    """At most `most` observations, evenly spaced over all, prepared by a policy; ConfigError for those that do not fit
    it.
    """
    try:
        return prepared_frames(policy, observations, spread(range(len(observations)), most))
    except (InvalidArgument, ValueError) as error:
        raise ConfigError(f"calibration: the recorded frames do not fit the policy: {error}") from error


def random_frames(program: ModelProgram, count: int, seed: int = 0) -> list[Any]:
    """Frames of random pixels in [-1, 1], a text of random tokens as long as the largest bucket, and a normally
    distributed state; for a chat model, texts of two chunks.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_random(program, generator) for _ in range(count)]


def _random(program: ModelProgram, generator: torch.Generator) -> Any:
    export = program.source
    towers = [stage for stage in program.stages if stage.stage is StageName.TOWERS][-1]
    example = towers.inputs.get("pixel_values", torch.zeros(1, 0))
    pixels = 2 * torch.rand(example.shape, generator=generator) - 1
    chunks = 2 if isinstance(export, TokenExport) and export.chunks else 1
    ids: list[int] = torch.randint(IDS, (chunks * program.text,), generator=generator).tolist()
    if isinstance(export, FlowExport):
        sizes = export.sizes
        return FlowFrame(
            pixel_values=pixels,
            prompt_ids=tuple(ids),
            state=torch.randn(export.state, generator=generator),
            noise=torch.randn(sizes.candidates, sizes.horizon, sizes.dims, generator=generator),
        )
    return PreparedFrame(pixels[0], tuple(ids[: program.kv.positions // 2]))


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced over all."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]
