"""Runs plans: one packed forward a pass over KV slots that live for the life of the process.

Sampled tokens stay on the device, in the state of their slot; only finished frames are copied to the host, and
only when they are collected (ActionFlow algorithm 1, lines 4 to 11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.policy import PreparedFrame, TokenPolicy
from edgeflow.kernels.greedy import Greedy
from edgeflow.kernels.layout import PackedLayout, Span, on_device
from edgeflow.kernels.shift_kv import ShiftKVChain
from edgeflow.kernels.table import OperatorKey, OperatorTable, built_in_table
from edgeflow.scheduler.engine import Sampled
from edgeflow.scheduler.plan import FrameRef, Pass


@dataclass(frozen=True, slots=True)
class LaunchedPass:
    """A pass on its way. token_ids [n, K] and finite [n] of the n finished frames; logits [N, V] if kept.

    done: when they are there; None where launching computes.
    """

    planned: Pass
    token_ids: Tensor
    finite: Tensor
    logits: Tensor | None
    done: torch.cuda.Event | None


class PolicyEngine:
    """The engine of token policies. One device, one caller, passes in order."""

    def __init__(
        self,
        policy: TokenPolicy,
        slots: int,
        capacity: int,
        device: torch.device,
        *,
        keep_logits: bool = False,
        table: OperatorTable | None = None,
    ) -> None:
        self.policy = policy
        self.capacity = capacity
        self.launch_ahead = 1 if device.type == "cuda" else 0
        self._device = device
        self._keep_logits = keep_logits
        self.kv = policy.decoder.kv_slots(slots, capacity)
        self._token_ids = torch.zeros(slots, policy.K, dtype=torch.long, device=device)
        self._finite = torch.ones(slots, dtype=torch.bool, device=device)
        operators = table or built_in_table()
        self._greedy: Greedy = operators.resolve(OperatorKey("greedy", "llama"), device, self.kv.data.dtype)
        chain = operators.resolve(OperatorKey("shift_kv_chain", "llama"), device, self.kv.data.dtype)
        self._shift_kv: ShiftKVChain = chain

    @torch.inference_mode()
    def launch(self, planned: Pass, observations: Mapping[FrameRef, PreparedFrame]) -> LaunchedPass:
        """Start a pass: embed, one packed forward, sample, gather what is finished, shift."""
        layout = PackedLayout.of(
            [Span(segment.slot, segment.start, segment.length) for segment in planned.segments], self._device
        )
        hidden = self._embed(planned, observations)
        hidden = self.policy.decoder.forward(hidden, layout, self.kv)
        logits = self.policy.decoder.logits(hidden[layout.last_rows])
        self._sample(planned, logits)
        finished = self._index([segment.slot for segment in planned.finished])
        launched = LaunchedPass(
            planned,
            self._token_ids[finished].to("cpu", non_blocking=True),
            self._finite[finished].to("cpu", non_blocking=True),
            logits if self._keep_logits else None,
            self._event(),
        )
        self._shift(planned)
        return launched

    def collect(self, ticket: LaunchedPass) -> list[Sampled]:
        """Wait for a pass; the action tokens of the frames it finished."""
        if ticket.done is not None and ticket.planned.finished:
            ticket.done.synchronize()
        rows = zip(ticket.planned.finished, ticket.token_ids.tolist(), ticket.finite.tolist(), strict=True)
        return [Sampled(segment.frame, tuple(ids), finite) for segment, ids, finite in rows]

    def _embed(self, planned: Pass, observations: Mapping[FrameRef, PreparedFrame]) -> Tensor:
        """H [L_Q, E] (ActionFlow equation 1): prefills, then the last token of each frame under way."""
        parts: list[Tensor] = []
        prefills = planned.prefills
        if prefills:
            frames = [observations[segment.frame] for segment in prefills]
            pixels = self._upload(torch.stack([frame.pixel_values for frame in frames]))
            parts += self.policy.embed_prefill(pixels, [frame.prompt_ids for frame in frames])
        decodes = planned.decodes
        if decodes:
            slots = self._index([segment.slot for segment in decodes])
            stages = self._index([segment.stage - 1 for segment in decodes])
            parts.append(self.policy.decoder.embed(self._token_ids[slots, stages]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _sample(self, planned: Pass, logits: Tensor) -> None:
        """Greedy, over the whole vocabulary; token j of a frame goes to its slot's state."""
        slots = self._index([segment.slot for segment in planned.segments])
        stages = self._index([segment.stage for segment in planned.segments])
        ids, finite = self._greedy(logits, 0, logits.shape[-1])
        self._token_ids[slots, stages] = ids
        self._finite[slots] = finite & (self._finite[slots] | (stages == 0))

    def _shift(self, planned: Pass) -> None:
        if planned.moves:
            moves = [(move.source, move.target, move.length) for move in planned.moves]
            self._shift_kv(self.kv.data, on_device(moves, self._device))
        for move in planned.moves:
            self._token_ids[move.target] = self._token_ids[move.source]
            self._finite[move.target] = self._finite[move.source]

    def _index(self, values: list[int]) -> Tensor:
        return on_device(values, self._device)

    def _upload(self, pixels: Tensor) -> Tensor:
        """From pinned memory, so that the host does not wait for the passes before."""
        pinned = pixels.pin_memory() if self._device.type == "cuda" else pixels
        return pinned.to(self._device, non_blocking=True)

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
