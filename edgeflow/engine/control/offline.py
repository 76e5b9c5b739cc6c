"""Runs of the real scheduler and engine without sockets: verification, tests, benchmarks, warm-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeflow.contract import Pace, Speculation, StageProgram
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.records import Answer
from edgeflow.engine.executor import Ticket
from edgeflow.scheduler.pace import pace_of
from edgeflow.scheduler.plan import Frame, FrameRef, Leaving, Outcome
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """A frame's answer, and its logits [K, V] if the engine keeps them."""

    sampled: Answer
    logits: list[Tensor]


def limits_for(
    stages: int, *, sessions: int = 1, shift: Shift = Shift.ROTATE, row_budget: int = 1 << 30
) -> SchedulerLimits:
    """Limits of a scheduler that drains at once and, by default, packs whatever is ready."""
    return SchedulerLimits(stages, sessions, row_budget, drain_after_ns=0, shift=shift)


class OfflineRun:
    """One session per mode, all fed in lockstep: before each pass every session is offered its next frame.

    modes: modes or paces. depth, speculation: settings of the modes that need them.
    """

    def __init__(
        self,
        engine: PassEngine,
        scheduler: Scheduler,
        modes: Sequence[Mode | Pace],
        depth: int = 0,
        speculation: Speculation | None = None,
    ) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.answers = engine.answers()
        self._program = program_of(engine)
        self._logits: dict[FrameRef, list[Tensor]] = {}
        self._observations: dict[FrameRef, Any] = {}
        self._waiting: set[int] = set()
        for session, mode in enumerate(modes):
            pace = mode if isinstance(mode, Pace) else pace_of(mode, self._program.passes, depth, speculation)
            scheduler.open(session, 1, pace, self._program)

    def decode(self, streams: Sequence[Iterable[Any]]) -> list[list[DecodedFrame]]:
        """Decode every frame of every stream, one stream per session; results in the order of the frames."""
        sources = [iter(stream) for stream in streams]
        results: list[list[DecodedFrame]] = [[] for _ in streams]
        counts = [0] * len(streams)
        while True:
            for session, source in enumerate(sources):
                if session not in self._waiting and (frame := next(source, None)) is not None:
                    counts[session] += 1
                    self.offer(session, counts[session], frame)
            launched = self.step()
            if launched is None:
                return results
            for decoded in self.collect(launched):
                results[decoded.sampled.frame.session].append(decoded)

    def collect(self, launched: Ticket[FrameRef]) -> list[DecodedFrame]:
        """Wait for a pass and commit its outcomes; returns the frames that it finished."""
        outcomes = self.engine.collect(launched)
        self.answers.add(outcomes)
        self._keep_logits(launched, outcomes)
        left = self.scheduler.commit(launched.planned.number, outcomes)
        for departure in left:
            if departure.reason is not Leaving.DONE:
                self.answers.drop(departure.frame)
                self._logits.pop(departure.frame, None)
        done = [departure.frame for departure in left if departure.reason is Leaving.DONE]
        return [DecodedFrame(self.answers.take(frame), self._logits.pop(frame, [])) for frame in done]

    def _keep_logits(self, launched: Ticket[FrameRef], outcomes: Sequence[Outcome[FrameRef]]) -> None:
        """Keep the logits of verified tokens, in the order of the tokens."""
        if launched.logits is None:
            return
        of_segments = torch.split(launched.logits, list(launched.shape.samples))  # padded ones last
        for outcome, rows in zip(outcomes, of_segments, strict=False):
            if outcome.sequence not in self.answers:
                continue  # it has left
            kept = self._logits.setdefault(outcome.sequence, [])
            kept += rows[: min(len(outcome.tokens), self._program.passes - len(kept))]

    def step(self) -> Ticket[FrameRef] | None:
        """Launch one pass, to be collected; None when nothing is left to run."""
        planned = self.scheduler.plan(0)
        if planned is None:
            return None
        launched = self.engine.launch(planned, self._observations)
        for segment in planned.prefills:
            del self._observations[segment.sequence]
            self.answers.begin(segment.sequence, self._program)
            self._waiting.discard(segment.sequence.session)
        return launched

    def waiting(self, session: int) -> bool:
        """True when a frame of this session was offered and is not started yet."""
        return session in self._waiting

    def offer(self, session: int, seq: int, frame: Any) -> None:
        """Queue a frame; it must not replace one that still waits."""
        ref = FrameRef(session, 1, seq)
        departures = self.scheduler.offer(Frame(ref, self.engine.rows(frame)))
        if departures:
            raise ValueError(f"frame {departures[0].frame} was superseded in an offline run")
        self._observations[ref] = frame
        self._waiting.add(session)


def program_of(engine: PassEngine) -> StageProgram:
    """The longest program of an engine's answers."""
    policy = engine.policy
    return max((policy.program(key) for key in policy.unnorm_keys), key=lambda program: program.passes)


def decode_serially(engine: PassEngine, frames: Iterable[Any]) -> list[DecodedFrame]:
    """Answer each frame by itself, pass after pass: the reference of every other mode."""
    scheduler = Scheduler(limits_for(program_of(engine).passes))
    return OfflineRun(engine, scheduler, [Mode.SERIAL]).decode([frames])[0]
