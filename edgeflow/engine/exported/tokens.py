"""A network of tokens as graphs of fixed shapes: a prefill for the rows of each prompt, and one batched step for all
single tokens of a pass.

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
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.network import Taps, TokenRows

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


class SlotGraph:
    """A graph over a run of slots of a store. kv [layers, 2, S, T, KH, D]

    _inputs: besides keys and values.
    """

    _outputs: dict[str, Array]
    """The arrays of all outputs, set by the subclass."""

    def __init__(self, session: GraphSession, kv: Array) -> None:
        self._kv = kv
        self._session = session
        own = [each for each in session.graph.inputs if not each.name.startswith(("key.", "value."))]
        self._inputs = {each.name: zeros(each) for each in own}
        self._reads_slots = len(own) < len(session.graph.inputs)
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
        return self._session.bind(self._inputs | (kv_arrays(past) if self._reads_slots else {}), self._outputs)


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedGraphs:
    """The loaded graphs."""

    kv: KVForm
    towers: tuple[GraphSession, ...]
    """The towers of each bucket, the shortest first."""
    prefills: tuple[GraphSession, ...]
    """The prefill of each bucket, in the same order."""
    steps: tuple[GraphSession, ...]
    """The step of each batch size, the smallest first."""

    @classmethod
    def load(cls, folder: Path, manifest: Manifest, runtime: Runtime) -> ExportedGraphs:
        """Compare the files with the manifest and load them; CheckpointError or ConfigError says what is wrong."""
        return cls(kv=manifest.kv, **load_sessions(folder, manifest, runtime))


class ExportedNetwork:
    """The network of exported graphs (models/network.TokenNetwork), in float32 on the host.

    Prompts are token ids [n, 1] where nothing else enters the towers, otherwise the rows that these return [n, E].
    """

    dtype = torch.float32

    def __init__(self, graphs: ExportedGraphs, name: str) -> None:
        self.name = name
        self._graphs = graphs

    def next_logits(self, rows: TokenRows, layout: PackedLayout, kv: KVSlots, taps: Taps | None = None) -> Tensor:
        """As in TokenNetwork; ValueError for taps, and for drafts."""
        samples = layout.samples or (1,) * len(layout.spans)
        if taps is not None or max(samples) > 1:
            raise ValueError("exported graphs do not show what enters their layers, and verify no drafts")
        store: _Store = kv.kept("exported graphs", lambda made: _Store(self._graphs, made))
        logits = store.run(rows, layout.spans)
        return torch.from_numpy(logits if all(samples) else logits[np.array(samples, bool)])

    def reads_places(self, kv: KVSlots) -> bool:  # noqa: ARG002
        """True: graphs run on the host."""
        return True

    def kv_slots(self, slots: int, capacity: int, format: KVFormat | None = None) -> KVSlots:  # noqa: ARG002
        """Slots of the exported positions; ValueError for another format."""
        if format not in (None, DENSE):
            raise ValueError(f"exported graphs read keys and values in float32, not in {format and format.name}")
        form = self._graphs.kv
        return KVSlots(
            layers=form.layers,
            slots=slots,
            capacity=form.positions,
            kv_heads=form.kv_heads,
            head_dim=form.head_dim,
            dtype=self.dtype,
            device=CPU,
        )


class Towers:
    """The towers of one bucket. hidden [1, P, E]: where they write. text: its tokens; fixed: its other rows."""

    def __init__(self, session: GraphSession, hidden: Array | None = None) -> None:
        self._inputs = {each.name: zeros(each) for each in session.graph.inputs}
        self._hidden = zeros(session.graph.outputs[0]) if hidden is None else hidden
        self._bound = session.bind(self._inputs, {"hidden": self._hidden})
        self.text = self._inputs["ids"].shape[1]
        self.fixed = session.graph.rows - self.text

    def run(self, ids: Array, **others: Array) -> Array:
        """Rows of a prompt [fixed + t, E], which the next run overwrites. ids: [t]; others: its other inputs."""
        given = self._inputs
        for name, each in others.items():
            given[name][0] = each
        given["ids"][0, : len(ids)] = ids
        given["ids"][0, len(ids) :] = 0
        self._bound.run()
        return self._hidden[0, : self.fixed + len(ids)]


class _Store:
    """The graphs over the slots of one store. kv [layers, 2, S, T, KH, D]"""

    def __init__(self, graphs: ExportedGraphs, slots: KVSlots) -> None:
        self.kv: Array = slots.data.numpy()
        self._unclean: set[int] = set()
        self._prefills = [_Prefill(*each, self.kv) for each in zip(graphs.towers, graphs.prefills, strict=True)]
        self._steps = {each.graph.batch: _TokenStep(each, self.kv) for each in graphs.steps}
        self._vocabulary = self._prefills[0].logits.shape[1]

    def run(self, rows: TokenRows, spans: Sequence[Span]) -> Array:
        """Logits of the last row of each span [N, V]; keys and values enter the slots."""
        prompts = [each.numpy() for each in rows.prompts]
        logits = np.empty((len(spans), self._vocabulary), np.float32)
        tokens = np.zeros(len(spans), np.int64)
        if rows.ids is not None:
            tokens[len(prompts) :] = rows.ids
        for span in spans:
            if span.slot in self._unclean:  # places after those of its sequence may hold numbers that are not finite
                self.kv[:, :, span.slot, span.start :] = 0.0
                self._unclean.discard(span.slot)
        for at, own in enumerate(prompts):
            if len(own) == 1:
                tokens[at] = own[0, 0]
            else:
                logits[at] = self._prompt(spans[at], own)
        single = [at for at, span in enumerate(spans) if span.length == 1]
        for batch in step_batches([spans[at].slot for at in single], list(self._steps), self.kv.shape[2]):
            ran = [single[row] for row in batch.rows]
            logits[ran] = self._steps[batch.size].run(batch, [spans[at] for at in ran], tokens[ran])
        if not np.isfinite(logits).all():
            self._unclean = set(range(self.kv.shape[2]))
        return logits

    def _prompt(self, span: Span, rows: Array) -> Array:
        """Logits [V] of the last of a prompt's rows, after as many prefills as they need."""
        longest = self._prefills[-1].rows
        for done in range(0, len(rows), longest):
            own = rows[done : done + longest]
            prefill = next(each for each in self._prefills if each.rows >= len(own))
            last = prefill.run(span.slot, span.start + done, own)
        return last


class _TokenGraph(SlotGraph):
    """A graph that returns logits [B, V], and the keys and values of its rows."""

    def __init__(self, session: GraphSession, kv: Array) -> None:
        super().__init__(session, kv)
        graph = session.graph
        self.logits = zeros(next(each for each in graph.outputs if each.name == "logits"))
        self._made = np.zeros((*kv.shape[:2], graph.batch, graph.rows, *kv.shape[4:]), np.float32)
        self._outputs = {"logits": self.logits, **kv_arrays(self._made, "_rows")}


class _Prefill(_TokenGraph):
    """A prefill, after the towers where rows are tokens."""

    def __init__(self, towers: GraphSession, prefill: GraphSession, kv: Array) -> None:
        super().__init__(prefill, kv)
        self.rows, self._past = prefill.graph.rows, prefill.graph.past
        self._towers = Towers(towers, self._inputs["hidden"]) if len(towers.graph.inputs) == 1 else None

    def run(self, slot: int, start: int, rows: Array) -> Array:
        """Logits [V] of the last of some rows [n, W]; their keys and values enter the slot from `start` on."""
        given, count, past = self._inputs, len(rows), self._past
        if self._towers is None:
            given["hidden"][0, :count] = rows
            given["hidden"][0, count:] = 0.0
        else:
            self._towers.run(rows[:, 0])
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
        last: Array = self.logits[0]
        return last


class _TokenStep(_TokenGraph):
    """A step. Lines that are ignored see themselves."""

    def __init__(self, session: GraphSession, kv: Array) -> None:
        super().__init__(session, kv)
        self._inputs["seen"][:, 0, -1] = True

    def run(self, batch: StepBatch, spans: Sequence[Span], tokens: Array) -> Array:
        """Logits after the tokens of the batch's rows [n, V]; their keys and values enter the slots."""
        lines, slots = list(batch.lines), [each.slot for each in spans]
        starts, given = np.array([each.start for each in spans]), self._inputs
        given["ids"][lines, 0] = tokens
        given["position"][lines, 0] = starts
        given["seen"][lines, 0, :-1] = np.arange(self._kv.shape[3]) < starts[:, None]
        self._run(batch, slots)
        self._kv[:, :, slots, starts] = self._made[:, :, lines, 0]
        return self.logits[lines]


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
