"""Passes of a flow policy: the contract of chunks that are denoised (engine/executor.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeflow.engine.buffers import BufferFields
from edgeflow.engine.executor import Chunked, PassContract
from edgeflow.engine.flow.frames import FlowFrame
from edgeflow.engine.flow.policy import FlowPolicy, PrefixInputs
from edgeflow.engine.flow.program import FlowProgram, FlowState, Steps, state_rows_of
from edgeflow.engine.flow.rows import FlowLayouts, FlowRows, Integers, PrefixSegment, RowCounts, StepSegment
from edgeflow.engine.flow.shapes import FlowClasses, FlowPassShape
from edgeflow.kernels.kv.layout import on_device
from edgeflow.scheduler.plan import FrameRef, Pass, Segment

Segments = tuple[Sequence[PrefixSegment], Sequence[StepSegment]]


@dataclass(frozen=True, slots=True)
class _SlotFrame:
    """The frame of a slot."""

    prefix: PrefixSegment
    guided: bool
    """True where it continues a chunk."""


class FlowPasses(PassContract):
    """Prefixes and steps over KV slots. Flow time is an input of each row, so frames at different steps share a pass.

    sessions: each has a ring of N + 1 slots. text_rows: the most rows of an instruction. graphs: passes are replayed;
    then one more slot is scratch. row_budget: as in EngineOptions. watch: called with the segments that take a step in
    a pass, and with their steps; of a whole pass, with none and the last step.
    """

    def __init__(
        self, policy: FlowPolicy, sessions: int, text_rows: int, *, graphs: bool = False, row_budget: int = 1 << 30
    ) -> None:
        sizes = policy.sizes
        slots, capacity = sessions * sizes.program.passes, policy.fixed_rows + text_rows + sizes.step_rows
        self.watch: Callable[[Sequence[Segment[FrameRef]], Steps], None] | None = None
        self.stages = policy.stages(slots + graphs, capacity)
        self.device, self.reads_places = self.stages.device, self.stages.reads_places
        self.state = FlowState(slots + graphs, sizes, self.device)
        self._sizes = sizes
        self._images, self._state_dims = policy.frame_shape
        self._scratch = slots
        self._continues = policy.rtc is not None
        self._layouts = FlowLayouts(sizes, self.stages.kinds, self.stages.capacity)
        self._program = FlowProgram(sizes, self.state, self.stages)
        self._slot_frames: dict[int, _SlotFrame] = {}
        cameras = self._images[0]
        self.classes = FlowClasses(
            self.stages.prefix_rows,
            sizes,
            cameras=cameras,
            tokens=capacity - sizes.step_rows - self.stages.prefix_rows(cameras, 0),
            sessions=sessions,
            capacity=self.stages.capacity,
            row_budget=row_budget,
        )

    def shapes(self) -> Sequence[FlowPassShape]:
        return self.classes.all(guided=self._continues)

    def shape(self, planned: Pass[Any], prompts: Mapping[Any, Any], *, waits: bool) -> FlowPassShape:  # noqa: ARG002
        frames: list[FlowFrame] = [prompts[segment.sequence] for segment in planned.prefills]
        for segment, frame in zip(planned.prefills, frames, strict=True):
            self._begin(segment, frame)
        stepping = planned.segments if planned.whole else planned.decodes
        return FlowPassShape(
            rows=self._layouts.counts(*self._segments(planned)),
            cameras=tuple(len(frame.pixel_values) for frame in frames),
            guided=any(self._slot_frames[segment.slot].guided for segment in stepping),
            whole=planned.whole,
        )

    def fits(self, shape: FlowPassShape, planned: Pass[Any]) -> Iterator[FlowPassShape]:  # noqa: ARG002
        found = self.classes.fit(shape)
        if found:
            yield found

    def stage(self, planned: Pass[Any], prompts: Mapping[Any, Any], shape: FlowPassShape) -> list[Tensor]:
        frames: list[FlowFrame] = [prompts[segment.sequence] for segment in planned.prefills]
        begin, steps = self._segments(planned)
        padded = [_padded(each, length) for each, length in zip(begin, shape.rows.prefixes, strict=False)]
        padded += self._idle(shape)[0][len(begin) :]
        stepping = [*steps, *self._idle(shape)[1][len(steps) :]]
        tensors = [torch.from_numpy(self._integers(padded, stepping, shape))]
        if shape.cameras:
            lines = state_rows_of(frames, self._sizes)
            missing = len(shape.cameras) - len(frames)
            tensors += [torch.cat([lines, lines.new_zeros(missing, lines.shape[1])]) if missing else lines]
            tensors += [frame.pixel_values for frame in frames]
            tensors += [torch.zeros(count, *self._images[1:]) for count in shape.cameras[len(frames) :]]
        return self._fields(shape).pieces(tensors)

    def program(self, buffer: Tensor, shape: FlowPassShape, planned: Pass[Any] | None) -> Callable[[], Steps | None]:
        integers, *floats = self._fields(shape).views(buffer)
        rows = self._rows(integers, shape, None if planned is None else self._segments(planned))
        inputs = None
        if floats:
            lines, *pixels = floats
            inputs = PrefixInputs(pixels=pixels, state=lines[:, self.state.before_state :])

        def run() -> Steps | None:
            if floats:
                self.state.enter(rows[0].begin, floats[0])
            if inputs is not None and shape.whole:
                prefix, step = rows
                return self._program.chunks(prefix, step, inputs, guided=shape.guided)
            return self._program.run(rows[0], inputs, guided=shape.guided)

        return run

    def harmless(self, shape: FlowPassShape) -> Tensor:
        """Inputs of zeros, whose frames all lie in the scratch slot."""
        fields = self._fields(shape)
        buffer = torch.zeros(fields.nbytes, dtype=torch.uint8, device=self.device)
        integers = torch.from_numpy(self._integers(*self._idle(shape), shape))
        fields.views(buffer)[0].copy_(integers)
        return buffer

    def after(self, planned: Pass[Any]) -> None:
        """Move frames to their next slots."""
        for move in planned.moves:
            held = self._slot_frames[move.source]
            self.stages.copy_prefix(move.source, move.target, min(move.length, held.prefix.rows))
            self._slot_frames[move.target] = held
        if planned.moves:
            source, target = on_device([[move.source, move.target] for move in planned.moves], self.device).unbind(1)
            self.state.move(source, target)

    def results(self, planned: Pass[Any], shape: FlowPassShape, ran: Any, outputs: Steps | None) -> Tensor | None:  # noqa: ARG002
        """The latents of frames that step, where one of them ends."""
        if outputs is None:
            return None
        if self.watch is not None:
            self.watch(planned.decodes, outputs)
        ends = planned.whole or any(self._ends(segment) for segment in planned.decodes)
        return outputs.after[: shape.rows.steps] if ends else None

    def outcomes(self, planned: Pass[Any], results: Tensor | None, ran: FlowPassShape) -> list[Chunked]:  # noqa: ARG002
        """A latent that is not finite at some step is not at any later one, so the chunk shows it."""
        lines = iter(() if results is None else results)
        found: list[Chunked] = []
        for segment in planned.segments:
            values = next(lines, None) if segment.stage or planned.whole else None
            if values is not None and (planned.whole or self._ends(segment)):
                found.append(Chunked.of(segment.sequence, values))
            else:
                found.append(Chunked(segment.sequence, ()))
        return found

    def _ends(self, segment: Segment[Any]) -> bool:
        return segment.stage == self._sizes.steps

    def _begin(self, segment: Segment[Any], frame: FlowFrame) -> None:
        """Note the frame of a slot. ValueError where its prefix has more rows than planned."""
        rows = self.stages.prefix_rows(len(frame.pixel_values), len(frame.prompt_ids))
        if rows > segment.length:
            raise ValueError(f"{segment.sequence} has {rows} rows of a prefix; {segment.length} were planned")
        prefix = PrefixSegment(slot=segment.slot, rows=rows, ids=frame.prompt_ids)
        self._slot_frames[segment.slot] = _SlotFrame(prefix, frame.guidance is not None)

    def _segments(self, planned: Pass[Any]) -> Segments:
        """The rows of a pass, of frames that `_begin` has noted."""
        begin = [self._slot_frames[segment.slot].prefix for segment in planned.prefills]
        stepping = planned.prefills if planned.whole else planned.decodes
        return begin, [
            StepSegment(slot=each.slot, prefix=self._slot_frames[each.slot].prefix.rows, step=max(each.stage, 1))
            for each in stepping
        ]

    def _idle(self, shape: FlowPassShape) -> Segments:
        """Rows of this shape in the scratch slot, which only pad a pass."""
        begin = [
            PrefixSegment(slot=self._scratch, rows=rows, ids=(0,) * tokens)
            for rows, tokens in zip(shape.rows.prefixes, shape.rows.tokens, strict=True)
        ]
        return begin, [StepSegment(slot=self._scratch, prefix=1, step=1)] * shape.rows.steps

    def _fields(self, shape: FlowPassShape) -> BufferFields:
        """The integers of rows, then the lines and pixels of frames that begin."""
        integers = sum(map(self._layouts.size, _parts(shape)))
        width = self.state.before_state + self._state_dims
        lines = [(torch.float32, (len(shape.cameras), width))] if shape.cameras else []
        pixels = [(torch.float32, (count, *self._images[1:])) for count in shape.cameras]
        return BufferFields(((torch.long, (integers,)), *lines, *pixels))

    def _integers(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment], shape: FlowPassShape) -> Integers:
        parts = [(begin, []), ([], steps)] if shape.whole else [(begin, steps)]
        return np.concatenate([self._layouts.integers(*part) for part in parts])

    def _rows(self, integers: Tensor, shape: FlowPassShape, segments: Segments | None) -> list[FlowRows]:
        """The rows of a pass; of a whole one those of its prefixes, and those of a step."""
        parts = _parts(shape)
        of_parts: list[Segments | None] = [segments] * len(parts)
        if segments is not None and shape.whole:
            of_parts = [(segments[0], []), ([], segments[1])]
        views = torch.split(integers, list(map(self._layouts.size, parts)))
        return [self._layouts.view(*each) for each in zip(views, parts, of_parts, strict=True)]


def _parts(shape: FlowPassShape) -> list[RowCounts]:
    """The rows that run at once: those of a step follow their prefixes in a whole pass."""
    if not shape.whole:
        return [shape.rows]
    return [replace(shape.rows, steps=0), replace(shape.rows, prefixes=(), tokens=())]


def _padded(segment: PrefixSegment, rows: int) -> PrefixSegment:
    return replace(segment, padding=rows - segment.rows)
