"""Checks of memory gates against recorded cases, in float32: tokens, logits, hidden states, memory, folds.

Two naive twins compute every case, one as Algorithm 1 streams it, the other whole texts at once. The first must know
every value that a bundle has. Then the executor that serves computes it in every way (lab/verify/gate_served.py). Also
checked is what the bundle says that another reading of the rules would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.verify.gate_bundle import BASE, GateCase, read_gate_bundle
from edgeflow.lab.verify.gate_runs import Decoded, check_cases, check_run
from edgeflow.lab.verify.gate_served import served_ways
from edgeflow.lab.verify.gate_twins import run_at_once, run_forced, run_streaming
from edgeflow.lab.verify.recorded.bundle import Entry
from edgeflow.lab.verify.recorded.comparison import FEATURE_TOLERANCE, CheckResult
from edgeflow.models.chat import load_chat_model
from edgeflow.models.memory_gate import MemoryGate
from edgeflow.models.published import read_published

Progress = Callable[[str, int, int], None]
CPU = torch.device("cpu")
NEAR_TIE = 2 * FEATURE_TOLERANCE  # logits this close may change places on another processor


def verify_gate(
    directory: Path, progress: Progress = lambda *_: None, device: torch.device = CPU
) -> list[tuple[str, CheckResult]]:
    """Every comparison with the way in which it was computed; CheckpointError when the directory is not a bundle."""
    return [*verify_twins(directory, progress, device), *verify_served(directory, progress, device)]


def verify_twins(
    directory: Path, progress: Progress = lambda *_: None, device: torch.device = CPU
) -> list[tuple[str, CheckResult]]:
    """The comparisons of both twins."""
    config = read_published(directory / BASE).text
    gate, cases = read_gate_bundle(directory, config, device)
    base = PlainBase.read(directory / BASE, torch.float32, device)
    results: list[tuple[str, CheckResult]] = []
    with torch.inference_mode():
        for index, case in enumerate(cases):
            progress("naive twins", index, len(cases))
            results += [("as streamed", result) for result in _check_streaming(case, base, gate)]
            results += [("at once", result) for result in check_run(case, run_at_once(case, base))]
    return results


def verify_served(
    directory: Path, progress: Progress = lambda *_: None, device: torch.device = CPU
) -> list[tuple[str, CheckResult]]:
    """The comparisons of the executor."""
    model = load_chat_model(directory / BASE, torch.float32, device)
    cases, ways = read_gate_bundle(directory, model.config, device)[1], served_ways(model)
    results: list[tuple[str, CheckResult]] = []
    for index, (name, run) in enumerate(ways.items()):
        progress(name, index, len(ways))
        results += check_cases(name, run, cases)
    return results


def _check_streaming(case: GateCase, base: PlainBase, default: MemoryGate) -> Iterator[CheckResult]:
    """All that was recorded. default: the gate and the rules of gate.json."""
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
    case: GateCase, what: str, stated: Entry, steps: Decoded, other: Decoded | None
) -> Iterator[CheckResult]:
    """Compare how far another run is from this one with what was recorded.

    Tokens are not counted where two of the other run nearly tie, since nothing was recorded about its margins.
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
    """Compare distances of two logits."""
    return CheckResult(case.name, quantity, abs(found - wanted), NEAR_TIE)


def _distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max(((a - b).abs().max().item() for a, b in zip(some, others, strict=True)), default=0.0)


def _margin(steps: Decoded) -> float:
    best = torch.stack(steps.logits).topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()
