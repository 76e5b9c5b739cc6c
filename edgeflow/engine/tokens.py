"""Passes of tokens: the contract of policies that answer with action tokens, and of chat (engine/executor.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from edgeflow.engine.executor import PassContract
from edgeflow.engine.policy import PreparedFrame, TokenPolicy
from edgeflow.engine.program import PassOutputs, PassProgram, Verifier
from edgeflow.engine.sampling.sample import GREEDY, Sampled, SamplingKind, read_outcome
from edgeflow.engine.shapes import PassShape, ShapeClasses, shape_of
from edgeflow.engine.slots import SlotMemory, SlotState
from edgeflow.engine.staging import Drafting, PassInputs, PromptContract, harmless, input_bytes, stage
from edgeflow.kernels.kv.layout import Span, on_device
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.models.network import TokenNetwork
from edgeflow.scheduler.plan import DraftForm, Pass, Ref


class TokenPasses(PassContract):
    """Passes over KV slots, which live for the life of the process.

    kv: its last slot is scratch where passes are replayed. state: the state of its slots; shared by the contracts of a
    store. verifier: as in PassProgram. classes: the shapes of passes that are replayed; None where none is.
    """

    def __init__(
        self,
        prompts: PromptContract,
        kv: KVSlots,
        *,
        state: SlotState | None = None,
        verifier: Verifier | None = None,
        table: OperatorTable | None = None,
        classes: ShapeClasses | None = None,
    ) -> None:
        self.prompts = prompts
        self.kv = kv
        self.device = device = kv.data.device
        self.classes = classes
        self.state = state or SlotState(kv)
        # Places follow from the drafts accepted in the pass before.
        drafted = verifier is not None or prompts.drafting is not None
        self.reads_places = drafted and prompts.network.reads_places(kv)
        operators, name = table or built_in_table(), prompts.network.name
        greedy, shift, fold = (
            operators.resolve_stages(OperatorKey(op_name=op_name, model_name=name), device, kv.dtype)
            for op_name in ("greedy", "shift_kv_chain", "fold_memory")
        )
        follower = None if verifier is None else verifier.store
        self._memory = None if self.state.folded is None else SlotMemory(kv, self.state, fold["prefill"], follower)
        self._program = PassProgram(prompts, kv, self.state, greedy, shift, verifier=verifier)

    def shapes(self) -> Sequence[PassShape]:
        return [] if self.classes is None else self.classes.all()

    def shape(self, planned: Pass[Any], prompts: Mapping[Any, Any], *, waits: bool) -> PassShape:  # noqa: ARG002
        return shape_of(planned, None if waits else self.kind(planned), self.kv.capacity)

    def kind(self, planned: Pass[Any]) -> SamplingKind:
        """How the rows of a pass are sampled."""
        slots = [segment.slot for segment in planned.segments if segment.samples]
        return self.state.sampling.kind(slots) if self.state.sampling else GREEDY

    def fits(self, shape: PassShape, planned: Pass[Any]) -> Iterator[PassShape]:
        """The shape that a pass is padded to; then the one without sampling, which serves every kind that is not
        recorded.
        """
        start = max(segment.start for segment in planned.prefills or planned.segments)
        for sampling in (shape.sampling, None):
            found = self.classes and self.classes.fit(replace(shape, sampling=sampling), start)
            if found:
                yield found

    def stage(self, planned: Pass[Any], prompts: Mapping[Any, Any], shape: PassShape) -> list[Tensor]:
        return stage(planned, prompts, shape, self.prompts, scratch=self._scratch)

    def program(self, buffer: Tensor, shape: PassShape, planned: Pass[Any] | None) -> Callable[[], PassOutputs]:
        segments = planned.segments if planned else ()
        certain = planned is not None and all(segment.certain for segment in segments)
        places = tuple(Span(each.slot, each.start, each.length) for each in segments) if certain else None
        inputs = PassInputs.over(buffer, shape, self.prompts, places, folding=self._memory is not None)
        return lambda: self._program(shape, inputs)

    def harmless(self, shape: PassShape) -> Tensor:
        """Inputs whose segments all lie in the scratch slot."""
        buffer = torch.zeros(input_bytes(shape, self.prompts), dtype=torch.uint8, device=self.device)
        numbers = torch.tensor(harmless(shape, self.prompts, self._scratch)).view(torch.uint8)
        buffer[: len(numbers)] = numbers.to(self.device)
        return buffer

    def before(self, planned: Pass[Any]) -> None:
        """Folds are enqueued before the rows of the pass, which enter the places that a fold frees."""
        if self._memory is not None:
            for segment in planned.segments:
                self._memory.change(segment.slot, segment.before)

    def results(self, planned: Pass[Any], shape: PassShape, ran: PassShape, outputs: PassOutputs) -> Tensor | None:
        if ran.sampling == shape.sampling:
            return outputs.results
        return self.sample(planned, ran, outputs, None)  # recorded without sampling, since this kind was not

    def sample(self, planned: Pass[Any], ran: PassShape, outputs: PassOutputs, allowed: Tensor | None) -> Tensor | None:
        """Sample a pass that ran in this shape; None where it has no logits."""
        kind = self.kind(planned)
        if ran.form is not DraftForm.NONE:
            where = on_device([each.slot for each in planned.segments], self.device)
            counts = on_device([each.length for each in planned.segments], self.device)
            on_host = self.classes is None and self.device.type == "cpu"
            form = planned.segments[0].form  # a recording without sampling may be of another one
            drafted = replace(ran, form=form)
            return self._program.verify(drafted, outputs, where, counts, kind, allowed=allowed, on_host=on_host)
        if outputs.logits is None:
            return None
        slots = [segment.slot for segment in planned.segments if segment.samples]
        return self._program.sample(outputs.logits[: len(slots)], on_device(slots, self.device), kind, allowed)

    def outcomes(self, planned: Pass[Ref], results: Tensor | None, ran: PassShape) -> list[Sampled[Ref]]:
        lines = iter(results.tolist() if results is not None else ())
        guessed = ran.most_samples > 1
        return [
            read_outcome(segment, next(lines), guessed=guessed) if segment.samples else Sampled(segment.sequence, ())
            for segment in planned.segments
        ]

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Clear the memory of a slot, where slots have one."""
        if self._memory is not None:
            self._memory.clear(slot)

    def finite(self, slot: int) -> bool:
        """True where the memory of a slot is finite, or slots have none. Waits for the device."""
        return self._memory is None or self._memory.finite(slot)

    @property
    def _scratch(self) -> int:
        """The slot for the warm-up of recordings, and for segments that only pad a pass."""
        return self.kv.slots - 1


class ActionTokens:
    """How the prompts of a token policy enter passes: their ids as integers, float32 pixels as the payload."""

    components = 1
    keeps_ids = False

    def __init__(self, policy: TokenPolicy, device: torch.device) -> None:
        self._policy = policy
        self.drafting = Drafting(on_device(policy.first_guess, device), on_device(policy.near, device))
        self._pixel_bytes = 4 * math.prod(policy.pixel_shape)

    @property
    def network(self) -> TokenNetwork:
        return self._policy.decoder

    def count(self, rows: int) -> int:
        return rows - self._policy.fixed_rows

    def payload_bytes(self, rows: int) -> int:  # noqa: ARG002 - any prompt has one image
        return self._pixel_bytes

    def numbers(self, prompt: PreparedFrame, rows: int) -> Sequence[int]:  # noqa: ARG002
        return prompt.prompt_ids

    def payload(self, prompt: PreparedFrame) -> Tensor:
        return prompt.pixel_values

    def prompt_rows(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:
        pixels = payload.view(torch.float32).view(len(rows), *self._policy.pixel_shape)
        return self._policy.embed_rows(pixels, numbers)

    def ids(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> list[Tensor]:  # noqa: ARG002
        raise ValueError("the tokens of these prompts are not kept")

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> None:
        """None: rows rotate by where they are placed."""
