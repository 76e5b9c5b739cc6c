"""The result of a quantisation: what is printed and what is written with the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeflow.lab.quantize.search.choices import BlockChoice

NEAREST, AWQ = "nearest", "awq"


@dataclass(slots=True, eq=False)
class QuantisationError:
    """How far a quantised model is from the float one on held-out inputs."""

    linear: Mapping[str, float]
    """Squared error of each linear's output relative to its squared size, both without a bias, by published name.
    Inputs are those of the float model, and scales are undone.
    """

    @property
    def linear_error(self) -> float:
        """Mean over all linears."""
        return sum(self.linear.values()) / len(self.linear)

    def rows(self) -> Iterator[tuple[str, str]]:
        """The measurements as text: name and value."""
        yield "error of linears, mean", f"{self.linear_error:.3%}"
        yield from self.texts()

    def as_json(self) -> dict[str, Any]:
        """JSON values, with the error of each linear."""
        return {"linear_error": self.linear_error, **self.values(), "linears": dict(self.linear)}

    def texts(self) -> Iterator[tuple[str, str]]:
        """The measurements of a kind of model, like `rows`."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """The same as JSON values, like `as_json`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedCheckpoint:
    """A quantised checkpoint."""

    group: int
    inner: int
    """MLP width as quantised; stored_inner is the source's. Bytes of all weights before and after."""
    stored_inner: int
    calibration: str
    choices: Sequence[BlockChoice]
    nearest: QuantisationError
    awq: QuantisationError
    bytes_before: int
    bytes_after: int
    exact: float | None
    """Share of exact answers, only for the embedded chat model."""

    def as_json(self) -> dict[str, Any]:
        """JSON values, with the choice for every scale group."""
        return {
            "group_size": self.group,
            "intermediate_size": {"stored": self.stored_inner, "quantised": self.inner},
            "calibration": self.calibration,
            "bytes": {"before": self.bytes_before, "after": self.bytes_after},
            "exact_answers": self.exact,
            NEAREST: self.nearest.as_json(),
            AWQ: self.awq.as_json(),
            "scale_groups": [
                {
                    "block": index,
                    "previous": group.previous,
                    "scaled": group.scaled,
                    "ratio": group.ratio,
                    "losses": group.losses.tolist(),
                }
                for index, choice in enumerate(self.choices)
                for group in choice.groups
            ],
        }

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """The measurements: name, value for round to nearest, value for AWQ."""
        for (name, nearest), (_, awq) in zip(self.nearest.rows(), self.awq.rows(), strict=True):
            yield name, nearest, awq

    def remarks(self) -> Iterator[str]:
        """Lines to print about the checkpoint."""
        yield f"groups of {self.group}; calibration: {self.calibration}"
        if self.inner != self.stored_inner:
            yield f"the MLP's width {self.stored_inner} is padded with zeros to {self.inner}: the same function"
        saved = 1 - self.bytes_after / self.bytes_before
        yield f"weights: {_mib(self.bytes_before)} before, {_mib(self.bytes_after)} after ({saved:.1%} smaller)"
        if self.exact is not None:
            yield f"exact answers: {self.exact:.1%}"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.2f} MiB"
