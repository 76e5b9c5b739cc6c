"""Runs passes of one model: one packed forward each, over KV slots that live for the life of the process.

The results of a pass stay on the device, in the state of its slots; they are copied to the host after it, and read
when the pass is collected (ActionFlow algorithm 1, lines 4 to 11). A pass is a program (engine/program.py) that is run
as it stands, or recorded once per shape and replayed (engine/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol

import torch
from torch import Tensor

from edgeflow.engine.graphs import CudaRecord, GraphRecording, Graphs, Record
from edgeflow.engine.program import PassOutputs, PassProgram, Verifier
from edgeflow.engine.sampling.sample import GREEDY, Sampled, SamplingKind, read_outcome
from edgeflow.engine.shapes import PassShape, ShapeClasses, shape_of
from edgeflow.engine.slots import SlotMemory, SlotState
from edgeflow.engine.staging import Contract, PassInputs, harmless, input_bytes, stage
from edgeflow.kernels.kv.layout import Span, on_device
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.plan import DraftForm, Pass, Ref
from edgeflow_client.clock import MonotonicClock


class Stamp(Protocol):
    """A mark in the device's queue, reached when everything enqueued before it is done."""

    recorded_ns: int
    """When the host enqueued it, by the clock of the worker's loop."""

    @property
    def reached(self) -> bool: ...

    def wait(self) -> None:
        """Block until it is reached."""
        ...

    def since_ns(self, earlier: Stamp) -> int:
        """Device time from an earlier stamp, nanoseconds; both must have been reached."""
        ...


class CudaStamp:
    """A timing event on the device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(device))
        self.recorded_ns = MonotonicClock().now_ns()

    @property
    def reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def since_ns(self, earlier: Stamp) -> int:
        if not isinstance(earlier, CudaStamp):
            raise TypeError(f"{type(earlier).__name__} is of another device")
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return round(milliseconds * 1e6)


def stamp_on(device: torch.device) -> Stamp | None:
    """A mark after everything enqueued so far; None where launching computes."""
    return CudaStamp(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket(Generic[Ref]):
    """A launched pass. results as in PassOutputs, on the host once it is done; logits [n, V] where they are kept."""

    planned: Pass[Ref]
    samples: tuple[int, ...]
    """Sampled rows of each segment, padding included."""
    results: Tensor | None
    logits: Tensor | None
    started: Stamp | None
    """A mark before its first copy to the device; None where launching computes."""
    done: Stamp | None
    """A mark after its last copy to the host; None where launching computes."""
    outputs: PassOutputs | None = None
    """The outputs of a pass whose rows are not sampled yet (`Executor.sample`); None for others."""
    shape: PassShape | None = None
    """The shape of such a pass; None for others."""


class Executor:
    """The executor of a contract. One device, one caller, passes in order.

    kv: its last slot is scratch where passes are replayed. state: the state of its slots; shared by executors of a
    store. launch_ahead: how many passes may be launched before the oldest is collected: 0 where launching computes
    (CPU), 1 where it enqueues (CUDA), so that no launch waits for a host copy. keep_logits: copy the logits of each
    pass into its ticket; may be switched while it runs. verifier, keeps_guesses: as in PassProgram. classes: the shapes
    of passes that are replayed; None to run all as they are. Shapes are recorded as they come until `graphs.seal()`.
    record: makes the recordings, as CUDA graphs if not given.
    """

    def __init__(
        self,
        contract: Contract,
        kv: KVSlots,
        *,
        state: SlotState | None = None,
        keep_logits: bool = False,
        verifier: Verifier | None = None,
        keeps_guesses: bool = False,
        table: OperatorTable | None = None,
        classes: ShapeClasses | None = None,
        record: Record | None = None,
    ) -> None:
        self.contract = contract
        self.kv = kv
        self.keep_logits = keep_logits
        self._device = device = kv.data.device
        self.launch_ahead = 1 if device.type == "cuda" else 0
        self.classes = classes
        self.record: Record | None = (record or CudaRecord(device)) if classes else None
        self.graphs: Graphs[PassOutputs] | None = None if self.record is None else Graphs(self.record)
        self.state = state or SlotState(kv)
        operators, name = table or built_in_table(), contract.network.name
        greedy, shift = (
            operators.resolve_stages(OperatorKey(op_name=op_name, model_name=name), device, kv.dtype)
            for op_name in ("greedy", "shift_kv_chain")
        )
        fold = operators.resolve_stages(OperatorKey(op_name="fold_memory", model_name=name), device, kv.dtype)
        follower = None if verifier is None else verifier.store
        self._memory = None if self.state.folded is None else SlotMemory(kv, self.state, fold["prefill"], follower)
        self._program = PassProgram(
            contract, kv, self.state, greedy, shift, verifier=verifier, keeps_guesses=keeps_guesses
        )

    @torch.inference_mode()
    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any], *, waits: bool = False) -> Ticket[Ref]:
        """Start a pass: stage its inputs, run or replay it, begin to copy its results.

        prompts: those of its prefills. waits: rows are sampled later, by `sample`.
        """
        kind = self._kind(planned)
        shape = shape_of(planned, None if waits else kind, self.kv.capacity)
        padded = self._padded(planned, shape)
        pinned = self._device.type == "cuda"
        staged = stage(planned, prompts, padded or shape, self.contract, scratch=self._scratch, pinned=pinned)
        started = self.stamp()
        # Folds are enqueued before the rows of the pass, which enter the places that a fold frees.
        if self._memory is not None:
            for segment in planned.segments:
                self._memory.change(segment.slot, segment.before)
        outputs = self._replay(padded, staged) if padded else self._run(planned, shape, staged)
        ran, results = padded or shape, outputs.results
        # The recording was made without sampling, since this kind was not recorded: sample its logits now.
        if padded and padded.sampling != shape.sampling:
            results = self._sample(planned, padded, outputs, None)
        return Ticket(
            planned=planned,
            samples=ran.samples,
            results=None if results is None else results.to("cpu", non_blocking=True, copy=True),
            logits=outputs.logits.clone() if self.keep_logits and outputs.logits is not None else None,
            started=started,
            done=self.stamp(),
            outputs=outputs.copied() if waits else None,
            shape=ran if waits else None,
        )

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Clear the memory of a slot, where slots have one."""
        if self._memory is not None:
            self._memory.clear(slot)

    def finite(self, slot: int) -> bool:
        """True where the memory of a slot is finite, or slots have none. Waits for the device."""
        return self._memory is None or self._memory.finite(slot)

    @torch.inference_mode()
    def sample(self, ticket: Ticket[Ref], allowed: Tensor) -> Ticket[Ref]:
        """Sample the rows of a pass launched with `waits`. allowed [n, V] bool: what a grammar permits."""
        if ticket.outputs is None or ticket.shape is None:
            raise ValueError("a pass that does not wait is sampled already")
        allowed = allowed.to(self._device, non_blocking=True)
        results = self._sample(ticket.planned, ticket.shape, ticket.outputs, allowed)
        if results is None:
            raise ValueError("a pass without logits has nothing to sample")
        results = results.to("cpu", non_blocking=True, copy=True)
        return replace(ticket, results=results, done=self.stamp(), outputs=None, shape=None)

    def collect(self, ticket: Ticket[Ref]) -> list[Sampled[Ref]]:
        """Wait for a pass, also for one that samples nothing; returns the outcome of each segment."""
        if ticket.done is not None:
            ticket.done.wait()
        lines = iter(ticket.results.tolist() if ticket.results is not None else ())
        guessed = max(ticket.samples) > 1
        return [
            read_outcome(segment, next(lines), guessed=guessed) if segment.samples else Sampled(segment.sequence, ())
            for segment in ticket.planned.segments
        ]

    @torch.inference_mode()
    def record_all(self, shapes: Sequence[PassShape], progress: Callable[[int, int], None]) -> None:
        """Record these shapes of the classes; RuntimeError or ConfigError where an operator cannot be recorded."""
        for index, shape in enumerate(shapes):
            progress(index, len(shapes))
            self._find(shape)

    def stamp(self) -> Stamp | None:
        """A mark after everything enqueued so far; None where launching computes."""
        return stamp_on(self._device)

    @property
    def _scratch(self) -> int:
        """The slot for the warm-up of recordings, and for segments that only pad a pass."""
        return self.kv.slots - 1

    def _kind(self, planned: Pass[Any]) -> SamplingKind:
        slots = [segment.slot for segment in planned.segments if segment.samples]
        return self.state.sampling.kind(slots) if self.state.sampling else GREEDY

    def _padded(self, planned: Pass[Any], shape: PassShape) -> PassShape | None:
        """The shape to replay; None to run the pass as it is. Rows are sampled apart where their kind was not
        recorded.
        """
        if self.classes is None or self.graphs is None:
            return None
        start = max(segment.start for segment in planned.prefills or planned.segments)
        padded = self.classes.fit(shape, start)
        if padded is None or padded in self.graphs or not self.graphs.sealed:
            return padded
        # With the robots waiting, no graph is captured: the recording without sampling serves every kind.
        apart = self.classes.fit(replace(shape, sampling=None), start)
        return apart if apart in self.graphs else None

    def _sample(
        self, planned: Pass[Any], shape: PassShape, outputs: PassOutputs, allowed: Tensor | None
    ) -> Tensor | None:
        """Sample a pass that ran in this shape; None where it has no logits."""
        kind = self._kind(planned)
        if shape.form is not DraftForm.NONE:
            where = on_device([each.slot for each in planned.segments], self._device)
            counts = on_device([each.length for each in planned.segments], self._device)
            on_host = self.graphs is None and self._device.type == "cpu"
            form = planned.segments[0].form  # a recording without sampling may be of another one
            drafted = replace(shape, form=form)
            return self._program.verify(drafted, outputs, where, counts, kind, allowed=allowed, on_host=on_host)
        if outputs.logits is None:
            return None
        slots = [segment.slot for segment in planned.segments if segment.samples]
        return self._program.sample(outputs.logits[: len(slots)], on_device(slots, self._device), kind, allowed)

    def _replay(self, shape: PassShape, staged: list[Tensor]) -> PassOutputs:
        recording = self._find(shape)  # None where there are too many
        return self._over(self._upload(staged), shape)() if recording is None else recording.run(*staged)

    def _run(self, planned: Pass[Any], shape: PassShape, staged: list[Tensor]) -> PassOutputs:
        if self.graphs is not None:
            self.graphs.eager_passes += 1
        spans = tuple(Span(segment.slot, segment.start, segment.length) for segment in planned.segments)
        places = spans if all(segment.certain for segment in planned.segments) else None
        return self._over(self._upload(staged), shape, places)()

    def _find(self, shape: PassShape) -> GraphRecording[PassOutputs] | None:
        return self.graphs.find(shape, lambda: self._harmless(shape)) if self.graphs is not None else None

    def _over(
        self, buffer: Tensor, shape: PassShape, places: tuple[Span, ...] | None = None
    ) -> Callable[[], PassOutputs]:
        """The program over a buffer of inputs. It keeps its layout, with everything that operators cache in it."""
        inputs = PassInputs.over(buffer, shape, self.contract, places, folding=self._memory is not None)
        return lambda: self._program(shape, inputs)

    def _harmless(self, shape: PassShape) -> tuple[Tensor, Callable[[], PassOutputs]]:
        """A buffer for a new recording, whose segments all lie in the scratch slot."""
        buffer = torch.zeros(input_bytes(shape, self.contract), dtype=torch.uint8, device=self._device)
        numbers = torch.tensor(harmless(shape, self.contract, self._scratch)).view(torch.uint8)
        buffer[: len(numbers)] = numbers.to(self._device)
        return buffer, self._over(buffer, shape)

    def _upload(self, staged: list[Tensor]) -> Tensor:
        return torch.cat([piece.to(self._device, non_blocking=True) for piece in staged])


@dataclass(frozen=True, slots=True)
class Running(Generic[Ref]):
    """A launched pass whose outcome has not been collected."""

    ticket: Ticket[Ref]
    turn_ns: int
    """The beginning of the loop's turn that launched it."""
    begun: Stamp | None = None
    """A mark before its inputs were prepared."""
    queued: bool = False
    """True when the device still had earlier work after the launch."""
    apart: bool = False
    """True when only its sampling was launched in that turn."""

    @classmethod
    def of(
        cls, ticket: Ticket[Ref], turn_ns: int, begun: Stamp | None, *, apart: bool = False, prepared: bool = False
    ) -> Running[Ref]:
        """A pass that was launched just now. prepared: its inputs were computed on the device, which counts."""
        return cls(ticket, turn_ns, begun, begun is not None and (prepared or not begun.reached), apart)

    def sample(self, prefills: int, decodes: int, now_ns: int, *, on_device: bool) -> PassSample:
        """The time of a collected pass: of its turn, or on the device: from the end of earlier work if it queued after
        that, else from when its inputs were staged.
        """
        if not on_device:
            return PassSample(prefills, decodes, now_ns - self.turn_ns)
        ticket = self.ticket
        since = self.begun if self.queued else ticket.started
        if ticket.done is None or ticket.started is None or since is None:
            raise RuntimeError("an engine that launches ahead gave a pass without stamps")
        return PassSample(prefills, decodes, ticket.done.since_ns(since), ticket.started.recorded_ns - self.turn_ns)
