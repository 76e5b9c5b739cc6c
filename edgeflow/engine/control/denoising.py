"""The engine of flow policies: the steps of several frames and robots share a pass with the newest prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.control.engine import Answer, Chunked, EngineOptions, PassEngine
from edgeflow.engine.executor import Ticket
from edgeflow.engine.flow.frames import FlowFrame, Previous, guidance_of
from edgeflow.engine.flow.policy import FlowPolicy, PrefixSegment, StepSegment
from edgeflow.engine.flow.program import FlowProgram, FlowState, Steps, lines_of
from edgeflow.engine.policy import Policy
from edgeflow.kernels.kv.layout import on_device, uploaded
from edgeflow.scheduler.plan import FrameRef, Move, Pass, Segment
from edgeflow_client.errors import InvalidArgument

SAME = 1e-6  # difference by which a normalised value counts as changed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStep:
    """A step of a frame [M, H, A] float32, on the device. x: before it; velocity: of the network; used: as guided."""

    x: Tensor
    velocity: Tensor
    used: Tensor


@dataclass(frozen=True, slots=True)
class FlowOutcome(Chunked):
    """An outcome of a frame. kept: its step, where steps are kept."""

    kept: KeptStep | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTicket(Ticket[FrameRef]):
    """A pass on its way. results [f, M, H, A]: of the frames that it finishes. steps: where they are kept."""

    steps: Steps | None = None


class FlowEngine(PassEngine):
    """Runs the passes of a flow policy. They are not replayed.

    slots: whole rings of N + 1. capacity: positions that a frame may use of its slot, prefix and step. stages: run its
    networks. keep_steps: outcomes have what their step was.
    """

    def __init__(self, policy: FlowPolicy, slots: int, capacity: int, *, keep_steps: bool = False) -> None:
        sizes = policy.sizes
        self.policy: FlowPolicy = policy
        self.keep_steps = keep_steps
        self.sessions = slots // sizes.program.passes
        self.capacity = capacity
        self.text_rows = capacity - policy.fixed_rows - sizes.step_rows
        self.stages = policy.stages(slots, capacity)
        self.launch_ahead = self.stages.launch_ahead
        self.kv_bytes = self.stages.kv_bytes
        self._device = self.stages.device
        self.state = FlowState(slots, sizes, self._device)
        self._program = FlowProgram(sizes, self.state)
        self._prefixes = [0] * slots  # rows of the prefix in each slot, and whether its frame continues a chunk
        self._guided = [False] * slots

    def rows(self, prompt: FlowFrame) -> int:
        """Rows of a frame's prefix."""
        return self.stages.rows(prompt)

    @torch.inference_mode()
    def launch(self, planned: Pass[FrameRef], prompts: Mapping[FrameRef, FlowFrame]) -> FlowTicket:
        """Start a pass: place its rows, run it, fetch the chunks of the frames that it finishes."""
        begin, steps = planned.prefills, planned.decodes
        frames = [prompts[segment.sequence] for segment in begin]
        prefixes = [self._begin(segment, frame) for segment, frame in zip(begin, frames, strict=True)]
        stepping = [StepSegment(slot=each.slot, prefix=self._prefixes[each.slot], step=each.stage) for each in steps]
        guided = any(self._guided[each.slot] for each in steps)
        places = self.stages.place(prefixes, stepping, [frame.prompt_ids for frame in frames])
        lines = uploaded(lines_of(frames, self.policy.sizes), self._device) if frames else None
        pixels = [
            uploaded(frame.pixel_values, self._device) if frame.pixel_values.is_cpu else frame.pixel_values
            for frame in frames
        ]
        started = self.stamp()
        done = self._program.run(places, lines, pixels, guided=guided)
        self._move(planned.moves)
        return FlowTicket(
            planned=planned,
            samples=(1,) * len(planned.segments),
            results=self._finished(steps, done),
            logits=None,
            started=started,
            done=self.stamp(),
            steps=done if self.keep_steps else None,
        )

    def collect(self, ticket: Ticket[FrameRef]) -> Sequence[FlowOutcome]:
        """Wait for a pass; what each of its segments gave.

        A latent that is not finite at some step is not at any later one, so the chunk shows it.
        """
        if ticket.done is not None:
            ticket.done.wait()
        chunks = iter(() if ticket.results is None else ticket.results.numpy())
        kept = ticket.steps if isinstance(ticket, FlowTicket) else None
        first = len(ticket.planned.prefills)
        return [
            self._outcome(segment, chunks, _kept(kept, index - first) if kept and index >= first else None)
            for index, segment in enumerate(ticket.planned.segments)
        ]

    def answer(self, frame: FrameRef, passes: int, outcomes: list[Any]) -> Answer:
        kept = tuple(outcome.kept for outcome in outcomes if outcome.kept is not None)
        return replace(super().answer(frame, passes, outcomes), steps=kept)

    def played(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Normalised values of a chunk [H, A], those replaced that were changed before its actions [horizon, D] were
        sent, by bounds or by limits on the motion."""
        sent, played = self.policy.normalised(actions), values.copy()
        rows, dims = sent.shape
        given = played[:rows, :dims]
        changed = np.isfinite(sent) & ~np.isclose(sent, given, rtol=SAME, atol=SAME)
        given[changed] = sent[changed]
        return played

    def continued(self, prompt: FlowFrame, previous: Previous) -> FlowFrame:
        """The frame, whose answer continues the chunk being played; as it is where the policy cannot.

        InvalidArgument for a chunk or a delay that it cannot continue.
        """
        settings = self.policy.rtc
        if settings is None:
            return prompt
        horizon = settings.execution_horizon
        if not settings.trained_max_delay and previous.delay > horizon:
            raise InvalidArgument(
                f"is {previous.delay} rows; only the first {horizon} of a chunk are drawn to the one being played",
                field="previous.delay",
            )
        return replace(prompt, guidance=guidance_of(previous, settings, self.policy.sizes))

    def _begin(self, segment: Segment[FrameRef], frame: FlowFrame) -> PrefixSegment:
        """Note the frame of a slot. ValueError where its prefix has more rows than planned."""
        rows = self.rows(frame)
        if rows > segment.length:
            raise ValueError(f"{segment.sequence} has {rows} rows of a prefix; {segment.length} were planned")
        self._prefixes[segment.slot] = rows
        self._guided[segment.slot] = frame.guidance is not None
        return PrefixSegment(slot=segment.slot, rows=rows)

    def _move(self, moves: Sequence[Move]) -> None:
        if not moves:
            return
        for move in moves:
            self.stages.copy_prefix(move.source, move.target, min(move.length, self._prefixes[move.source]))
            self._prefixes[move.target] = self._prefixes[move.source]
            self._guided[move.target] = self._guided[move.source]
        source, target = on_device([[move.source, move.target] for move in moves], self._device).unbind(1)
        self.state.move(source, target)

    def _finished(self, steps: Sequence[Segment[FrameRef]], done: Steps | None) -> Tensor | None:
        """The chunks of the frames behind their last step, on their way to the host [f, M, H, A] float64."""
        last = [index for index, each in enumerate(steps) if each.stage == self.policy.sizes.steps]
        if done is None or not last:
            return None
        chunks = done.after if len(last) == len(steps) else done.after[on_device(last, self._device)]
        return chunks.to("cpu", torch.float64, non_blocking=True, copy=True)

    def _outcome(
        self, segment: Segment[FrameRef], chunks: Iterator[NDArray[np.float64]], kept: KeptStep | None
    ) -> FlowOutcome:
        if segment.stage < self.policy.sizes.steps:
            return FlowOutcome(segment.sequence, (), kept=kept)
        values = next(chunks)
        return FlowOutcome(segment.sequence, (), bool(np.isfinite(values).all()), values=values, kept=kept)


def flow_engine(policy: Policy, options: EngineOptions) -> FlowEngine:
    """The engine of a flow policy, with a ring of N + 1 slots for each session."""
    served = cast("FlowPolicy", policy)
    sizes = served.sizes
    capacity = served.fixed_rows + options.text_rows + sizes.step_rows
    return FlowEngine(served, options.sessions * sizes.program.passes, capacity)


def _kept(steps: Steps, index: int) -> KeptStep:
    return KeptStep(x=steps.x[index], velocity=steps.velocity[index], used=steps.used[index])
