"""Runs of recorded cases of a memory gate, whoever computed them, and their comparison with the recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.lab.verify.gate_bundle import GateCase
from edgeflow.lab.verify.recorded.comparison import FEATURE_TOLERANCE, CheckResult, compare, mismatches

MEMORY_TOLERANCE = 1e-5  # of the largest entry of M or z
MEMORY = ("M", "z", "M_end", "z_end", "segment_M.last_layer", "segment_z.last_layer")
NAMES = {
    "logits": "logits of the prompt",
    "hidden": "hidden states",
    "step_logits": "logits of every step",
    "step_logits_last": "logits of the last step",
}


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The steps of a run. tokens: greedy ones. logits [V]: of each step, those of the prompt first.

    folds_at: known tokens at each fold after the prompt. segments: folded when the last token was drawn.
    """

    tokens: list[int]
    logits: list[Tensor]
    folds_at: list[int]
    segments: int


@dataclass(frozen=True, slots=True, eq=False)
class GateRun:
    """One case, computed. segments: folded after the prompt. decoded: None where only the prompt was run.

    tensors: by their names in a bundle, as many as are known; those of logits follow from the steps.
    """

    segments: int
    decoded: Decoded | None
    tensors: Mapping[str, Tensor]


GateRunner = Callable[[Sequence[GateCase]], Sequence[GateRun]]
"""Runs cases, each with its own gate, for as many tokens as were recorded."""


def check_cases(name: str, run: GateRunner, cases: Sequence[GateCase]) -> list[tuple[str, CheckResult]]:
    """Every comparison of what a runner knows. name: of the way in which it runs them."""
    return [(name, result) for case, found in zip(cases, run(cases), strict=True) for result in check_run(case, found)]


def check_run(case: GateCase, found: GateRun, *, complete: bool = False) -> Iterator[CheckResult]:
    """Compare one case. complete: the run must have every recorded tensor, and one that it lacks is infinitely off."""
    yield CheckResult(case.name, "segments after the prompt", abs(found.segments - case.segments), 0)
    tensors = dict(found.tensors)
    steps = found.decoded
    if steps is not None:
        yield CheckResult(case.name, "greedy tokens", mismatches(steps.tokens, case.greedy_ids), 0)
        yield CheckResult(case.name, "folds after the prompt", mismatches(steps.folds_at, case.folds_at), 0)
        yield CheckResult(case.name, "segments at the end", abs(steps.segments - case.segments_at_end), 0)
        every = torch.stack(steps.logits)
        tensors |= {"logits": every[0], "step_logits": every, "step_logits_last": every[-1]}
    for name, wanted in case.tensors.items():
        if name in tensors:
            yield _compare(case.name, name, tensors[name], wanted)
        elif complete:
            yield CheckResult(case.name, NAMES.get(name, name), math.inf, FEATURE_TOLERANCE)


def _compare(case: str, name: str, found: Tensor, wanted: Tensor) -> CheckResult:
    """Compare one tensor; memory in shares of its largest entry."""
    largest = wanted.abs().max().item() if name in MEMORY and wanted.numel() else 0.0
    if largest:
        return compare(case, name, found / largest, wanted / largest, MEMORY_TOLERANCE)
    return compare(case, NAMES.get(name, name), found, wanted, FEATURE_TOLERANCE)
