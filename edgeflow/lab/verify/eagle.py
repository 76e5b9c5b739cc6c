"""Checks of an EAGLE-3 head with its base against recorded runs, in float32, on the executor that serves.

With trees of the recorded sizes every value is compared: the features that the head reads, the trees, the accepted
parts, and the tokens. Other drafts and narrower passes must give the recorded tokens too; over INT8 KV all drafts must
give the tokens of decoding without drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation
from edgeflow.engine.drafts.drafters import Drafter
from edgeflow.engine.drafts.kinds import DraftKind, Eagle, Lookup
from edgeflow.engine.program import ReadRows
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.formats import DENSE, INT8, KVFormat
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.lab.verify.comparison import (
    FEATURE_TOLERANCE,
    CheckResult,
    Progress,
    Results,
    compare,
    mismatches,
    mismatches_but_ties,
    silent,
)
from edgeflow.lab.verify.eagle_bundle import BASE, HEAD, EagleBundle, EagleCase, read_eagle_bundle
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.eagle3.config import read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.published import read_published
from edgeflow.scheduler.plan import DraftForm

Check = Callable[[EagleCase], Iterator[CheckResult]]
CPU = torch.device("cpu")
CHUNK = 5
WHOLE = 1 << 20  # more rows than any prompt has


def verify_eagle(directory: Path, progress: Progress = silent, device: torch.device = CPU) -> Results:
    """Every comparison with its way of computing; CheckpointError if the directory is not a bundle."""
    bundle, ways = prepare(directory, device)
    checks = {**ways.recorded(), **ways.tokens()}
    results: Results = []
    for index, (name, check) in enumerate(checks.items()):
        progress(name, index, len(checks))
        results += [(name, result) for case in bundle.cases for result in check(case)]
    return results


def prepare(directory: Path, device: torch.device = CPU) -> tuple[EagleBundle, EagleChecks]:
    """Read a bundle and its checkpoints; CheckpointError or ConfigError if they are broken or do not fit."""
    base = read_published(directory / BASE).text
    config = read_eagle3(directory / HEAD, base)
    bundle = read_eagle_bundle(directory, base, config)
    model = load_chat_model(directory / BASE, torch.float32, device, text=False)
    head = Eagle3Head.read(directory / HEAD, config, model.decoder, torch.float32, device)
    return bundle, EagleChecks(model, head, bundle)


@dataclass(frozen=True, slots=True)
class EagleChecks:
    """The checks for each way of running the cases of a bundle."""

    model: ChatModel
    head: Eagle3Head
    bundle: EagleBundle

    def recorded(self) -> dict[str, Check]:
        """Ways to run trees, by name; every recorded value is compared."""
        return {
            "trees": lambda case: check_run(case, self.alone(case, WHOLE)),
            f"trees, chunks of {CHUNK}": lambda case: check_run(case, self.alone(case, CHUNK)),
            "trees, prefix": lambda case: check_run(case, self._behind_prefix(case, 0)),
            "trees, prefix, copied": lambda case: check_run(case, self._behind_prefix(case, 1)),
        }

    def tokens(self) -> dict[str, Check]:
        """Ways to run with other drafts, or none, by name; only tokens are compared."""
        checks = {
            "no drafts": lambda case: self._check_tokens(case, None, WHOLE),
            "chains": lambda case: self._check_tokens(case, self._chains, WHOLE),
            "look-up": lambda case: self._check_tokens(case, Lookup(), WHOLE),
            f"trees, passes of {CHUNK}": lambda case: self._check_tokens(case, self._trees, CHUNK),
        }
        dense = self.model.config.attention.kv_format is DENSE
        return checks | {"INT8 KV": self._check_int8} if dense else checks

    @property
    def _trees(self) -> Eagle:
        return Eagle(head=self.head, tree=self.bundle.sizes, depth=self.bundle.sizes.depth)

    @property
    def _chains(self) -> Eagle:
        return Eagle(head=self.head, tree=None, depth=self.bundle.sizes.depth)

    def _check_tokens(self, case: EagleCase, kind: DraftKind | None, chunk: int) -> Iterator[CheckResult]:
        """Compare with the recorded tokens.

        chunk: the most rows of a pass.
        """
        tokens, _ = self._answer(case, kind, chunk)
        yield CheckResult(case.name, "tokens", mismatches(tokens, case.answer), 0)

    def _check_int8(self, case: EagleCase) -> Iterator[CheckResult]:
        """Compare with the tokens of decoding without drafts."""
        wanted, logits = self._answer(case, None, WHOLE, INT8)
        kinds: dict[str, DraftKind] = {"trees": self._trees, "chains": self._chains, "look-up": Lookup()}
        for name, kind in kinds.items():
            tokens, _ = self._answer(case, kind, WHOLE, INT8)
            yield CheckResult(case.name, f"tokens, {name}", mismatches_but_ties(tokens, wanted, logits, INT8.name), 0)

    def alone(self, case: EagleCase, chunk: int) -> EagleRun:
        """Run a case with trees.

        chunk: rows of the prompt per pass.
        """
        notes = DrafterNotes()
        engine = self._engine(case, NotedEagle(self._trees, notes))
        return run_noted(engine, notes, case, self._noted(case, engine), chunk)

    def _behind_prefix(self, case: EagleCase, slot: int) -> EagleRun:
        """Compute half of the prompt once in slot 0, then run the case twice, after it or after a copy of it."""
        notes, prompt = DrafterNotes(), self.model.prompt(case.prompt)
        engine = self._engine(case, NotedEagle(self._trees, notes), slots=2)
        prefix = FixedPrefix(prompt.head(max(1, len(prompt) // 2)), 0)
        for _ in prefix.compute(engine, WHOLE):
            pass
        computed = tuple(notes.reads)
        for _ in range(2):
            notes.begin(computed)
            known = lend(prefix, engine, prompt, slot)
            run = run_noted(engine, notes, case, self._noted(case, engine, slot, known), WHOLE)
        return run

    def _answer(
        self, case: EagleCase, kind: DraftKind | None, chunk: int, kv_format: KVFormat | None = None
    ) -> tuple[list[int], list[Tensor]]:
        """As many tokens as were recorded, and without drafts also the logits [V] of each."""
        engine = self._engine(case, kind, kv_format=kv_format)
        request, logits = self._request(engine, case, len(case.answer)), list[Tensor]()
        while request.finish is None:
            (step,) = run_pass(engine, [request], chunk)
            logits += [] if step.logits is None else [step.logits[-1]]
        return request.tokens, logits

    def _noted(self, case: EagleCase, engine: ChatEngine, slot: int = 0, known: int = 0) -> Generation:
        """A request that continues beyond the recorded tokens, so that no verification is cut short."""
        return self._request(engine, case, self._most(case), slot, known)

    def _request(self, engine: ChatEngine, case: EagleCase, tokens: int, slot: int = 0, known: int = 0) -> Generation:
        prompt, params = self.model.prompt(case.prompt), SamplingParams(max_tokens=tokens)
        return Generation(engine, prompt, params, slot, known=known, ignore_stop=True)

    def _engine(
        self, case: EagleCase, kind: DraftKind | None, *, slots: int = 1, kv_format: KVFormat | None = None
    ) -> ChatEngine:
        """An engine whose slots hold NaN, if the format can."""
        kv = self.model.decoder.kv_slots(slots, len(case.prompt) + self._most(case), kv_format)
        if kv.data.is_floating_point():
            kv.data.fill_(torch.nan)
        engine = ChatEngine(self.model, kv, drafts=kind, keep_logits=kind is None)
        engine.row_permille = 0  # all drafts are verified, as the original does
        return engine

    def _most(self, case: EagleCase) -> int:
        """The number of recorded tokens, plus the rows of another tree."""
        return len(case.answer) + self.bundle.sizes.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTree:
    """A tree of n rows in the order of its verification, the newest token first. For each row: token, parent, depth,
    and the rows it sees, as bits (kernels/kv/visibility.py).
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    bits: list[int]

    @property
    def paths(self) -> list[list[int]]:
        """The rows from the root to each leaf, leaves by ascending row, padded with -1 to one length."""
        inner, width = set(self.parents[1:]), max(self.depths) + 1
        found = [self._path(row) for row in range(len(self.tokens)) if row not in inner]
        return [path + [-1] * (width - len(path)) for path in found]

    @property
    def mask(self) -> Tensor:
        """[n, n] float64: 1 if a row sees another one."""
        rows = range(len(self.tokens))
        return torch.tensor([[float(bits >> row & 1) for row in rows] for bits in self.bits], dtype=torch.float64)

    def best(self, accepted: Sequence[int]) -> int:
        """The first path with these tokens after the root; -1 if there is none."""
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
class DrafterNotes:
    """The rows that the drafter of an engine read, and the trees that it grew, for one request after another."""

    reads: list[ReadRows] = field(default_factory=list)
    trees: list[FoundTree] = field(default_factory=list)

    def begin(self, known: Sequence[ReadRows] = ()) -> None:
        """Forget the previous request.

        known: reads of the prefix that is continued.
        """
        self.reads, self.trees = list(known), []

    def features(self) -> dict[int, Tensor]:
        """The features of each place that was read [taps * E]; the latest ones if a place was read twice."""
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
    notes: DrafterNotes

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
    def __init__(self, drafter: Drafter, state: SlotState, notes: DrafterNotes) -> None:
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
        """Draft as the drafter itself does, for one sequence; waits for the device."""
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
    """The record of a run case."""

    settled: list[tuple[int, ...]]
    """Tokens of each pass, that of the prompt first."""
    trees: list[FoundTree]
    """The trees after each pass."""
    features: dict[int, Tensor]
    """Features by place."""


def run_noted(engine: ChatEngine, notes: DrafterNotes, case: EagleCase, request: Generation, chunk: int) -> EagleRun:
    """Run all recorded verifications, and more if these give fewer tokens.

    chunk: rows of the prompt per pass. notes: of the engine, for this request and the prefix before it.
    """
    settled: list[tuple[int, ...]] = []
    while request.finish is None and (len(settled) < len(case.trees) or len(request.tokens) < len(case.answer)):
        (step,) = run_pass(engine, [request], chunk if request.plan.rows_left else engine.rule().rows)
        if step.sampled is not None:
            settled.append(step.sampled.tokens)
    return EagleRun(settled=settled, trees=notes.trees, features=notes.features())


def check_run(case: EagleCase, run: EagleRun) -> Iterator[CheckResult]:
    """Compare every recorded value; a tree or a row that the run lacks is infinitely off."""
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
