"""Names of cameras and state vectors, and the configuration's mapping from the policy's to the robot's. Pure.

The field's keys stand for their last part: `observation.images.top` is `top`, `observation.state` is `state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PolicyInputs
from edgeflow.service.observation.describe import list_text
from edgeflow_client.errors import ConfigError

PREFIXES = ("observation.images.", "observation.")
Mapped = TypeVar("Mapped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The configuration's mapping from the policy's names to the robot's. state: one name, or several to join."""

    cameras: Mapping[str, str]
    state: Mapping[str, str | list[str]]

    @classmethod
    def of(cls, config: ServiceConfig) -> Names:
        return cls(cameras=config.cameras, state=config.state)

    def of_policy(self, inputs: PolicyInputs) -> Names:
        """The mapping with the policy's own names as keys; ConfigError for what it does not have, or has twice."""
        cameras = _resolved("cameras", self.cameras, [need.name for need in inputs.cameras])
        for name, camera in cameras.items():
            twice = [other for other, mapped in cameras.items() if mapped == camera and other != name]
            if twice:
                raise ConfigError(
                    f"cameras: {camera!r} is mapped to {name!r} and {twice[0]!r}; give each its own camera"
                )
        return Names(cameras=cameras, state=_resolved("state", self.state, [need.name for need in inputs.state]))


def short(name: str) -> str:
    """A name without the prefix of the field's keys: `top` of `observation.images.top`."""
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def place_of(name: str, names: Sequence[str]) -> int | None:
    """The place of this name, the first of equal ones; else of the only one whose last part is the same."""
    if name in names:
        return names.index(name)
    alike = [place for place, each in enumerate(names) if short(each) == short(name)]
    return alike[0] if len(alike) == 1 else None


def _resolved(key: str, configured: Mapping[str, Mapped], needed: Sequence[str]) -> dict[str, Mapped]:
    found: dict[str, Mapped] = {}
    for name, mapped in configured.items():
        place = place_of(name, needed)
        if place is None:
            raise ConfigError(f"{key}: the policy has no {name!r}; its names are {list_text(needed)}")
        if needed[place] in found:
            raise ConfigError(f"{key}: {needed[place]!r} is mapped twice; remove {name!r}")
        found[needed[place]] = mapped
    return found
