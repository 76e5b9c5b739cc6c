"""A decoder of tokens as graphs of fixed shapes (engine/policy.Decoder): a prefill for each run of rows of a prompt,
and one batched step for all single rows of a pass.

Rows are opaque to the executor. Those of prompts may be embedded by the towers already; all others hold their token.
Slots begin as zeros: a masked place counts 0 times its value, so it must be finite. Where an output is not finite, all
slots are cleared after what their sequences see before they run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgeflow.artifacts.files import TokenForm
from edgeflow.artifacts.manifest import Array, KVForm, Manifest, kv_arrays, spec, zeros
from edgeflow.artifacts.sessions import BoundGraph, GraphSession, Runtime, load_sessions
from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.models.llama import LlamaConfig, Taps

BOUND = 256
"""Bindings of a graph that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A run of a step's graph."""

    size: int
    """B, the batch of the graph."""
    rows: tuple[int, ...]
    """The rows of the pass that it takes."""
    lines: tuple[int, ...]
    """The line of the batch for each of these rows."""
    first: int | None
    """The slot of line 0, where lines are slots that follow each other; None where the keys and values of each row
    are copied into the batch.
    """


def step_batches(slots: Sequence[int], sizes: Sequence[int], there: int) -> list[StepBatch]:
    """The batches of rows in these slots. sizes: of the graphs, ascending. there: slots of the store.

    Each batch is of the smallest size that holds what is left, and of the largest where none does. Where the slots of
    its rows lie within that many, the batch is a run of slots in place; lines between them are computed and ignored.
    """
    left = sorted(range(len(slots)), key=lambda row: slots[row])
    found = []
    while left:
        size = next((each for each in sizes if each >= len(left)), sizes[-1])
        rows, left = left[:size], left[size:]
        found.append(_batch(rows, [slots[row] for row in rows], size, there))
    return found


def _batch(rows: Sequence[int], slots: Sequence[int], size: int, there: int) -> StepBatch:
    first = min(slots[0], there - size)
    lines = tuple(slot - first for slot in slots)
    if first < 0 or lines[-1] >= size or len(set(slots)) < len(slots):
        return StepBatch(size=size, rows=tuple(rows), lines=tuple(range(len(rows))), first=None)
    return StepBatch(size=size, rows=tuple(rows), lines=lines, first=first)


class BatchedStep:
    """The graph of a step of one batch, over the slots of a store. kv [layers, 2, S, T, KH, D]

    _inputs: besides keys and values.
    """

    _outputs: dict[str, Array]
    """The arrays of all outputs, set by the subclass."""

    def __init__(self, session: GraphSession, kv: Array) -> None:
        self._kv = kv
        self._session = session
        own = [each for each in session.graph.inputs if not each.name.startswith(("key.", "value."))]
        self._inputs = {each.name: zeros(each) for each in own}
        self._copied: Array = np.zeros(0, np.float32)  # takes memory once it is needed
        self._over = lru_cache(BOUND)(self._bound)

    def _run(self, batch: StepBatch, slots: Sequence[int]) -> None:
        """Run the graph over slots in place, or over copies of the slots of the batch's rows."""
        if batch.first is None:
            if not self._copied.size:
                self._copied = np.zeros((*self._kv.shape[:2], batch.size, *self._kv.shape[3:]), np.float32)
            for line, slot in enumerate(slots):
                self._copied[:, :, line] = self._kv[:, :, slot]
        self._over(batch.first).run()

    def _bound(self, first: int | None) -> BoundGraph:
        past = self._copied if first is None else self._kv[:, :, first : first + self._session.graph.batch]
        return self._session.bind(self._inputs | kv_arrays(past), self._outputs)


CPU = torch.device("cpu")
TOKEN = 0
"""The place in a row that holds its token, exact up to 2**24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGraphs:
    """The loaded graphs."""

    kv: KVForm
    width: int
    """E, the width of the model."""
    vocabulary: int
    """V, the size of the vocabulary."""
    token_towers: bool
    """True where the towers only embed tokens, so that the rows of prompts are tokens too."""
    towers: tuple[GraphSession, ...]
    """The towers of each bucket, the shortest first."""
    prefills: tuple[GraphSession, ...]
    """The prefill of each bucket, in the same order."""
    steps: tuple[GraphSession, ...]
    """The step of each batch size, the smallest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRows:
    """Rows of one slot in a pass."""

    slot: int
    first: int
    """The index of the first row in the pass."""
    start: int
    """The position of the first row in the slot."""
    length: int
    sampled: int | None
    """The line of the results for its last row; None where that is not sampled."""


class StaticDecoder:
    """The decoder of exported graphs. name: as in Decoder. config: the configuration of the exported decoder."""

    def __init__(self, graphs: TokenGraphs, name: str, config: LlamaConfig) -> None:
        self.name = name
        self.config = config
        self.graphs = graphs
        self.dtype, self.device = torch.float32, CPU

    def embed(self, ids: Tensor) -> Tensor:
        """[n] → [n, E] rows that hold their token"""
        rows = torch.zeros(len(ids), self.graphs.width)
        rows[:, TOKEN] = ids
        return rows

    def forward_sampled(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots, taps: Taps | None = None) -> Tensor:
        """[L_Q, E] → logits of the sampled rows [n, V]; ValueError for taps, and for drafts."""
        if taps is not None:
            raise ValueError("exported graphs do not show what enters their layers")
        store: _Store = kv.kept("exported graphs", lambda made: _Store(self.graphs, made))
        return store.run(hidden, rows_of(layout), len(layout.sampled_rows))

    def logits(self, hidden: Tensor, stage: str) -> Tensor:  # noqa: ARG002 - they are logits already
        """The logits [n, V], unchanged."""
        return hidden

    def reads_places(self, kv: KVSlots) -> bool:  # noqa: ARG002
        """True: graphs run on the host."""
        return True

    def kv_slots(self, slots: int, capacity: int, format: KVFormat | None = None) -> KVSlots:  # noqa: ARG002
        """Slots of the exported positions; ValueError for another format."""
        if format not in (None, DENSE):
            raise ValueError(f"exported graphs read keys and values in float32, not in {format and format.name}")
        form = self.graphs.kv
        return KVSlots(
            layers=form.layers,
            slots=slots,
            capacity=form.positions,
            kv_heads=form.kv_heads,
            head_dim=form.head_dim,
            dtype=torch.float32,
            device=CPU,
        )


def rows_of(layout: PackedLayout) -> list[SlotRows]:
    """The segments of a pass on the host; ValueError where one samples several rows, as drafts do."""
    slots, positions = layout.row_slot.tolist(), layout.row_position.tolist()
    lines = {row: line for line, row in enumerate(layout.sampled_rows.tolist())}
    found, first = [], 0
    for length in layout.lengths:
        sampled = [lines[row] for row in range(first, first + length) if row in lines]
        if len(sampled) > 1 or (sampled and first + length - 1 not in lines):
            raise ValueError("exported graphs sample the last row of a segment; they verify no drafts")
        found.append(
            SlotRows(
                slot=slots[first],
                first=first,
                start=positions[first],
                length=length,
                sampled=sampled[0] if sampled else None,
            )
        )
        first += length
    return found


class _Store:
    """The graphs over the slots of one store. kv [layers, 2, S, T, KH, D]"""

    def __init__(self, graphs: TokenGraphs, slots: KVSlots) -> None:
        self.kv: Array = slots.data.numpy()
        self._graphs = graphs
        self._unclean: set[int] = set()
        towers = graphs.towers if graphs.token_towers else (None,) * len(graphs.prefills)
        pairs = zip(towers, graphs.prefills, strict=True)
        self._prefills = [_Prefill(tower, prefill, self.kv) for tower, prefill in pairs]
        self._steps = {each.graph.batch: _TokenStep(each, self.kv) for each in graphs.steps}

    def run(self, hidden: Tensor, segments: Sequence[SlotRows], samples: int) -> Tensor:
        """Logits [samples, V]; keys and values enter the slots."""
        rows, logits = hidden.numpy(), np.empty((samples, self._graphs.vocabulary), np.float32)
        finite = True
        for each in segments:
            self._clean(each)
        single = [each for each in segments if each.length == 1]
        for each in segments:
            if each.length > 1:
                finite &= self._prompt(each, rows, logits)
        if single:
            tokens = rows[[each.first for each in single], TOKEN].astype(np.int64)
            for batch in step_batches([each.slot for each in single], list(self._steps), self.kv.shape[2]):
                finite &= self._steps[batch.size].run(batch, single, tokens, logits)
        if not finite:
            self._unclean = set(range(self.kv.shape[2]))
        return torch.from_numpy(logits)

    def _prompt(self, segment: SlotRows, rows: Array, logits: Array) -> bool:
        """Run rows of a prompt, in as many prefills as they need; True where the logits are finite."""
        finite, done, longest = True, 0, self._prefills[-1].rows
        while done < segment.length:
            count = min(segment.length - done, longest)
            prefill = next(each for each in self._prefills if each.rows >= count)
            own = rows[segment.first + done : segment.first + done + count]
            last = prefill.run(segment.slot, segment.start + done, own)
            finite &= bool(np.isfinite(last).all())
            done += count
        if segment.sampled is not None:
            logits[segment.sampled] = last
        return finite

    def _clean(self, segment: SlotRows) -> None:
        """Clear the places after those of a sequence, where they may hold numbers that are not finite."""
        if segment.slot in self._unclean:
            self.kv[:, :, segment.slot, segment.start :] = 0.0
            self._unclean.discard(segment.slot)


class _Prefill:
    """A prefill, after the towers where rows are tokens."""

    def __init__(self, towers: GraphSession | None, prefill: GraphSession, kv: Array) -> None:
        graph = prefill.graph
        self.rows, self._past = graph.rows, graph.past
        self._kv = kv
        own = [each for each in graph.inputs if not each.name.startswith(("key.", "value."))]
        self._inputs = {each.name: zeros(each) for each in own}
        self._logits = zeros(next(each for each in graph.outputs if each.name == "logits"))
        self._made = np.zeros((*kv.shape[:2], 1, self.rows, *kv.shape[4:]), np.float32)
        self._session = prefill
        self._over = lru_cache(BOUND)(self._bound)
        self._ids = np.zeros((1, self.rows), np.int64)
        self._towers = towers.bind({"ids": self._ids}, {"hidden": self._inputs["hidden"]}) if towers else None

    def run(self, slot: int, start: int, rows: Array) -> Array:
        """Logits [V] of the last of some rows [n, E]; their keys and values enter the slot from `start` on."""
        given, count, past = self._inputs, len(rows), self._past
        if self._towers is None:
            given["hidden"][0, :count] = rows
            given["hidden"][0, count:] = 0.0
        else:
            self._ids[0, :count] = rows[:, TOKEN]
            self._ids[0, count:] = 0
            self._towers.run()
        given["position"][0] = 0
        given["position"][0, :count] = np.arange(start, start + count)
        seen = given["seen"][0]
        seen[:] = False
        seen[:, past:] = np.eye(self.rows, dtype=bool)
        seen[:count, :start] = start > 0
        seen[:count, past : past + count] = np.tri(count, dtype=bool)
        given["sampled"][0] = count - 1
        self._over(slot if past else 0).run()
        self._kv[:, :, slot, start : start + count] = self._made[:, :, 0, :count]
        logits: Array = self._logits[0]
        return logits

    def _bound(self, slot: int) -> BoundGraph:
        past = kv_arrays(self._kv[:, :, slot : slot + 1]) if self._past else {}
        outputs = {"logits": self._logits, **kv_arrays(self._made, "_rows")}
        return self._session.bind(self._inputs | past, outputs)


class _TokenStep(BatchedStep):
    def __init__(self, session: GraphSession, kv: Array) -> None:
        super().__init__(session, kv)
        self._inputs["seen"][:, 0, -1] = True  # lines that are ignored see themselves
        self._logits = zeros(next(each for each in session.graph.outputs if each.name == "logits"))
        self._made = np.zeros((*kv.shape[:2], session.graph.batch, 1, *kv.shape[4:]), np.float32)
        self._outputs = {"logits": self._logits, **kv_arrays(self._made, "_rows")}

    def run(self, batch: StepBatch, segments: Sequence[SlotRows], tokens: Array, logits: Array) -> bool:
        """Logits of the batch's rows; whether all are finite. Keys and values enter the slots."""
        own, lines = [segments[row] for row in batch.rows], list(batch.lines)
        slots, starts = [each.slot for each in own], np.array([each.start for each in own])
        given = self._inputs
        given["ids"][lines, 0] = tokens[list(batch.rows)]
        given["position"][lines, 0] = starts
        given["seen"][lines, 0, :-1] = np.arange(self._kv.shape[3]) < starts[:, None]
        self._run(batch, slots)
        self._kv[:, :, slots, starts] = self._made[:, :, lines, 0]
        found = self._logits[lines]
        for each, row in zip(own, found, strict=True):
            if each.sampled is not None:
                logits[each.sampled] = row
        return bool(np.isfinite(found).all())


def token_form(config: LlamaConfig, images: tuple[int, ...] | None) -> TokenForm:
    """The form of a decoder's graphs. images: the shape of pixel_values of a policy; None of a chat model."""
    return TokenForm(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        width=config.hidden_size,
        vocabulary=config.vocab_size,
        images=() if images is None else (spec("pixel_values", *images),),
        chunks=images is None,
    )


def load_token_graphs(folder: Path, manifest: Manifest, form: TokenForm, runtime: Runtime) -> TokenGraphs:
    """Compare the files with the manifest and load the graphs; CheckpointError or ConfigError says what is wrong."""
    sessions = load_sessions(folder, manifest, runtime)
    return TokenGraphs(
        kv=manifest.kv, width=form.width, vocabulary=form.vocabulary, token_towers=form.chunks, **sessions
    )
