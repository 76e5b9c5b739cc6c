"""Recorded frames on the engine that serves; every step is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from edgeflow.contract import Pace, StageProgram
from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.exported.flow import FlowGraphs
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RTCSettings
from edgeflow.engine.flow.packed import FlowNetwork
from edgeflow.engine.flow.policy import FlowPolicy, FlowStages
from edgeflow.engine.flow.program import Steps
from edgeflow.lab.verify.offline import paces_by_mode
from edgeflow.policies.flow.config import FlowConfig
from edgeflow.scheduler.plan import FrameRef, Segment
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.types import Mode

FLOW_MODES = (Mode.SERIAL, Mode.PIPELINED)
SERIAL = Pace(1)
CHUNK = "out.action_chunk"
ROUNDS = 2
"""How often frames are run one after another, so that the first one shares passes with others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameRun:
    """A frame's answer, float32."""

    x: Tensor
    velocity: Tensor
    used: Tensor
    """`x`, `velocity`, `used` [N, H, A]: before each step, the network's output, and after guidance."""
    chunk: Tensor
    """[H, A]: the chunk after the last step."""


class KeptSteps(defaultdict[FrameRef, list[Steps]]):
    """Copies of the steps of each frame of a run, one after another; the `watch` of an engine."""

    def __init__(self) -> None:
        super().__init__(list)

    def __call__(self, segments: Sequence[Segment[FrameRef]], steps: Steps) -> None:
        copied = {each.name: getattr(steps, each.name).clone() for each in fields(steps)}  # a replay overwrites them
        for at, segment in enumerate(segments):
            self[segment.sequence].append(Steps(**{name: each[at] for name, each in copied.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAlone:
    """The part of a policy that an engine needs to run prepared frames."""

    sizes: FlowSizes
    network: FlowNetwork | FlowGraphs
    fixed_rows: int
    frame_shape: tuple[tuple[int, int, int, int], int]
    """As in FlowPolicy."""
    rtc: RTCSettings | None = None
    unnorm_keys: tuple[str, ...] = ("",)

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def stages(self, slots: int, capacity: int) -> FlowStages:
        """The networks over `slots` slots."""
        return self.network.stages(self.sizes, slots, capacity)

    def program(self, unnorm_key: str | None = None) -> StageProgram:  # noqa: ARG002
        """The program: the prefix, then the steps."""
        return self.sizes.program


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs a policy on recorded inputs."""

    network: FlowNetwork | FlowGraphs
    sizes: FlowSizes
    """The sizes of answers, with the checkpoint's number of steps. Engines are created once for each number
    of steps.
    """
    _runs: dict[tuple[int, int], FlowEngine] = field(default_factory=dict, init=False)

    def paces(self, modes: Sequence[Mode], steps: int) -> dict[str, Pace]:
        """The paces of modes by name, for answers of `steps` steps."""
        return paces_by_mode(modes, replace(self.sizes, steps=steps).program)

    def runs(self, frames: Sequence[FlowFrame], steps: int, pace: Pace = SERIAL) -> list[FrameRun]:
        """Each frame's answer; in a pipeline, after others."""
        sizes = replace(self.sizes, steps=steps, candidates=1)
        engine = self._engine(sizes, frames)
        engine.contract.watch = kept = KeptSteps()
        run = OfflineRun(engine, Scheduler(limits_for(sizes.program.passes)), [pace])
        stream = list(frames) * (ROUNDS if pace.depth > 1 else 1)
        decoded = run.decode([stream])[0][-len(frames) :]
        return [_run(each.sampled.values, kept[each.sampled.frame]) for each in decoded]

    def _engine(self, sizes: FlowSizes, frames: Sequence[FlowFrame]) -> FlowEngine:
        rows = max(self.network.prefix_rows(len(each.pixel_values), len(each.prompt_ids)) for each in frames)
        key = sizes.steps, rows
        if key not in self._runs:
            alone = NetworkAlone(sizes=sizes, network=self.network, fixed_rows=rows, frame_shape=frame_shape(frames[0]))
            self._runs[key] = FlowEngine(cast("FlowPolicy", alone), 1, 0)
        return self._runs[key]


def frame_shape(frame: FlowFrame) -> tuple[tuple[int, int, int, int], int]:
    """As in FlowPolicy, of frames like this one."""
    cameras, channels, height, width = frame.pixel_values.shape
    return (cameras, channels, height, width), len(frame.state)


def answers_of(config: FlowConfig, runs: Sequence[FrameRun]) -> dict[str, Tensor]:
    """The engine's answers to the frames of a case, by stored name."""
    chunks = torch.stack([run.chunk for run in runs])
    return {
        "mid.x_t": torch.stack([run.x for run in runs], dim=1),
        "mid.v_t": torch.stack([run.used for run in runs], dim=1),
        "out.x_0": chunks,
        CHUNK: chunks[..., : config.action],
    }


def _run(values: Any, steps: Sequence[Steps]) -> FrameRun:
    of: Callable[[str], Tensor] = lambda name: torch.stack([getattr(step, name)[0].cpu() for step in steps])  # noqa: E731
    return FrameRun(x=of("x"), velocity=of("velocity"), used=of("used"), chunk=torch.from_numpy(values[0]).float())
