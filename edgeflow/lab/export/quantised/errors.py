"""Errors of a flow policy's graphs against reference graphs, per step and for the chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.export.quantised.flow_loop import Denoised, Floats

Actions = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From normalised [H, A] to [horizon, D] in the units of the actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowErrors:
    """Relative errors: the norm of the difference divided by the norm of the expected values, over all candidates."""

    velocity: tuple[float, ...]
    """[N]: the error in each step."""
    x: tuple[float, ...]
    """[N]: the error after each step; the last is the error of the chunk."""
    actions: tuple[float, ...]
    """[D]: root mean square of the difference, in the units of each action dimension."""
    largest: tuple[float, ...]
    """[D]: largest difference in each dimension."""

    @property
    def chunk(self) -> float:
        """Error of the normalised chunk."""
        return self.x[-1]


def flow_errors(expected: Sequence[Denoised], found: Sequence[Denoised], actions: Actions) -> FlowErrors:
    """The errors of answers to the same frames, from the same noise."""
    off = np.stack([_actions(b, actions) - _actions(a, actions) for a, b in zip(expected, found, strict=True)])
    off = off.reshape(-1, off.shape[-1])
    return FlowErrors(
        velocity=_relative([each.velocity for each in expected], [each.velocity for each in found]),
        x=_relative([each.x[1:] for each in expected], [each.x[1:] for each in found]),
        actions=tuple(np.sqrt((off**2).mean(axis=0)).tolist()),
        largest=tuple(np.abs(off).max(axis=0).tolist()),
    )


def _relative(expected: Sequence[Sequence[Floats]], found: Sequence[Sequence[Floats]]) -> tuple[float, ...]:
    """Error of each step. expected, found: [n][N] of [B, H, A]."""
    wanted, there = (np.asarray(each, np.float64).swapaxes(0, 1) for each in (expected, found))
    return tuple(_norm(b - a) / _norm(a) for a, b in zip(wanted, there, strict=True))


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values.ravel()))


def _actions(denoised: Denoised, actions: Actions) -> NDArray[np.float64]:
    """[B horizon, D]"""
    return np.concatenate([actions(each.astype(np.float64)) for each in denoised.x[-1]])
