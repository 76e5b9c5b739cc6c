"""The fixed shapes that a model is exported for. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow_client.errors import ConfigError

MOST_BUCKETS = 8
MOST_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportShapes:
    """The fixed shapes of the exported graphs."""

    text: tuple[int, ...] = ()
    """Tokens of a prompt, a bucket each; of a chat model, rows of a chunk."""
    batches: tuple[int, ...] = ()
    """Sequences, or candidates, of a step."""
    positions: int | None = None
    """The positions of a slot. Empty and None stand for those that a model's serving needs."""

    def __post_init__(self) -> None:
        for name, values, most in (("text", self.text, 1 << 20), ("batch", self.batches, MOST_BATCH)):
            if len(set(values)) < len(values) or len(values) > MOST_BUCKETS:
                raise ConfigError(f"{name}: {_listed(values)}; give up to {MOST_BUCKETS} different numbers")
            if any(not 1 <= value <= most for value in values):
                raise ConfigError(f"{name}: {_listed(values)}; each must be 1 to {most}")

    def texts(self, default: int, most: int, reason: str) -> tuple[int, ...]:
        """The buckets in ascending order, by default one; ConfigError for one beyond `most`."""
        found = tuple(sorted(self.text)) or (default,)
        if found[-1] > most:
            raise ConfigError(f"text: a bucket of {found[-1]} tokens; {reason}: export at most {most}")
        return found

    def no_positions(self, family: str) -> None:
        """ConfigError where positions are given for a model whose slots follow from its buckets."""
        if self.positions is not None:
            raise ConfigError(f"positions: slots of the family {family} follow from text; remove it")


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
