"""Compares two decodings of the same frames in dtypes where tokens need not be equal.

In 16 bits every sum in another order gives another rounding, and a near tie between two tokens another winner. How far
apart correct decodings may be depends on the model, so it is measured: frames whose pixels are moved by one rounding
are decoded serially, after which every rounding behind them differs too. A pass at fault is further off than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.control.offline import Decoded
from edgeflow.engine.policy import PreparedFrame

CHUNK_TOLERANCE = 1e-4  # of the largest action, which a sum in another order may move
ROUNDING_FACTOR = 4.0  # how much further sharing passes may move actions in 16 bits than a level of the pixels does
MEAN_FACTOR = 1.5
LARGEST_FACTOR = 4.0
"""How much larger than measured rounding a mean, and a single row, may be: rows of 16 bits vary by about 3."""


@dataclass(frozen=True, slots=True)
class Deviations:
    """Root mean square differences of logit rows, in standard deviations of the row.

    prefills: of the first token of each frame; decodes: of later ones, while all tokens before them are equal.
    unsampled: tokens that do not have the largest of their logits. unfinished: rows that are not finite.
    """

    prefills: tuple[float, ...]
    decodes: tuple[float, ...]
    unsampled: int
    unfinished: int

    @property
    def mean(self) -> float:
        """Over all rows; 0 where there are none."""
        return _mean((*self.prefills, *self.decodes))

    def objection(self, rounding: Deviations, dtype: torch.dtype) -> str:
        """The fault, given the deviations that rounding causes; "" when there is none."""
        if self.unfinished:
            return f"{self.unfinished} rows of logits are not finite"
        if self.unsampled:
            return f"{self.unsampled} tokens are not those of the largest logit"
        least = torch.finfo(dtype).eps
        for name, found, known in (
            ("first tokens", self.prefills, rounding.prefills),
            ("later tokens", self.decodes, rounding.decodes or rounding.prefills),
        ):
            allowed = max(_mean(known), least)
            if _mean(found) > MEAN_FACTOR * allowed or max(found, default=0.0) > LARGEST_FACTOR * allowed:
                return (
                    f"logits of {name} are {_mean(found):.2%} of their spread off, at most {max(found):.2%}; "
                    f"rounding accounts for {allowed:.2%}"
                )
        return ""


def chunk_objection(
    right: NDArray[np.float64], found: NDArray[np.float64], brighter: Callable[[], NDArray[np.float64]] | None
) -> str:
    """How chunks differ from those that are right by more than rounding may; "" where they do not.

    brighter: in 16 bits, the chunks of the same frames with every pixel a level brighter.
    """
    allowed = CHUNK_TOLERANCE * max(1.0, float(np.abs(right).max()))
    if brighter is not None:
        allowed = max(allowed, ROUNDING_FACTOR * _spread(brighter() - right))
    off = _spread(found - right)
    return f"{off:.3g} apart, {allowed:.3g} allowed" if off > allowed else ""


def _spread(differences: NDArray[np.float64]) -> float:
    """The root mean square of differences."""
    return float(np.sqrt(np.square(differences).mean()))


def nudged(frames: Iterable[PreparedFrame], dtype: torch.dtype) -> list[PreparedFrame]:
    """The frames with every pixel value moved up or down by one rounding of `dtype`."""
    generator = torch.Generator().manual_seed(0)
    step = torch.finfo(dtype).eps / 2
    moved = []
    for frame in frames:
        pixels = frame.pixel_values
        signs = torch.randint(0, 2, pixels.shape, generator=generator) * 2 - 1
        moved.append(PreparedFrame(pixels * (1 + step * signs.to(pixels.device)), frame.prompt_ids))
    return moved


def deviations(right: Sequence[Decoded], found: Sequence[Decoded]) -> Deviations:
    """How far decodings, which must hold logits, are off those that are right.

    The comparison of a frame ends behind its first token that differs, for later tokens follow from it.
    """
    rows = [row for pair in zip(right, found, strict=True) for row in _compared(*pair)]
    return Deviations(
        tuple(row.off for row in rows if row.first and row.finite),
        tuple(row.off for row in rows if not row.first and row.finite),
        sum(row.finite and not row.largest for row in rows),
        sum(not row.finite for row in rows),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    first: bool
    off: float
    largest: bool
    finite: bool


def _compared(right: Decoded, found: Decoded) -> Iterable[_Row]:
    ids = zip(right.sampled.token_ids, found.sampled.token_ids, strict=True)
    for index, (wanted_id, found_id) in enumerate(ids):
        wanted, logits = right.logits[index].float(), found.logits[index].float()
        spread = wanted.std().clamp_min(torch.finfo(torch.float32).tiny)
        off = float((logits - wanted).square().mean().sqrt() / spread)
        finite = bool(torch.isfinite(logits).all()) and found.sampled.finite
        yield _Row(index == 0, off, _is_largest(logits, found_id), finite)
        if wanted_id != found_id:
            return


def _is_largest(logits: Tensor, token_id: int) -> bool:
    return bool(logits[token_id] == logits.max())


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
