"""Runs plans: one packed forward a pass over KV slots that live for the life of the process.

Sampled tokens stay on the device, in the state of their slot; they are copied to the host behind each pass, and read
when it is collected (ActionFlow algorithm 1, lines 4 to 11). A pass is a program (engine/passes.py) that is run as it
stands, or recorded once a shape and replayed (engine/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.graphs import CudaRecord, Graphs, Record
from edgeflow.engine.passes import PassInputs, PassOutputs, PassProgram, PassShape, input_bytes, stage
from edgeflow.engine.policy import PreparedFrame, TokenPolicy
from edgeflow.engine.stamps import CudaStamp, Stamp
from edgeflow.kernels.kv import rounded_capacity
from edgeflow.kernels.layout import Span
from edgeflow.kernels.table import OperatorKey, OperatorTable, built_in_table
from edgeflow.scheduler.plan import FrameRef, Pass


@dataclass(frozen=True, slots=True)
class Sampled:
    """The K action tokens of a finished frame; finite is False when any logit behind them was not."""

    frame: FrameRef
    token_ids: tuple[int, ...]
    finite: bool


@dataclass(frozen=True, slots=True)
class LaunchedPass:
    """A pass on its way. results [N, K + 1] as in PassOutputs; logits [N, V] if requested.

    started, done: before its first copy to the device and behind its last one to the host; None where launching
    computes.
    """

    planned: Pass
    results: Tensor
    logits: Tensor | None
    started: Stamp | None
    done: Stamp | None


class PolicyEngine:
    """The engine of token policies. One device, one caller, passes in order.

    capacity: positions that a frame may use of its slot: prompt and action.
    launch_ahead: how many passes may be launched before the oldest is collected: 0 where launching computes (CPU), 1
    where it enqueues (CUDA), so that no launch waits for a host copy.
    keep_logits: copy the logits of each pass into its ticket; may be switched while it runs.
    graphs: replay recordings of passes; shapes are recorded as they come until `graphs.seal()`. record: makes the
    recordings, as CUDA graphs if not given.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        slots: int,
        capacity: int,
        device: torch.device,
        *,
        keep_logits: bool = False,
        table: OperatorTable | None = None,
        graphs: bool = False,
        record: Record | None = None,
    ) -> None:
        self.policy = policy
        self.capacity = capacity
        self.keep_logits = keep_logits
        self.launch_ahead = 1 if device.type == "cuda" else 0
        self.record: Record | None = (record or CudaRecord(device)) if graphs else None
        self.graphs: Graphs[PassOutputs] | None = None if self.record is None else Graphs(self.record)
        self.kv = policy.decoder.kv_slots(slots + graphs, rounded_capacity(capacity))
        self._scratch = slots  # written by the warm-up of recordings
        self._device = device
        operators, dtype = table or built_in_table(), self.kv.data.dtype
        name = policy.decoder.name
        greedy = operators.resolve_stages(OperatorKey(op_name="greedy", model_name=name), device, dtype)
        shift = operators.resolve_stages(OperatorKey(op_name="shift_kv_chain", model_name=name), device, dtype)
        self._program = PassProgram(policy, self.kv, greedy, shift)

    @torch.inference_mode()
    def launch(self, planned: Pass, observations: Mapping[FrameRef, PreparedFrame]) -> LaunchedPass:
        """Start a pass: stage its inputs, run or replay it, fetch what it gives."""
        shape = PassShape.of(planned, None if self.graphs is None else self.capacity)
        staged = stage(planned, observations, shape, self.policy, self._device.type == "cuda")
        started = self.stamp()
        outputs = self._run(planned, shape, staged)
        results = outputs.results.to("cpu", non_blocking=True, copy=True)
        logits = outputs.logits.clone() if self.keep_logits else None
        return LaunchedPass(planned, results, logits, started, self.stamp())

    def collect(self, ticket: LaunchedPass) -> list[Sampled]:
        """Wait for a pass, also for one that finishes no frame; the action tokens of the frames it finished."""
        if ticket.done is not None:
            ticket.done.wait()
        if not ticket.planned.finished:
            return []
        rows = dict(zip(ticket.planned.segments, ticket.results.tolist(), strict=True))
        return [Sampled(each.frame, tuple(rows[each][:-1]), bool(rows[each][-1])) for each in ticket.planned.finished]

    def stamp(self) -> Stamp | None:
        """A mark behind everything enqueued so far; None where launching computes."""
        return CudaStamp(self._device) if self._device.type == "cuda" else None

    def _run(self, planned: Pass, shape: PassShape, staged: list[Tensor]) -> PassOutputs:
        if self.graphs is None:
            spans = tuple(Span(segment.slot, segment.start, segment.length) for segment in planned.segments)
            return self._over(self._upload(staged), shape, max(span.start + span.length for span in spans), spans)()
        recording = self.graphs.find(shape, lambda: self._harmless(shape))
        return self._over(self._upload(staged), shape, self.capacity)() if recording is None else recording.run(*staged)

    def _over(
        self, buffer: Tensor, shape: PassShape, reach: int, places: tuple[Span, ...] | None = None
    ) -> Callable[[], PassOutputs]:
        """The program over a buffer of inputs; its layout stays, and what operators keep with it."""
        inputs = PassInputs.over(buffer, shape, self.policy)
        layout = inputs.layout(shape, reach, places)
        return lambda: self._program(shape, inputs, layout)

    def _harmless(self, shape: PassShape) -> tuple[Tensor, Callable[[], PassOutputs]]:
        """A buffer of a recording's own, all of it about the slot that no frame lives in."""
        buffer = torch.zeros(input_bytes(shape, self.policy), dtype=torch.uint8, device=self._device)
        inputs = PassInputs.over(buffer, shape, self.policy)
        for slots in (inputs.row_slot, inputs.slots, inputs.moves[:, :2]):
            slots.fill_(self._scratch)
        return buffer, self._over(buffer, shape, self.capacity)

    def _upload(self, staged: list[Tensor]) -> Tensor:
        return torch.cat([piece.to(self._device, non_blocking=True) for piece in staged])
