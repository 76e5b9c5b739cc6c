"""A chat model on the executor: one store of slots, the sequences in them, and the passes of both of its models."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from edgeflow.engine.drafts.kinds import DraftKind
from edgeflow.engine.drafts.verifier import DraftVerifier
from edgeflow.engine.executor import Executor, Stamp, Ticket
from edgeflow.engine.graphs import Record
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import GREEDY, Sampled, SamplingKind, SamplingState
from edgeflow.engine.shapes import PassShape, ShapeClasses
from edgeflow.engine.slots import SlotState
from edgeflow.engine.tokens import TokenPasses
from edgeflow.kernels.kv.formats import INT4
from edgeflow.kernels.kv.int4 import GROUP
from edgeflow.kernels.kv.layout import on_device
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.models.chat import ChatModel, PromptRows
from edgeflow.models.network import TokenNetwork
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.drafting import UNDRAFTED, DraftRule
from edgeflow.scheduler.folding import Folding, SlotUse
from edgeflow.scheduler.plan import DraftForm, Pass, Segment
from edgeflow_client.errors import Internal, WorkerError
from edgeflow_client.reasons import Reason


def recorded_shapes(classes: ShapeClasses, recommended: SamplingKind, *, gated: bool) -> list[PassShape]:
    """The shapes to record: chunks, whose last row is sampled apart; decode rows and verifications, sampled greedily,
    as recommended, and apart.

    Passes of every token come first, since those beyond the most recordings are run as they are. recommended: how the
    checkpoint recommends to sample. gated: also with rows that read the memory of their slot.
    """
    kinds = dict.fromkeys((GREEDY, recommended, None))
    shapes = classes.all([(0, GREEDY), *((1, kind) for kind in kinds)])
    needed = [each for each in shapes if not each.prefills or each.sampling is None or not any(each.samples)]
    both = [*needed, *(replace(each, gated=(True,)) for each in needed)] if gated else needed
    return sorted(both, key=lambda shape: bool(shape.prefills))


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Rows of a prompt. rows [n, W], as the network takes them."""

    rows: Tensor
    positions: Tensor
    """[C, n]: RoPE positions, on the host."""
    shift: int = 0
    """The shift of positions after the prompt, as in Prompt."""
    ids: Sequence[int] = ()
    """The tokens of the rows, and the one after them if the prompt goes on."""


class TextTokens:
    """How the prompts of a chat model enter passes. Payload: rows as its network takes them. Numbers: for M-RoPE three
    positions of each row, and the shift; then, where they are kept, the token of each row and the one after the last.
    """

    def __init__(self, model: ChatModel, *, keeps_ids: bool = False) -> None:
        self._model = model
        self.keeps_ids = keeps_ids
        self.drafting = None
        self.components = 1 if model.vision is None else 3
        self._width, self._dtype = model.network.prompt_row

    @property
    def network(self) -> TokenNetwork:
        return self._model.network

    def count(self, rows: int) -> int:
        return self._positions(rows) + (rows + 1 if self.keeps_ids else 0)

    def payload_bytes(self, rows: int) -> int:
        return rows * self._width * self._dtype.itemsize

    def numbers(self, prompt: PromptChunk, rows: int) -> Sequence[int]:
        ids = prompt.ids if self.keeps_ids else ()
        if self.components == 1:
            return ids
        padded = [[*line, *[0] * (rows - len(line))] for line in prompt.positions.expand(3, -1).tolist()]
        return [*padded[0], *padded[1], *padded[2], prompt.shift, *ids]

    def payload(self, prompt: PromptChunk) -> Tensor:
        return prompt.rows

    def prompt_rows(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:  # noqa: ARG002
        return list(torch.split(payload.view(self._dtype).view(-1, self._width), list(rows)))

    def ids(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> list[Tensor]:
        return [each[self._positions(count) :] for each, count in zip(numbers, rows, strict=True)]

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        if self.components == 1:
            return None
        given = [each[: self._positions(count)] for each, count in zip(numbers, rows, strict=True)]
        return torch.cat([each[:-1].view(3, -1) for each in given], 1), torch.stack([each[-1] for each in given])

    def _positions(self, rows: int) -> int:
        """The number of integers that hold the positions of so many rows."""
        return 3 * rows + 1 if self.components > 1 else 0


class PromptSource:
    """The rows of a prompt, chunk by chunk."""

    def __init__(self, model: ChatModel, prompt: Prompt) -> None:
        self.prompt = prompt
        self._rows = PromptRows(model, prompt)

    def chunk(self, segment: Segment[int]) -> PromptChunk:
        """The rows of a segment of the prompt."""
        prompt, start = self.prompt, segment.start + segment.folded
        stop = start + segment.length
        return PromptChunk(
            self._rows.take(start, stop), prompt.positions[:, start:stop], prompt.shift, prompt.ids[start : stop + 1]
        )


ROW_PERMILLE = 80
"""The time of one more row of a verification, per mille of a decode pass, where it was not measured."""


class ChatEngine:
    """Runs passes of a chat model over `kv`.

    decode: the model of decode rows, where another computes prompts; it reads what that one wrote. folding: the sizes
    of slots with memory, where `kv` has them. drafts: how answers are drafted; None for a token per pass. graphs:
    replay recordings; the last slot of `kv` is scratch then, and chunks are of at most `chunk` rows. table, record and
    keep_logits: as in Executor.
    row_permille, row_growth: the time of one more row of a verification, as in `DraftRule`; may be measured and set.
    """

    def __init__(
        self,
        model: ChatModel,
        kv: KVSlots,
        *,
        decode: ChatModel | None = None,
        folding: Folding | None = None,
        drafts: DraftKind | None = None,
        chunk: int = 0,
        graphs: bool = False,
        table: OperatorTable | None = None,
        record: Record | None = None,
        keep_logits: bool = False,
    ) -> None:
        if (folding is None) != (kv.format.memory is None):
            raise ValueError("slots with a memory need the sizes of what is folded, and others have none")
        self.model = model
        self.decode = decode or model
        self.kv = kv
        self.drafts = drafts
        self._table = table or built_in_table()
        self.row_permille, self.row_growth = ROW_PERMILLE, 0
        rows = 1 if drafts is None else drafts.rows
        sampling = SamplingState(kv.slots, kv.positions + rows, model.config.vocab_size, model.device)
        self._state, self._sampling = SlotState(kv, sampling, rows), sampling
        self._verifier = None if drafts is None else self._verified(drafts)
        again = int(self._verifier is not None and self._verifier.store is not None)
        self.placement = replace(folding, again=again) if folding else SlotUse(kv.format.reusable, again)
        keeps_ids = folding is not None or drafts is not None
        options: dict[str, Any] = {
            "state": self._state,
            "verifier": self._verifier,
            "classes": ShapeClasses.of_requests(chunk, kv.capacity, self._verified_rows) if graphs else None,
            "table": table,
        }

        def executor(model: ChatModel, record: Record | None) -> Executor[TokenPasses]:
            contract = TokenPasses(TextTokens(model, keeps_ids=keeps_ids), kv, **options)
            return Executor(contract, graphs=graphs, record=record, keep_logits=keep_logits)

        self._prompts = self._decodes = executor(model, record)
        if self.decode is not model:
            self._decodes = executor(self.decode, self._prompts.record)

    def _verified(self, drafts: DraftKind) -> DraftVerifier:
        """The verifier of these drafts; ValueError for trees over a store that cannot move single places, and for more
        rows than such a store can write again.
        """
        if drafts.form is DraftForm.TREE and not self.kv.can_compact:
            raise ValueError(f"{self.kv.format.name} KV moves several places at a time: draft chains, not trees")
        if drafts.rows > GROUP and self.kv.format is INT4:
            raise ValueError(f"int4 KV verifies at most {GROUP} rows at a time, not {drafts.rows}: make fewer drafts")
        key = OperatorKey(op_name="greedy", model_name=self.decode.network.name)
        greedy = self._table.resolve_stages(key, self.model.device, self.kv.dtype)
        return DraftVerifier(drafts.drafter(self.kv, self._state), self.kv, self._state, greedy)

    def rule(self, *, constrained: bool = False) -> DraftRule:
        """The drafts of a request. constrained: by a grammar, whose masks follow a chain."""
        if self.drafts is None or self._verifier is None:
            return UNDRAFTED
        form = DraftForm.CHAIN if constrained else self.drafts.form
        return DraftRule(
            form=form,
            rows=self._verifier.rows(form),
            places=self.kv.capacity,
            deepest=self._verifier.width(form),
            row_permille=self.row_permille,
            row_growth=self.row_growth,
        )

    @property
    def _verified_rows(self) -> dict[DraftForm, int]:
        """Rows of a verification in each form that a request may have."""
        if self._verifier is None:
            return {}
        rules = (self.rule(constrained=constrained) for constrained in (True, False))
        return {rule.form: rule.rows for rule in rules}

    @property
    def launch_ahead(self) -> int:
        return min(executor.launch_ahead for executor in self._executors)

    def stamp(self) -> Stamp | None:
        """As in Executor."""
        return self._prompts.stamp()

    @property
    def recordings(self) -> int:
        return sum(len(each.graphs) for each in self._executors if each.graphs is not None)

    def record_all(self, progress: Callable[[int, int], None]) -> int:
        """Record all of `recorded_shapes`, as `Executor.record_all` does."""
        recommended = SamplingKind.of([SamplingParams.recommended(self.model.generation)])
        for executor in self._executors:
            classes = executor.contract.classes
            if classes is None:
                continue
            shapes = recorded_shapes(classes, recommended, gated=self.kv.format.memory is not None)
            executor.record_all(progress, [each for each in shapes if executor is self._of(each)])
        return self.recordings

    def seal(self) -> None:
        """Record nothing from now on."""
        for executor in self._executors:
            if executor.graphs is not None:
                executor.graphs.seal()

    def drop_graphs(self) -> None:
        """Run all passes without recordings from now on."""
        for executor in self._executors:
            executor.drop_graphs()

    def begin(self, slot: int, params: SamplingParams, prompt: Prompt, *, known: int = 0) -> None:
        """Put a request in a slot, without waiting; its prompt enters with its passes.

        known: rows of it that the slot holds already; without any, the memory of the slot is cleared.
        """
        seed = secrets.randbits(63) if params.seed is None else params.seed
        if not known:
            self.clear(slot)
        self._sampling.begin(slot, params, prompt.ids, seed)

    def clear(self, slot: int) -> None:
        """Clear the memory of a slot before a sequence begins in it."""
        self._prompts.contract.clear(slot)

    def check_memory(self, slot: int) -> None:
        """Raise Internal, and clear the memory of a slot, where that is not finite. Waits for the device."""
        if not self._prompts.contract.finite(slot):
            self.clear(slot)
            raise Internal("the memory of the prefix is not finite", reason=Reason.MEMORY_NOT_FINITE)

    @torch.inference_mode()
    def lend(self, source: int, target: int, known: int) -> None:
        """Copy the first `known` rows of a slot, and its memory if it has one, to another."""
        rows = self.placement.copied(known, self.kv.capacity)
        self.kv.copy_rows(source, target, rows)
        if self._verifier is not None and self._verifier.store is not None:
            self._verifier.store.copy_rows(source, target, rows)
        slots = on_device([source, target], self.model.device)
        self._state.move(slots[:1], slots[1:])

    @torch.inference_mode()
    def launch(self, planned: Pass[int], sources: Mapping[int, PromptSource], *, waits: bool = False) -> Ticket[int]:
        """Start a pass; the rows of its prompts come from `sources`. waits: as in Executor.launch."""
        prompts = {segment.sequence: sources[segment.sequence].chunk(segment) for segment in planned.prefills}
        return self._of(planned).launch(planned, prompts, waits=waits)

    def sample(self, ticket: Ticket[int], allowed: Tensor) -> Ticket[int]:
        """Sample a pass launched with `waits`, as in Executor.sample."""
        return self._of(ticket.planned).sample(ticket, allowed)

    def collect(self, ticket: Ticket[int]) -> Sequence[Sampled[int]]:
        """Wait for a pass; returns the outcome of each segment. WorkerError where logits are not finite; Internal where
        they are of rows that read a memory, which may be at fault.
        """
        outcomes = cast("Sequence[Sampled[int]]", self._of(ticket.planned).collect(ticket))
        if not all(outcome.finite for outcome in outcomes):
            if any(segment.gated for segment in ticket.planned.segments):
                raise Internal("the memory of the prompt is not finite", reason=Reason.MEMORY_NOT_FINITE)
            raise WorkerError("the model's output is not finite")
        return outcomes

    def _of(self, planned: Pass[int] | PassShape) -> Executor[TokenPasses]:
        """The executor of a pass. A pass mixes prompts and decode rows only where one model computes both."""
        return self._prompts if planned.prefills else self._decodes

    @property
    def _executors(self) -> tuple[Executor[TokenPasses], ...]:
        return tuple(dict.fromkeys((self._prompts, self._decodes)))
