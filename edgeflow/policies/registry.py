"""The families of policies that are served: one line each, and after them the installed plug-ins.

Plug-ins are families that other installed distributions bring, by entry points of the group `edgeflow.policies`. They
are found by their metadata, and imported when a checkpoint or the configuration needs them. Control imports them too,
without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from edgeflow.policies.act.family import ACT
from edgeflow.policies.family import CheckpointFiles, Family, described_kind
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.pi.family import PI0, PI05
from edgeflow.policies.smolvla.family import SMOLVLA
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

FAMILIES: tuple[Family, ...] = (OPENVLA_OFT, OPENVLA, ACT, SMOLVLA, PI0, PI05)
"""The first that recognises a checkpoint serves it; where none does, the first plug-in by name."""
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


@cache
def plugins() -> Mapping[str, Plugin]:
    """The plug-ins of this environment by name, in its order; searched once per process."""
    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    own = {family.name: (OURS,) for family in FAMILIES}
    return {
        name: Plugin(name, (*own.get(name, ()), *sorted(map(_origin, entries[name]))), entries[name][0])
        for name in sorted(entries)
    }


def family_of(directory: Path, configured: str = "") -> Family:
    """The family of a checkpoint: as configured, or as its files say.

    ConfigError for a name that is not served, for a plug-in of this name that cannot be used, and where no family
    recognises a checkpoint and two plug-ins have one name; CheckpointError for any other checkpoint that no family
    recognises. Both say which plug-ins cannot be used.
    """
    if configured:
        return _named(configured)
    found, problems = _search(directory)
    if found is None:
        config = read_json(directory / "config.json")
        served = f"model: config.json of {directory} has {described_kind(config)}; served: {_names()}"
        text = "; ".join([served, *problems])
        raise ConfigError(text) if any(plugin.is_ambiguous for plugin in plugins().values()) else CheckpointError(text)
    return found


def detected(directory: Path) -> Family | None:
    """The family that recognises a checkpoint's files; None where no family recognises it."""
    return _search(directory)[0]


def _search(directory: Path) -> tuple[Family | None, list[str]]:
    """The family of a checkpoint's files; where none recognises them, the plug-ins that could not be loaded."""
    files = CheckpointFiles(read_json(directory / "config.json"))
    found = next((family for family in FAMILIES if family.detect(files)), None)
    if found is not None:
        return found, []
    problems: list[str] = []
    for plugin in plugins().values():
        try:
            if plugin.recognises(files):
                return plugin.load(), []
        except ConfigError as error:
            problems.append(error.text)
    return None, problems


def _named(name: str) -> Family:
    if name in plugins():
        return plugins()[name].load()
    found = next((family for family in FAMILIES if family.name == name), None)
    if found is None:
        raise ConfigError(f"policy.family: {name!r} is not served; served: {_names()}")
    return found


def _names() -> str:
    return ", ".join(dict.fromkeys([*(family.name for family in FAMILIES), *plugins()]))


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
