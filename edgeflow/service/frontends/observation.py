"""Observations as front ends read them: images, state and text by the client's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one request shows, before anything is checked or matched with the policy."""

    images: Mapping[str, NDArray[Any]]
    """By name: [height, width, 3] or [3, height, width], of bytes or of floats in 0 to 1."""
    state: Mapping[str, NDArray[Any]]
    """Vectors by name, [numbers]; a number alone has no dimension."""
    instruction: str
    unnorm_key: str = ""
    model: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The client's own field of each name, for messages; a name that is not in it is its own field."""
