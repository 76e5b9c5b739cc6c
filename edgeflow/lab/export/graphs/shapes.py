"""The fixed shapes that a model is exported for. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow_client.errors import ConfigError

MOST_BUCKETS = 8
MOST_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportShapes:
    """The fixed shapes of the exported graphs."""

    text: tuple[int, ...] = ()
    """Prompt lengths in tokens, a bucket for each; for a chat model, rows per chunk."""
    batches: tuple[int, ...] = ()
    """Sequences, or candidates, per step."""
    positions: int | None = None
    """Positions of a slot. Empty and None stand for what serving the model needs."""

    def __post_init__(self) -> None:
        for name, values, most in (("text", self.text, 1 << 20), ("batch", self.batches, MOST_BATCH)):
            if len(set(values)) < len(values) or len(values) > MOST_BUCKETS:
                raise ConfigError(f"{name}: {_listed(values)}; give up to {MOST_BUCKETS} different numbers")
            if any(not 1 <= value <= most for value in values):
                raise ConfigError(f"{name}: {_listed(values)}; each must be 1 to {most}")

    def texts(self, default: int, most: int, reason: str) -> tuple[int, ...]:
        """The buckets in ascending order, by default one; ConfigError for one above `most`."""
        found = tuple(sorted(self.text)) or (default,)
        if found[-1] > most:
            raise ConfigError(f"text: a bucket of {found[-1]} tokens; {reason}: export at most {most}")
        return found

    def no_positions(self, family: str) -> None:
        """Raise ConfigError if positions are given for a model whose slots follow from its buckets."""
        if self.positions is not None:
            raise ConfigError(f"positions: slots of the family {family} follow from text; remove it")


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
