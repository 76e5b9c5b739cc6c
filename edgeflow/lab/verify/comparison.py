"""A request of `edgeflow verify`, and comparisons of computed quantities with recorded ones: a result for each.

Bounds are the same on every device, because float32 is exact on every device (`exact_float32`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgeflow.artifacts.files import open_artifact
from edgeflow.artifacts.manifest import MANIFEST, Manifest, is_artifact
from edgeflow.contract import KVName
from edgeflow.models.checkpoint import fingerprint
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode

PIXEL_TOLERANCE = 1e-6
FEATURE_TOLERANCE = 1e-4  # float32: reordered sums give about 1e-5, any wrong operator far more
UNIT_SCALE = 20.0  # tolerances are absolute up to values of this size and grow with larger ones, as rounding does

Progress = Callable[[str, int, int], None]


def silent(*_: object) -> None:
    """A report function that shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A request of `edgeflow verify`."""

    modes: Sequence[Mode]
    """Empty for all modes of the family."""
    progress: Progress
    weights: str
    operators: Path | None
    """An overlay of the operator table."""
    device: torch.device
    kv: KVName = "model"
    """`weights`, `kv`: the precision whose cost is measured; with float and model, outputs are compared with the
    recorded ones.
    """
    artifact: Path | None = None
    """The graphs to check instead of the weights."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one comparison."""

    case: str
    quantity: str
    deviation: float
    """Largest absolute difference, or the number of differing ids."""
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.deviation <= self.tolerance


Results = list[tuple[str, CheckResult]]
"""Comparisons with their modes."""


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Full float32 on a device: matrices and convolutions without TF32, and torch's plain attention.

    CUDA's memory-efficient attention builds float32 products from three in TF32, which rounds differently. On a CPU
    every kernel computes full float32, and the kernels that serve are checked.
    """
    if device.type == "cpu":
        yield
        return
    matrices, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_float32_matmul_precision(matrices)
        torch.backends.cudnn.allow_tf32 = convolutions


def compare(case: str, quantity: str, found: Tensor, wanted: Tensor, tolerance: float) -> CheckResult:
    """Compare one quantity. `found` may hold several runs of it; another shape or a non-finite value is infinitely
    off.

    found: on any device. wanted: as recorded, on the CPU.
    """
    found, wanted = found.cpu(), wanted.double()
    if found.shape[found.dim() - wanted.dim() :] != wanted.shape or not wanted.numel():
        return CheckResult(case, quantity, math.inf, tolerance)
    deviation = (found.double() - wanted).abs().max().item()
    if not math.isfinite(deviation):
        return CheckResult(case, quantity, math.inf, tolerance)
    return CheckResult(case, quantity, deviation, tolerance * max(1.0, wanted.abs().max().item() / UNIT_SCALE))


def mismatches(found: Sequence[object], wanted: Sequence[object]) -> int:
    """The number of differing ids, or lists of ids, including a difference in length."""
    same = sum(a == b for a, b in zip(found, wanted, strict=False))
    return max(len(found), len(wanted)) - same


@dataclass(frozen=True, slots=True)
class LogitBounds:
    """Bounds on logit errors, in standard deviations of the exact ones: largest, mean; share of tokens that differ."""

    largest: float
    mean: float
    lost: float


FP8_BOUNDS = LogitBounds(largest=4.0, mean=0.5, lost=0.75)
"""Bounds on logits of random weights in FP8; unrelated logits differ by 1.1."""


KV_BOUNDS = {
    "int8": LogitBounds(largest=0.5, mean=0.05, lost=0.15),
    "fp8": LogitBounds(largest=2.0, mean=0.25, lost=0.6),
    "int4": LogitBounds(largest=4.5, mean=0.5, lost=0.8),
}
"""Bounds by KV format, for models with random weights, whose best tokens are close: about 1.6 times the measured
errors.
"""

NEAR_TIES = {"int8": 0.02, "fp8": 0.03, "int4": 0.06}
"""A distance of two logits, in standard deviations, that numbers of a KV format a step up or down may close. It is the
most that a logit moved in 1,200 rows of a random model when all float32 products were moved by up to 4e-6 of a row's
largest number, and at least twice the most when they were moved by an eighth of that.
"""


def mismatches_but_ties(found: Sequence[int], wanted: Sequence[int], logits: Sequence[Tensor], kv: str) -> int:
    """Number of differing tokens over KV of fewer bits; 0 if the first of them is a near tie.

    A number between two steps of the format is rounded by the last bit of a sum, which depends on the shape of the
    pass. logits: of `wanted`, [V] each. kv: the format's name.
    """
    for one, other, row in zip(found, wanted, logits, strict=False):
        if one != other:
            tied = bool((row[other] - row[one]).abs() < NEAR_TIES[kv] * row.std())
            return 0 if tied else mismatches(found, wanted)
    return mismatches(found, wanted)


def logit_errors(case: str, exact: Tensor, found: Tensor, bounds: LogitBounds) -> Iterator[CheckResult]:
    """Compare logits [tokens, V] of the same rows, each computed over the same tokens before it."""
    exact, found = exact.cpu(), found.cpu()
    off = (found - exact).abs() / exact.std(dim=-1, keepdim=True)
    differ = (found.argmax(-1) != exact.argmax(-1)).double().mean().item()
    yield CheckResult(case, "largest logit error", off.max().item(), bounds.largest)
    yield CheckResult(case, "mean logit error", off.mean().item(), bounds.mean)
    yield CheckResult(case, "tokens that differ, share", differ, bounds.lost)


EXACT = "float32"


def artifact_of(bundle: Path, folder: Path) -> Manifest:
    """The manifest of an artifact exported from a bundle's checkpoint; ConfigError with both fingerprints for another
    one.
    """
    if not is_artifact(folder):
        raise ConfigError(f"artifact: {folder} has no {MANIFEST}: give a folder that `edgeflow export` wrote")
    manifest, known_by = open_artifact(folder), fingerprint(bundle)
    if manifest.fingerprint != known_by:
        raise ConfigError(
            f"artifact: {folder} was exported from the checkpoint {manifest.fingerprint[:16]}…, and {bundle} is "
            f"{known_by[:16]}…: export it from this bundle"
        )
    return manifest


def judged(manifest: Manifest, results: Sequence[tuple[str, CheckResult]]) -> Results:
    """Unchanged results if all graphs are in float32 without substitutions; otherwise without a bound, and with the
    precision in their names.
    """
    others = sorted({graph.precision for graph in manifest.graphs} - {EXACT})
    others += [each.name for each in manifest.rewrites if each.sites]
    if not others:
        return list(results)
    chosen = ", ".join(others)
    return [
        (mode, replace(each, quantity=f"{each.quantity}, deviation with {chosen}", tolerance=math.inf))
        for mode, each in results
    ]
