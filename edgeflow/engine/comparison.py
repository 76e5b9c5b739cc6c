"""Found against recorded: one result a quantity of a case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

UNIT_SCALE = 20.0  # tolerances are absolute up to values of this size and grow with larger ones, as rounding does


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One comparison. deviation: largest absolute difference, or the number of ids that differ."""

    case: str
    quantity: str
    deviation: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.deviation <= self.tolerance


def compare(case: str, quantity: str, found: Tensor, wanted: Tensor, tolerance: float) -> CheckResult:
    """`found` may hold several runs of what is `wanted`; another shape or what is not finite deviates infinitely."""
    wanted = wanted.double()
    if found.shape[found.dim() - wanted.dim() :] != wanted.shape or not wanted.numel():
        return CheckResult(case, quantity, math.inf, tolerance)
    deviation = (found.double() - wanted).abs().max().item()
    if not math.isfinite(deviation):
        return CheckResult(case, quantity, math.inf, tolerance)
    return CheckResult(case, quantity, deviation, tolerance * max(1.0, wanted.abs().max().item() / UNIT_SCALE))


def mismatches(found: Sequence[int], wanted: Sequence[int]) -> int:
    """Ids that differ, counting a difference in length."""
    same = sum(a == b for a, b in zip(found, wanted, strict=False))
    return max(len(found), len(wanted)) - same


@dataclass(frozen=True, slots=True)
class LogitBounds:
    """Errors of logits in spreads (standard deviations) of theirs, largest and mean; share of tokens that differ."""

    largest: float
    mean: float
    lost: float


def logit_errors(case: str, exact: Tensor, found: Tensor, bounds: LogitBounds) -> Iterator[CheckResult]:
    """Logits [tokens, V] of the same rows, each computed over the same tokens before it."""
    off = (found - exact).abs() / exact.std(dim=-1, keepdim=True)
    differ = (found.argmax(-1) != exact.argmax(-1)).double().mean().item()
    yield CheckResult(case, "largest logit error", off.max().item(), bounds.largest)
    yield CheckResult(case, "mean logit error", off.mean().item(), bounds.mean)
    yield CheckResult(case, "tokens that differ, share", differ, bounds.lost)
