"""Checks of memory gates against recorded cases, in float32: tokens, logits, hidden states, memory, folds.

Two naive twins compute every case, one streaming as in Algorithm 1, the other whole texts at once. The first must
reproduce every value in a bundle. Then the executor that serves computes it in every way. Also checked are the
bundle's statements on the effect of another reading of the rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.whole_texts import run_whole_texts
from edgeflow.lab.verify.bundle import BundleEntry
from edgeflow.lab.verify.comparison import FEATURE_TOLERANCE, CheckResult, Progress, Results, silent
from edgeflow.lab.verify.gate_bundle import (
    BASE,
    GateCase,
    GateRun,
    GateRunner,
    RecordedSteps,
    check_cases,
    check_run,
    read_gate_bundle,
)
from edgeflow.lab.verify.gate_streaming import GateMemory, GatePass, StreamingTwin, greedy
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate import MemoryGate
from edgeflow.models.published import read_published
from edgeflow.scheduler.folding import FoldingRoute

CPU = torch.device("cpu")
NEAR_TIE = 2 * FEATURE_TOLERANCE  # logits this close may change places on another processor
CHUNKS = (1, 5, 64)
PACKED_CHUNK = 7


def verify_gate(directory: Path, progress: Progress = silent, device: torch.device = CPU) -> Results:
    """Every comparison with its way of computing; CheckpointError if the directory is not a bundle."""
    return [*verify_twins(directory, progress, device), *verify_served(directory, progress, device)]


def verify_twins(directory: Path, progress: Progress = silent, device: torch.device = CPU) -> Results:
    """The comparisons with both twins."""
    config = read_published(directory / BASE).text
    gate, cases = read_gate_bundle(directory, config, device)
    base = PlainBase.read(directory / BASE, torch.float32, device)
    results: Results = []
    with torch.inference_mode():
        for index, case in enumerate(cases):
            progress("naive twins", index, len(cases))
            results += [("as streamed", result) for result in _check_streaming(case, base, gate)]
            results += [("at once", result) for result in check_run(case, run_at_once(case, base))]
    return results


def verify_served(directory: Path, progress: Progress = silent, device: torch.device = CPU) -> Results:
    """The comparisons with the executor."""
    model = load_chat_model(directory / BASE, torch.float32, device)
    cases, ways = read_gate_bundle(directory, model.config, device)[1], served_ways(model)
    results: Results = []
    for index, (name, run) in enumerate(ways.items()):
        progress(name, index, len(ways))
        results += check_cases(name, run, cases)
    return results


def _check_streaming(case: GateCase, base: PlainBase, default: MemoryGate) -> Iterator[CheckResult]:
    """Compare every recorded value.

    default: the gate and the rules of gate.json.
    """
    found = run_streaming(case, base, case.gate)
    yield from check_run(case, found, complete=True)
    rules, known = case.gate.rules, len(case.ids)
    yield CheckResult(case.name, "route", float((known >= rules.threshold) != case.long_route), 0)
    if case.residual is not None:
        residual = known - rules.sink - rules.window - rules.segment * found.segments
        yield CheckResult(case.name, "residual after the prompt", abs(residual - case.residual), 0)
    steps = found.decoded
    if steps is None:
        return
    if case.margin is not None:
        yield _check_distance(case, "least margin of a token", _margin(steps), case.margin)
    if case.without_memory is not None:
        other = run_streaming(case, base, case.gate, without_memory=True).decoded
        yield from _check_change(case, "without memory", case.without_memory, steps, other)
    if case.against_default is not None:
        other = run_streaming(case, base, default).decoded
        yield from _check_change(case, "against default", case.against_default, steps, other)
        stated = case.against_default.optional_number("max_logit_change_decode_forced")
        if stated is not None:
            largest = _distance(run_forced(case, base, default)[1:], steps.logits[1:])
            yield _check_distance(case, "against default: logits of recorded tokens", largest, stated)


def _check_change(
    case: GateCase, what: str, stated: BundleEntry, steps: RecordedSteps, other: RecordedSteps | None
) -> Iterator[CheckResult]:
    """Compare the distance of another run from this one with the recorded distance.

    Tokens are not counted if two of the other run nearly tie, since its margins were not recorded.
    """
    if other is None:
        return
    for name in ("max_logit_change", "max_logit_change_prefill"):
        change = stated.optional_number(name)
        if change is not None:
            found = _distance(steps.logits[:1], other.logits[:1])
            yield _check_distance(case, f"{what}: logits of the prompt", found, change)
    if _margin(other) < NEAR_TIE:
        return
    changed = [index for index, (a, b) in enumerate(zip(steps.tokens, other.tokens, strict=True)) if a != b]
    counts = {"tokens_changed": len(changed), "first_changed": changed[0] if changed else -1}
    for name, count in counts.items():
        wanted = stated.optional_number(name)
        if wanted is not None:
            yield CheckResult(case.name, f"{what}: {name.replace('_', ' ')}", abs(count - wanted), 0)


def _check_distance(case: GateCase, quantity: str, found: float, wanted: float) -> CheckResult:
    """Compare the distances of two logits."""
    return CheckResult(case.name, quantity, abs(found - wanted), NEAR_TIE)


def _distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max(((a - b).abs().max().item() for a, b in zip(some, others, strict=True)), default=0.0)


def _margin(steps: RecordedSteps) -> float:
    best = torch.stack(steps.logits).topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


def run_streaming(case: GateCase, base: PlainBase, gate: MemoryGate, *, without_memory: bool = False) -> GateRun:
    """The case by Algorithm 1, with every value that a bundle may hold.

    gate: that of the case, or another one.
    """
    twin = StreamingTwin(base, gate, without_memory=without_memory)
    first = twin.prefill(case.ids)
    folds = list(twin.memories)
    tensors = {"hidden": first.hidden, **_seen(first), **_memory(folds)}
    if folds:
        tensors["segment_M.last_layer"] = torch.stack([each.sums[-1] for each in folds])
        tensors["segment_z.last_layer"] = torch.stack([each.norms[-1] for each in folds])
    tokens, passes = greedy(twin, case.ids, len(case.greedy_ids))
    tensors |= _memory(twin.memories, "_end")
    decoded = RecordedSteps(tokens, [each.logits for each in passes], twin.folds_at, twin.folded)
    return GateRun(len(folds), decoded, tensors)


def run_forced(case: GateCase, base: PlainBase, gate: MemoryGate) -> list[Tensor]:
    """Logits [V] of each step with another gate, following the recorded tokens."""
    twin = StreamingTwin(base, gate)
    return [twin.prefill(case.ids).logits, *(twin.step(token).logits for token in case.greedy_ids[:-1])]


def run_at_once(case: GateCase, base: PlainBase) -> GateRun:
    """The prompt as one text and, if the state depends only on the known tokens, each step as another."""
    rules = case.gate.rules
    tensors = _at_once(case.ids, base, case.gate)
    segments = rules.segments(len(case.ids))
    if rules.fold != "recompute":
        return GateRun(segments, None, {"logits": base.logits(tensors["hidden"][-1]), **tensors})
    texts = [[*case.ids, *case.greedy_ids[:count]] for count in range(len(case.greedy_ids))]
    states = [_at_once(ids, base, case.gate) for ids in texts]
    logits = [base.logits(each["hidden"][-1]) for each in states]
    counts = [rules.segments(len(ids)) for ids in texts]
    folds = [len(ids) for ids, old, new in zip(texts[1:], counts, counts[1:], strict=False) if new > old]
    ends = {f"{name}_end": states[-1][name] for name in ("M", "z") if name in states[-1]}
    decoded = RecordedSteps([int(each.argmax()) for each in logits], logits, folds, counts[-1])
    return GateRun(segments, decoded, tensors | ends)


def _at_once(ids: Sequence[int], base: PlainBase, gate: MemoryGate) -> dict[str, Tensor]:
    """The tensors of a text's last pass that a bundle may hold."""
    segments = gate.rules.segments(len(ids))
    found = run_whole_texts(base, gate, torch.tensor([ids], device=base.norm.device), segments, watch=True)
    if not segments:
        return {"hidden": found.plain[0]}
    rest = len(ids) - gate.rules.sink - segments * gate.rules.segment
    sums = torch.stack([each.sums[0] for each in found.seen])
    tensors = {"hidden": found.gated[0, -rest:], "M": sums[:, :, -1, :, :-1], "z": sums[:, :, -1, :, -1]}
    for layer, seen in enumerate(found.seen):
        tensors |= {f"a_mem.{layer}": seen.read[0, :, -rest:], f"a_com.{layer}": seen.mixed[0, :, -rest:]}
    last = sums[-1].transpose(0, 1)  # [N, KH, D, D + 1]
    return tensors | {"segment_M.last_layer": last[..., :-1], "segment_z.last_layer": last[..., -1]}


def _seen(found: GatePass) -> dict[str, Tensor]:
    reads = {f"a_mem.{layer}": tensor for layer, tensor in enumerate(found.a_mem)}
    return reads | {f"a_com.{layer}": tensor for layer, tensor in enumerate(found.a_com)}


def _memory(folds: Sequence[GateMemory], end: str = "") -> dict[str, Tensor]:
    return {f"M{end}": folds[-1].sums, f"z{end}": folds[-1].norms} if folds else {}


def served_ways(model: ChatModel) -> dict[str, GateRunner]:
    """The runner of each way, by name."""
    chunked: dict[str, GateRunner] = {f"chunks of {size}": partial(_each, model, size) for size in CHUNKS}
    return {
        **chunked,
        "prefix, copied": partial(_each, model, max(CHUNKS), behind=True),
        "packed": partial(_packed, model),
    }


@dataclass(slots=True, kw_only=True, eq=False)
class _WatchedRequest:
    """A request of a case and its results so far."""

    case: GateCase
    engine: ChatEngine
    request: Generation
    logits: list[Tensor] = field(default_factory=list)
    folds: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    """Known tokens and the last layer's memory at each fold."""
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
        """Note the results of a pass.

        known, folded: tokens and segments before it.
        """
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
        if len(of_prompt) == self.case.segments > 0:  # a prefix may have come with some
            tensors["segment_M.last_layer"] = torch.stack([each for _, each, _ in of_prompt])
            tensors["segment_z.last_layer"] = torch.stack([each for *_, each in of_prompt])
        decoded = RecordedSteps(self.request.tokens, self.logits, later, self.folded)
        return GateRun(segments=self.folded - len(later), decoded=decoded, tensors=tensors)


def _engine(model: ChatModel, case: GateCase, slots: int, positions: int) -> ChatEngine:
    """An engine whose slots have the places that the case's rules need, holding NaN."""
    kv = model.decoder.kv_slots(slots, case.gate.rules.threshold, memory_format(case.gate, positions))
    kv.data.fill_(torch.nan)
    return ChatEngine(model, kv, folding=folding_of(case.gate.rules), keep_logits=True)


def _positions(case: GateCase) -> int:
    return len(case.ids) + len(case.greedy_ids)


def _watched(engine: ChatEngine, case: GateCase, slot: int, known: int = 0, prefix: int = 0) -> _WatchedRequest:
    prompt, params = engine.model.prompt(case.ids), SamplingParams(max_tokens=len(case.greedy_ids))
    request = Generation(engine, prompt, params, slot, known=known, prefix=prefix, ignore_stop=True)
    return _WatchedRequest(case=case, engine=engine, request=request)


def _answer(engine: ChatEngine, asked: Sequence[_WatchedRequest], chunk: int) -> None:
    """Run shared passes until all are answered; each starts one pass after the one before it."""
    started = 0
    while any(each.request.finish is None for each in asked):
        started = min(started + 1, len(asked))
        busy = [each for each in asked[:started] if each.request.finish is None]
        before = [(each.request.plan.rows + each.request.plan.planned, each.folded) for each in busy]
        steps = run_pass(engine, [each.request for each in busy], chunk) if busy else []
        for each, (known, folded), step in zip(busy, before, steps, strict=True):
            each.note(known, folded, step.logits)


def _each(model: ChatModel, chunk: int, cases: Sequence[GateCase], *, behind: bool = False) -> list[GateRun]:
    """Run every case by itself.

    behind: half of the prompt is computed once, in another slot, and lent.
    """
    found = []
    for case in cases:
        engine = _engine(model, case, 1 + behind, _positions(case))
        known = held = 0
        if behind:
            prompt = model.prompt(case.ids)
            prefix = FixedPrefix(prompt.head(max(1, len(prompt) // 2)), 1)
            for _ in prefix.compute(engine, chunk):
                pass
            known = lend(prefix, engine, prompt, 0)
            held = len(prefix.prompt) if known else 0
        asked = _watched(engine, case, 0, known, held)
        _answer(engine, [asked], chunk)
        found.append(asked.run())
    return found


def _packed(model: ChatModel, cases: Sequence[GateCase]) -> list[GateRun]:
    """Run cases of one gate and one set of rules in shared passes; slots by descending index."""
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
