"""Recorded cases of a memory gate on the executor that serves: in chunks, behind a prefix, in shared passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation, run_pass
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.verify.gate_bundle import GateCase
from edgeflow.lab.verify.gate_runs import Decoded, GateRun, GateRunner
from edgeflow.models.chat import ChatModel
from edgeflow.scheduler.folding import FoldingRoute

CHUNKS = (1, 5, 64)
PACKED_CHUNK = 7


def served_ways(model: ChatModel) -> dict[str, GateRunner]:
    """The runner of each way, by name."""
    longest = max(CHUNKS)
    chunked: dict[str, GateRunner] = {f"chunks of {size}": partial(_each, model, size) for size in CHUNKS}
    return {**chunked, "prefix, copied": partial(_behind_prefix, model, longest), "packed": partial(_packed, model)}


@dataclass(slots=True, kw_only=True, eq=False)
class _Watched:
    """A request of a case and what it gave so far. folds: known tokens and the last layer's memory at each fold."""

    case: GateCase
    engine: ChatEngine
    request: Generation
    logits: list[Tensor] = field(default_factory=list)
    folds: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    prompt: tuple[Tensor, Tensor] | None = None

    @property
    def folded(self) -> int:
        route = self.request.plan.route
        return route.folded if isinstance(route, FoldingRoute) else 0

    def memory(self) -> tuple[Tensor, Tensor]:
        """M and z of all layers."""
        layers = [self.engine.kv.layer(index) for index in range(self.engine.model.config.num_hidden_layers)]
        slot = self.request.plan.slot
        return torch.stack([each.matrices[slot] for each in layers]), torch.stack([each.norms[slot] for each in layers])

    def note(self, known: int, folded: int, logits: Tensor | None) -> None:
        """Note what a pass gave. known, folded: tokens and segments before it."""
        sums, norms = self.memory()
        if self.folded > folded:
            self.folds.append((known, sums[-1], norms[-1]))
        if logits is not None:
            self.logits.append(logits[-1])
            self.prompt = self.prompt or (sums, norms)

    def run(self) -> GateRun:
        """Its comparable values, once it is answered."""
        rows, (sums, norms), end = len(self.case.ids), self.prompt or self.memory(), self.memory()
        of_prompt = [fold for fold in self.folds if fold[0] == rows]
        later = [known for known, *_ in self.folds if known > rows]
        tensors = {"M": sums, "z": norms, "M_end": end[0], "z_end": end[1]}
        if len(of_prompt) == self.case.segments > 0:  # a prefix may have brought some
            tensors["segment_M.last_layer"] = torch.stack([each for _, each, _ in of_prompt])
            tensors["segment_z.last_layer"] = torch.stack([each for *_, each in of_prompt])
        decoded = Decoded(self.request.tokens, self.logits, later, self.folded)
        return GateRun(segments=self.folded - len(later), decoded=decoded, tensors=tensors)


def _engine(model: ChatModel, case: GateCase, slots: int, positions: int) -> ChatEngine:
    """Slots of the places that the case's rules need, holding NaN."""
    kv = model.decoder.kv_slots(slots, case.gate.rules.threshold, memory_format(case.gate, positions))
    kv.data.fill_(torch.nan)
    return ChatEngine(model, kv, folding=folding_of(case.gate.rules), keep_logits=True)


def _positions(case: GateCase) -> int:
    return len(case.ids) + len(case.greedy_ids)


def _watched(engine: ChatEngine, case: GateCase, slot: int, known: int = 0, prefix: int = 0) -> _Watched:
    prompt, params = engine.model.prompt(case.ids), SamplingParams(max_tokens=len(case.greedy_ids))
    request = Generation(engine, prompt, params, slot, known=known, prefix=prefix, ignore_stop=True)
    return _Watched(case=case, engine=engine, request=request)


def _answer(engine: ChatEngine, asked: Sequence[_Watched], chunk: int) -> None:
    """Shared passes, until all are answered; each begins one pass after the one before it."""
    started = 0
    while any(each.request.finish is None for each in asked):
        started = min(started + 1, len(asked))
        busy = [each for each in asked[:started] if each.request.finish is None]
        before = [(each.request.plan.rows + each.request.plan.planned, each.folded) for each in busy]
        steps = run_pass(engine, [each.request for each in busy], chunk) if busy else []
        for each, (known, folded), step in zip(busy, before, steps, strict=True):
            each.note(known, folded, step.logits)


def _each(model: ChatModel, chunk: int, cases: Sequence[GateCase]) -> list[GateRun]:
    """Every case by itself."""
    found = []
    for case in cases:
        engine = _engine(model, case, 1, _positions(case))
        asked = _watched(engine, case, 0)
        _answer(engine, [asked], chunk)
        found.append(asked.run())
    return found


def _behind_prefix(model: ChatModel, chunk: int, cases: Sequence[GateCase]) -> list[GateRun]:
    """Half of the prompt is computed once, in another slot, and lent."""
    found = []
    for case in cases:
        engine = _engine(model, case, 2, _positions(case))
        prompt = model.prompt(case.ids)
        prefix = FixedPrefix(prompt.head(max(1, len(prompt) // 2)), 1)
        for _ in prefix.compute(engine, chunk):
            pass
        known = prefix.lend(engine, prompt, 0)
        asked = _watched(engine, case, 0, known, len(prefix.prompt) if known else 0)
        _answer(engine, [asked], chunk)
        found.append(asked.run())
    return found


def _packed(model: ChatModel, cases: Sequence[GateCase]) -> list[GateRun]:
    """Cases of one gate and one set of rules share passes; slots by descending index."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        alike[(case.gate.rules, case.gate.layers[0].w1.shape)].append(index)
    found: dict[int, GateRun] = {}
    for indices in alike.values():
        own = [cases[index] for index in indices]
        engine = _engine(model, own[0], len(own), max(map(_positions, own)))
        asked = [_watched(engine, case, len(own) - 1 - at) for at, case in enumerate(own)]
        _answer(engine, asked, PACKED_CHUNK)
        found |= {index: each.run() for index, each in zip(indices, asked, strict=True)}
    return [found[index] for index in range(len(cases))]
