"""Runs of recorded prompts with trees of an EAGLE-3 head on the executor that serves, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, run_pass
from edgeflow.engine.drafts.drafters import Drafter
from edgeflow.engine.drafts.kinds import Eagle
from edgeflow.engine.program import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.lab.verify.eagle_bundle import EagleCase
from edgeflow.lab.verify.recorded.comparison import FEATURE_TOLERANCE, CheckResult, compare, mismatches
from edgeflow.scheduler.plan import DraftForm


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTree:
    """A tree of n rows as a verification will run it, the newest token first: token, parent, depth, and what it sees,
    as bits (kernels/kv/sees.py), of each row.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    bits: list[int]

    @property
    def paths(self) -> list[list[int]]:
        """The rows from the root to each leaf, leaves by ascending row, all of one length: -1 behind the leaf."""
        inner, width = set(self.parents[1:]), max(self.depths) + 1
        found = [self._path(row) for row in range(len(self.tokens)) if row not in inner]
        return [path + [-1] * (width - len(path)) for path in found]

    @property
    def mask(self) -> Tensor:
        """[n, n] float64: 1 where a row sees another one."""
        rows = range(len(self.tokens))
        return torch.tensor([[float(bits >> row & 1) for row in rows] for bits in self.bits], dtype=torch.float64)

    def best(self, accepted: Sequence[int]) -> int:
        """The first path that has these tokens behind the root; -1 where none has."""
        for index, path in enumerate(self.paths):
            if [self.tokens[row] for row in path[1 : 1 + len(accepted)] if row >= 0] == list(accepted):
                return index
        return -1

    def _path(self, row: int) -> list[int]:
        path = [row]
        while path[0]:
            path.insert(0, self.parents[path[0]])
        return path


@dataclass(slots=True, eq=False)
class Notes:
    """The rows that the drafter of an engine read, and the trees that it planted, for one request after the other."""

    reads: list[ReadRows] = field(default_factory=list)
    trees: list[FoundTree] = field(default_factory=list)

    def begin(self, known: Sequence[ReadRows] = ()) -> None:
        """Forget the request before. known: reads of the prefix that is continued."""
        self.reads, self.trees = list(known), []

    def features(self) -> dict[int, Tensor]:
        """Those of each place that was read [taps * E]; the latest ones of a place that was read twice."""
        found: dict[int, Tensor] = {}
        for read in self.reads:
            if read.features is not None:
                first, count = int(read.firsts[0]), int(read.counts[0])
                found |= {first + at: read.features[at] for at in range(count)}
        return found


@dataclass(frozen=True, slots=True)
class NotedEagle:
    """Drafts of a head, with notes. A `DraftKind`."""

    kind: Eagle
    notes: Notes

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def form(self) -> DraftForm:
        return self.kind.form

    @property
    def rows(self) -> int:
        return self.kind.rows

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        return _NotingDrafter(self.kind.drafter(kv, state), state, self.notes)


class _NotingDrafter:
    def __init__(self, drafter: Drafter, state: SlotState, notes: Notes) -> None:
        self._drafter = drafter
        self._state = state
        self._notes = notes

    @property
    def taps(self) -> tuple[int, ...]:
        return self._drafter.taps

    @property
    def store(self) -> KVSlots | None:
        return self._drafter.store

    def width(self, form: DraftForm) -> int:
        return self._drafter.width(form)

    def rows(self, form: DraftForm) -> int:
        return self._drafter.rows(form)

    def draft(self, read: ReadRows) -> Tensor:
        """As the drafter itself, for one sequence; waits for the device."""
        found = self._drafter.draft(read)
        self._notes.reads.append(read)
        if read.sampled:
            self._notes.trees.append(self._tree(int(read.slots), int(read.firsts + read.counts), 1 + int(found)))
        return found

    def _tree(self, slot: int, root: int, rows: int) -> FoundTree:
        tree = self._state.tree
        return FoundTree(
            tokens=self._state.ids[slot, root : root + rows].tolist(),
            parents=tree.parent[slot, :rows].tolist(),
            depths=tree.depth[slot, :rows].tolist(),
            bits=tree.bits[slot, :rows].tolist(),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EagleRun:
    """A case, run. settled: tokens of each pass, that of the prompt first. trees: behind each pass. features: by
    place.
    """

    settled: list[tuple[int, ...]]
    trees: list[FoundTree]
    features: dict[int, Tensor]


def run_noted(engine: ChatEngine, notes: Notes, case: EagleCase, request: Generation, chunk: int) -> EagleRun:
    """Run all verifications that were recorded, and more where these give fewer tokens. chunk: rows of the prompt in a
    pass. notes: of the engine, of this request and of the prefix before it.
    """
    settled: list[tuple[int, ...]] = []
    while request.finish is None and (len(settled) < len(case.trees) or len(request.tokens) < len(case.answer)):
        (step,) = run_pass(engine, [request], chunk if request.plan.left else engine.rule().rows)
        if step.sampled is not None:
            settled.append(step.sampled.tokens)
    return EagleRun(settled=settled, trees=notes.trees, features=notes.features())


def check_run(case: EagleCase, run: EagleRun) -> Iterator[CheckResult]:
    """Compare all that was recorded; a tree or a row that the run lacks is infinitely off."""
    tokens = [token for settled in run.settled for token in settled][: len(case.answer)]
    accepted = [len(settled) - 1 for settled in run.settled[1:]]
    verified = zip(run.trees, run.settled[1:], strict=False)
    best = [tree.best(settled[:-1]) for tree, settled in verified]
    yield CheckResult(case.name, "tokens", mismatches(tokens, case.answer), 0)
    yield CheckResult(case.name, "accept lengths", mismatches(accepted, case.accepted), 0)
    yield CheckResult(case.name, "best candidates", mismatches(best, case.best), 0)
    for step in range(len(case.trees)):
        yield from _check_tree(case, run, step)
    starts = [0, *case.roots]
    for step, wanted in case.features.items():
        places = range(starts[step], starts[step + 1])
        rows = [run.features[place] for place in places if place in run.features]
        if len(rows) < len(places):
            yield CheckResult(case.name, f"tree {step}: draft inputs", math.inf, FEATURE_TOLERANCE)
        else:
            yield compare(case.name, f"tree {step}: draft inputs", torch.stack(rows), wanted, FEATURE_TOLERANCE)


def _check_tree(case: EagleCase, run: EagleRun, step: int) -> Iterator[CheckResult]:
    wanted = case.trees[step]
    if step >= len(run.trees):
        yield CheckResult(case.name, f"tree {step}: drafts", math.inf, 0)
        return
    found = run.trees[step]
    yield CheckResult(case.name, f"tree {step}: drafts", mismatches(found.tokens, wanted.tokens), 0)
    yield CheckResult(case.name, f"tree {step}: paths", mismatches(found.paths, wanted.paths), 0)
    yield CheckResult(case.name, f"tree {step}: positions", mismatches(found.depths, wanted.depths), 0)
    if step in case.masks:
        yield compare(case.name, f"tree {step}: mask", found.mask, case.masks[step], 0)
