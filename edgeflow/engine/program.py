"""One pass as a program over device tensors.

The host decides only by the *shape*; everything else a pass differs in (prompts, pixels, slots, rows, moves) lies in
one buffer, and how far each slot is in the state of the slots. So the program can be run, or recorded once per shape
and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from edgeflow.engine.sampling.sample import SampledRows, SamplingKind, guessed_lines, plain_lines, sample
from edgeflow.engine.shapes import PassShape
from edgeflow.engine.slots import SlotState
from edgeflow.engine.staging import Drafting, PassInputs, PromptContract
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.shift_kv import ShiftKVChain
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.row_operators import Greedy
from edgeflow.models.network import Taps, TokenRows
from edgeflow.scheduler.plan import DraftForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of S slots that have become part of their sequences, one segment after the other.

    slots [S].
    """

    slots: Tensor
    firsts: Tensor
    """[S]: the place of the first row."""
    counts: Tensor
    """[S]: rows of each, without padding."""
    lengths: tuple[int, ...]
    """Rows of each with padding, on the host."""
    features: Tensor | None
    """[sum of lengths, taps * E]: the features of each row, as the base gives them (models.network.Taps); None without
    taps.
    """
    rope: Tensor
    """[C, sum of lengths]: RoPE positions."""
    form: DraftForm
    """The form of the drafts to make."""
    reach: int
    """A bound on where rows end, on the host."""
    layout: PackedLayout
    """The layout of the pass. Layouts of the drafter share what it keeps, so that a graph holds no upload."""
    sampled: bool
    """True when the newest token is known, so that drafts can follow it."""
    on_host: bool
    """True where the drafter may read these tensors on the host."""


class Verifier(Protocol):
    """Verifies tokens after the forward pass, and makes drafts for the next one."""

    taps: tuple[int, ...]
    """Layers of the decoder whose input it reads."""
    store: KVSlots | None
    """Keys and values of the drafter, which follow those of the slots; None where it has none."""

    def verify(
        self, read: ReadRows, logits: Tensor | None, stage: str, kind: SamplingKind, allowed: Tensor | None = None
    ) -> Tensor | None:
        """Sample, and accept the drafts that are right; the slots' lengths and tokens are then the verified ones.

        read: the rows of the pass. logits [n, V]: of its sampled rows, which are the last of each segment, or all rows
        of segments of one length, to be verified; None where nothing is sampled. allowed [n, V]: the tokens that a
        grammar permits; fewer rows than are sampled where it forbids a draft. Returns the lines of
        engine/sampling/sample.py, None where nothing is sampled.
        """
        ...


@dataclass(frozen=True, slots=True)
class PassOutputs:
    """The results of a pass on the device. results int64, a line for each segment that samples (sampling/sample.py);
    logits [n, V] of the sampled rows: None where nothing is sampled.
    """

    results: Tensor | None
    logits: Tensor | None
    features: Tensor | None = None
    """The features of sequences with drafts, as in ReadRows; None for others."""
    layout: PackedLayout | None = None
    """The layout of sequences with drafts; None for others."""

    def copied(self) -> PassOutputs:
        """A copy that no replay overwrites: recordings share their memory."""
        layout, parts = self.layout, (self.results, self.logits, self.features)
        results, logits, features = (None if part is None else part.clone() for part in parts)
        if layout is not None:
            layout = replace(layout, rope_position=layout.rope_position.clone()).sharing(layout, "copied")
        return PassOutputs(results, logits, features, layout)


class PassProgram:
    """Place, ask the network for logits, sample, advance, move.

    greedy, shift: the operators of each stage of a pass. verifier: of sequences whose drafts a drafter makes.
    """

    def __init__(
        self,
        contract: PromptContract,
        kv: KVSlots,
        state: SlotState,
        greedy: Mapping[str, Greedy],
        shift: Mapping[str, ShiftKVChain],
        *,
        verifier: Verifier | None = None,
    ) -> None:
        self._contract = contract
        self._kv = kv
        self._state = state
        self._greedy = greedy
        self._shift_kv = shift
        self._verifier = verifier
        memory = kv.format.memory
        self._turns_by_position = memory is not None and memory.absolute

    def __call__(self, shape: PassShape, inputs: PassInputs) -> PassOutputs:
        layout = inputs.layout
        base = self._place(shape, inputs)
        if shape.drafts:
            self._guess(shape, inputs, base)
        drafted = shape.form is not DraftForm.NONE
        taps = Taps(self._required_verifier.taps) if drafted and self._required_verifier.taps else None
        found = self._contract.network.next_logits(self._rows(shape, inputs), layout, self._kv, taps)
        logits = found if any(shape.samples) else None
        end, results = base + (1 if shape.all_single else inputs.rows), None
        if logits is not None and shape.sampling is not None and not drafted:
            results, end = self._sample(shape, inputs, logits, end, shape.sampling)
        self._state.length.index_copy_(0, inputs.slots, end)
        if drafted:
            features = None if taps is None else taps.features
            outputs = PassOutputs(None, logits, features, layout)
            return outputs if shape.sampling is None else self._verified(shape, inputs, outputs, shape.sampling)
        if shape.moves:
            self._kv.move_rows(self._shift_kv[shape.stage], inputs.moves)  # none reads what one before it has written
            self._state.move(inputs.moves[:, 0], inputs.moves[:, 1])
        return PassOutputs(results, logits)

    def _place(self, shape: PassShape, inputs: PassInputs) -> Tensor:
        """Write where each row enters; returns where each segment does [N]."""
        layout, length, rows = inputs.layout, self._state.length.index_select(0, inputs.slots), sum(shape.prefills)
        # A negative start says that the segment continues its slot, whose length only the device knows.
        base = length if shape.is_continuation else torch.where(inputs.starts < 0, length, inputs.starts)
        if shape.decodes and self._contract.drafting is not None:
            base = base.clamp(max=self._kv.capacity - 1)  # a frame that ended in the pass before may be in this one too
        if shape.all_single:
            layout.row_position.copy_(base)
        else:
            torch.add(base[inputs.row_segment], inputs.row_offset, out=layout.row_position)
            torch.index_select(inputs.slots, 0, inputs.row_segment, out=layout.row_slot)
            if layout.live is not None:
                torch.lt(inputs.row_offset, inputs.rows[inputs.row_segment], out=layout.live)
        if any(rows > 1 for rows in shape.decodes):
            layout.row_position.clamp_(max=self._kv.capacity - 1)  # drafts past the end of a sequence
        position = self._place_in_trees(inputs, base) if shape.tree else layout.row_position
        if self._contract.components > 1:
            self._place_rope(shape, inputs, position)
        elif self._state.folded is not None:
            self._place_folded(inputs, position, self._state.folded)
        elif shape.tree:
            layout.rope_position[0] = position
        if rows and self._contract.keeps_ids:
            self._keep_ids(shape, inputs, base)
        return base

    def _place_in_trees(self, inputs: PassInputs, base: Tensor) -> Tensor:
        """Write what the rows of trees see; returns the position of each in its sequence, less what is folded."""
        layout, tree, visibility = inputs.layout, self._state.tree, inputs.layout.visibility
        if visibility is None or visibility.tree is None or visibility.first is None:
            raise ValueError("rows of a tree need room for what they see")
        first = base[inputs.row_segment]
        visibility.ranges.zero_()
        visibility.ranges[:, 0, 1] = first
        visibility.first.copy_(first)
        visibility.tree.copy_(tree.bits[layout.row_slot, inputs.row_offset])
        return first + tree.depth[layout.row_slot, inputs.row_offset]

    def _place_folded(self, inputs: PassInputs, position: Tensor, folded: Tensor) -> None:
        """Write the RoPE positions of rows in slots with memory."""
        layout = inputs.layout
        layout.rope_position[0] = position
        if self._turns_by_position:
            layout.rope_position[0] += folded[layout.row_slot]
            layout.rope_position.clamp_(max=self._kv.positions - 1)  # padding rows may lie beyond the end

    def _keep_ids(self, shape: PassShape, inputs: PassInputs, base: Tensor) -> None:
        """Store the tokens of prompts, which may be run again or looked up, and the token after each prompt's last
        row.
        """
        given = self._contract.ids(shape.prefills, inputs.numbers)
        for ids, slot, first in zip(given, torch.split(inputs.slots, 1), torch.split(base, 1), strict=False):
            self._state.ids[slot, first + torch.arange(len(ids), device=ids.device)] = ids

    def _guess(self, shape: PassShape, inputs: PassInputs, base: Tensor) -> None:
        """Write the drafts after each prompt: the tokens of another answer, or the first guess."""
        first, prompts = self._drafting.first[: shape.drafts], len(shape.prefills)
        source, position, rows = inputs.guesses.unbind(1)
        ahead = torch.arange(shape.drafts, device=first.device)
        found = self._state.ids[source.clamp(min=0)[:, None], position[:, None] + ahead]
        slots, answer = inputs.slots[:prompts], base[:prompts] + rows
        drafts = torch.where((source >= 0)[:, None], found, first)
        self._state.ids[slots[:, None], answer[:, None] + ahead] = drafts
        self._state.answer.index_copy_(0, slots, answer)

    @property
    def _drafting(self) -> Drafting:
        drafting = self._contract.drafting
        if drafting is None:
            raise ValueError("the prompts of this model have no drafts")
        return drafting

    def _place_rope(self, shape: PassShape, inputs: PassInputs, position: Tensor) -> None:
        """Write RoPE positions: those given with a prompt, and after it places moved by the slot's shift."""
        layout, prompts = inputs.layout, len(shape.prefills)
        rows = sum(shape.prefills)
        given = self._contract.positions(shape.prefills, inputs.numbers) if prompts else None
        if given is not None:
            layout.rope_position[:, :rows], self._state.shift[inputs.slots[:prompts]] = given
        if shape.decodes:
            shift = self._state.shift[layout.row_slot[rows:]]
            layout.rope_position[:, rows:] = position[rows:] + shift

    def _rows(self, shape: PassShape, inputs: PassInputs) -> TokenRows:
        """The rows that enter the network: prompts, then the tokens of the sequences after theirs."""
        layout, contract, prompts = inputs.layout, self._contract, sum(shape.prefills)
        drafted = layout.sampled_rows[inputs.drafts] if shape.drafts else None
        return TokenRows(
            prompts=contract.prompt_rows(shape.prefills, inputs.numbers, inputs.payload) if prompts else (),
            ids=self._tokens(layout, slice(prompts, None)) if shape.decodes else None,
            drafts=None if drafted is None else (drafted, self._tokens(layout, drafted)),
        )

    def _tokens(self, layout: PackedLayout, rows: Tensor | slice) -> Tensor:
        """The tokens that stand where some rows enter."""
        return self._state.ids[layout.row_slot[rows], layout.row_position[rows]]

    def verify(
        self,
        shape: PassShape,
        outputs: PassOutputs,
        slots: Tensor,
        counts: Tensor,
        kind: SamplingKind,
        allowed: Tensor | None = None,
        *,
        on_host: bool,
    ) -> Tensor | None:
        """The results of a pass with drafts. slots, counts [N]: of its segments; counts without padding. ValueError
        where its segments are not alike.
        """
        several = shape.most_samples > 1
        if outputs.layout is None or (several and not shape.is_verification):
            raise ValueError("drafts cannot be verified beside prompts")
        if len(set(shape.samples)) > 1 or (several and len(set(shape.lengths)) > 1):
            raise ValueError(
                f"sequences with drafts share a pass where all sample alike: {shape.samples} of {shape.lengths} rows"
            )
        read = ReadRows(
            slots=slots,
            firsts=self._state.length.index_select(0, slots) - counts,
            counts=counts,
            lengths=shape.lengths,
            features=outputs.features,
            rope=outputs.layout.rope_position,
            form=shape.form,
            reach=shape.reach,
            layout=outputs.layout,
            sampled=outputs.logits is not None,
            on_host=on_host,
        )
        return self._required_verifier.verify(read, outputs.logits, shape.stage, kind, allowed)

    def _verified(self, shape: PassShape, inputs: PassInputs, outputs: PassOutputs, kind: SamplingKind) -> PassOutputs:
        counts = torch.ones_like(inputs.slots) if shape.all_single else inputs.rows
        on_host = inputs.layout.places is not None and inputs.slots.device.type == "cpu"
        results = self.verify(shape, outputs, inputs.slots, counts, kind, on_host=on_host)
        return replace(outputs, results=results)

    @property
    def _required_verifier(self) -> Verifier:
        if self._verifier is None:
            raise ValueError("nobody drafts for the sequences of this executor")
        return self._verifier

    def sample(self, logits: Tensor, slots: Tensor, kind: SamplingKind, allowed: Tensor | None = None) -> Tensor:
        """The results of one row of each slot [n], after the end of its sequence."""
        places = self._state.length[slots]
        drawn = self._state.drawn(slots, places)
        rows = sample(
            logits, self._state.sampling, slots, drawn, kind=kind, greedy=self._greedy["decode"], allowed=allowed
        )
        return plain_lines(self._store(rows, slots, places, kind))

    def _store(self, rows: SampledRows, slots: Tensor, places: Tensor, kind: SamplingKind) -> SampledRows:
        """A token is stored at the position where it enters its slot, and counted where penalties ask for it."""
        self._state.ids[slots, places] = rows.ids
        if kind.penalised and self._state.sampling is not None:
            self._state.sampling.remember(slots, rows.ids)
        return rows

    def _sample(
        self, shape: PassShape, inputs: PassInputs, logits: Tensor, end: Tensor, kind: SamplingKind
    ) -> tuple[Tensor, Tensor]:
        """The results, and where each slot ends [N]."""
        slots, places = inputs.slots, end
        if not shape.one_sample_each:
            slots = slots[inputs.owner]
            places = inputs.layout.row_position[inputs.layout.sampled_rows] + 1
        drawn = self._state.drawn(slots, places)
        rows = sample(logits, self._state.sampling, slots, drawn, kind=kind, greedy=self._greedy[shape.stage])
        if shape.most_samples == 1:
            return plain_lines(self._store(rows, slots, places, kind)), end
        return self._accept_guesses(inputs, rows, slots, places, end)

    def _accept_guesses(
        self, inputs: PassInputs, rows: SampledRows, slots: Tensor, places: Tensor, end: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens are verified up to the first that replaces a wrong draft, or that is not of finite logits. A draft is
        right if it is the token that its row gives, or near enough.
        """
        drafted, spread, counts = self._state.ids[slots, places], inputs.spread, inputs.counts[:, None]
        at = torch.arange(spread.shape[1], device=spread.device)
        near = self._drafting.near
        allowed = near[(places - self._state.answer[slots]).clamp(0, len(near) - 1)] * inputs.tolerance[inputs.owner]
        right = (((drafted - rows.ids).abs() <= allowed) & rows.finite)[spread] & (at < counts - 1)
        # The token in place of the first wrong draft is verified too: its row saw only verified ones.
        verified = 1 + right.long().cumprod(1).sum(1, keepdim=True)
        results = guessed_lines(rows, spread, counts, verified)
        self._state.ids[slots, places] = rows.ids
        return results, end.index_add(0, inputs.owner[spread[:, 0]], (verified - counts).flatten())
