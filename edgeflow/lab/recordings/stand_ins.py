"""Frames in place of lost ones, with prompts of the recorded lengths, so that passes keep their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgeflow.contract import CHANNELS
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.history import first_prompts, observation_of, state_of
from edgeflow.engine.control.samples import SIDE
from edgeflow.engine.policy import INSTRUCTION
from edgeflow.ipc.messages import SubmitFrame
from edgeflow.pass_records import HashedFrame
from edgeflow.scheduler.plan import FrameRef, Pass, Segment

MOST_BYTES = 1 << 30
WORDS = ("go", "to", "a", "1")


def blank(sizes: list[int]) -> tuple[bytes, ...]:
    """Black images of these heights and widths, flattened; ValueError where no service takes such."""
    lengths = [height * width * CHANNELS for height, width in zip(sizes[::2], sizes[1::2], strict=True)]
    if sum(lengths) > MOST_BYTES:
        raise ValueError(f"images of {sum(lengths)} bytes")
    return tuple(map(bytes, lengths))


class StandIns:
    """Makes frames for an engine's policy."""

    def __init__(self, engine: PassEngine) -> None:
        self._engine = engine
        self._instructions: dict[tuple[int, tuple[float, ...]], str] = {}

    def frame(self, ref: FrameRef, rows: int, like: HashedFrame | None) -> SubmitFrame | None:
        """A frame whose prompt has so many rows; None if none has. like: another frame of its session."""
        inputs = self._engine.policy.inputs
        sizes = [side for need in inputs.cameras for side in (need.height or SIDE, need.width or SIDE)]
        sizes = sizes if like is None else like.sizes
        message = SubmitFrame(
            session=ref.session,
            epoch=ref.epoch,
            seq=ref.seq,
            sizes=sizes,
            instruction=INSTRUCTION if like is None else like.instruction,
            payload=blank(sizes),
            state=[0.0] * inputs.numbers if like is None else like.state,
            stamp_ns=1 if like is None else like.stamp_ns,
        )
        for instruction in self._candidates(message, rows):
            if self._rows(message, instruction) == rows:
                self._instructions[rows, tuple(message.state)] = instruction
                return replace(message, instruction=instruction)
        return None

    def prefill(self, segment: Segment[FrameRef], like: HashedFrame | None) -> None:
        """Fill the slot of a segment whose frame began in a lost record, in a separate pass."""
        program = self._engine.policy.program()
        message = self._shortest(segment, like)
        observation = observation_of(message, self._engine.policy.inputs)
        prompt_segment = Segment(
            sequence=segment.sequence,
            slot=segment.slot,
            start=0,
            length=self._rows(message, message.instruction),
            stage=0,
            generation=segment.generation,
            group=program.stages[0].group,
        )
        with first_prompts(self._engine.policy, [observation]) as (prompt,):
            prompts: dict[Any, Any] = {segment.sequence: prompt}
            self._engine.collect(self._engine.launch(Pass(-1, (prompt_segment,)), prompts))

    def _shortest(self, segment: Segment[FrameRef], like: HashedFrame | None) -> SubmitFrame:
        """A frame whose prompt is as long as the rows before the segment, or else one of a short instruction."""
        found = self.frame(segment.sequence, segment.start, like) or self.frame(segment.sequence, segment.start, None)
        if found is not None:
            return found
        rows = self._engine.policy.fixed_rows + self._engine.policy.text_rows(INSTRUCTION)
        short = self.frame(segment.sequence, rows, None)
        if short is None:
            raise RuntimeError(f"the policy has no prompt of {rows} rows, which {INSTRUCTION!r} has")
        return short

    def _candidates(self, message: SubmitFrame, rows: int) -> Iterator[str]:
        known = self._instructions.get((rows, tuple(message.state)))
        if known is not None:
            yield known
        yield message.instruction
        yield ""
        for word in WORDS:  # the longest with at most so many rows, by bisection: more words never take fewer tokens
            low, high = 0, rows + 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._rows(message, _words(word, middle)) <= rows else (low, middle - 1)
            yield _words(word, low)

    def _rows(self, message: SubmitFrame, instruction: str) -> int:
        policy = self._engine.policy
        return policy.fixed_rows + policy.text_rows(instruction, state_of(message, policy.inputs))


def _words(word: str, count: int) -> str:
    return " ".join([word] * count)
