"""Families of policies that other installed distributions bring, by entry points of the group `edgeflow.policies`.

They are found by their metadata, and imported when a checkpoint or the configuration needs them. Control imports them
too, without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from edgeflow.policies.family import CheckpointFiles, Family
from edgeflow_client.errors import ConfigError

GROUP = "edgeflow.policies"
OURS = "edgeflow-server"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A family of another distribution, not imported yet."""

    name: str
    """The name of its entry point, which is the family's."""
    origins: tuple[str, ...]
    """The distributions that provide a family of this name, with their versions."""
    entry: EntryPoint
    """The entry point with its code."""

    @property
    def is_ambiguous(self) -> bool:
        """True when several distributions bring it, so that none of them can be used."""
        return len(self.origins) > 1

    def load(self) -> Family:
        """The family; ConfigError, naming the distribution, for one that cannot be used."""
        if self.is_ambiguous:
            raise ConfigError(f"policy.family: {self.name} is brought by {' and by '.join(self.origins)}: remove one")
        without_torch = "torch" not in sys.modules
        try:
            found = self.entry.load()
        except (Exception, SystemExit) as error:  # whatever goes wrong inside it
            raise self._unusable(error) from error
        if not isinstance(found, Family) or found.name != self.name:
            kind = f"a family of the name {found.name}" if isinstance(found, Family) else f"a {type(found).__name__}"
            raise self._unusable(TypeError(f"{self.entry.value} is {kind}, and no Family of the name {self.name}"))
        if without_torch and "torch" in sys.modules:
            raise self._unusable(ImportError("it imports torch, which only its load and prepare may do"))
        return found

    def recognises(self, files: CheckpointFiles) -> bool:
        """True for a checkpoint of this family; ConfigError as in `load`."""
        family = self.load()
        try:
            return family.detect(files)
        except Exception as error:
            raise self._unusable(error) from error

    def _unusable(self, error: BaseException) -> ConfigError:
        """The error, without the exception's own text, which may hold anything; `edgeflow doctor` shows the cause."""
        text = f"policy.family: {self.name} of {self.origins[0]} cannot be used ({type(error).__name__})"
        unusable = ConfigError(f"{text}; see `edgeflow doctor`")
        unusable.__cause__ = error
        return unusable


def installed(built_in: tuple[str, ...]) -> Mapping[str, Plugin]:
    """The plug-ins of this environment by name, in its order. built_in: names that are taken."""
    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    own = dict.fromkeys(built_in, (OURS,))
    return {
        name: Plugin(name, (*own.get(name, ()), *sorted(map(_origin, entries[name]))), entries[name][0])
        for name in sorted(entries)
    }


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
