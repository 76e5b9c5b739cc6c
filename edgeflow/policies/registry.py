"""The families of policies that are served: one line each, and after them the installed plug-ins (plugins.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from edgeflow.policies.act.family import ACT
from edgeflow.policies.family import CheckpointFiles, Family, Settings, described_kind
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.pi.family import PI0, PI05
from edgeflow.policies.plugins import GROUP, Plugin
from edgeflow.policies.smolvla.family import SMOLVLA
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

FAMILIES: tuple[Family, ...] = (OPENVLA_OFT, OPENVLA, ACT, SMOLVLA, PI0, PI05)
"""The first that recognises a checkpoint serves it; where none does, the first plug-in by name."""
OURS = "edgeflow-server"
CHAT = "chat"
CHAT_EXAMPLE = {"chat": {"model": "Qwen/Qwen2.5-1.5B-Instruct", "capacity": 4096}}


@cache
def plugins() -> dict[str, Plugin]:
    """The plug-ins of this environment by name, in its order; searched once per process."""
    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    own = {family.name: (OURS,) for family in FAMILIES}
    return {
        name: Plugin(name, (*own.get(name, ()), *sorted(map(_origin, entries[name]))), entries[name][0])
        for name in sorted(entries)
    }


def plugin_of(family: str) -> str:
    """Name, distribution and version of the plug-in that brings a family; "" for a built-in one."""
    own = any(each.name == family for each in FAMILIES)
    return "" if own or family not in plugins() else plugins()[family].origin


def try_plugins(directory: Path, configured: str, settings: Settings) -> str:
    """Try the plug-ins that will be asked about a checkpoint, and return the name of the one that serves it: "" for a
    built-in family, and where none does.

    Those that hang, or end their process, cannot be used from then on. configured, settings: of the configuration's
    section `policy`.
    """
    files = CheckpointFiles.of(directory)
    if configured:
        asked = [configured] if configured in plugins() else []
    else:
        asked = [] if any(family.detect(files) for family in FAMILIES) else list(plugins())
    for name in asked:
        plugin = plugins()[name]
        if plugin.is_ambiguous or plugin.fault:
            continue
        plugins()[name] = tried = plugin.tried(directory, settings, pinned=bool(configured))
        with contextlib.suppress(ConfigError):
            if configured or tried.recognises(files):
                return name
    return ""


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
    files = CheckpointFiles.of(directory)
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


def example_of(name: str) -> Mapping[str, Any]:
    """A configuration to begin with for a family, or for chat; ConfigError for a name without one."""
    if name == CHAT:
        return CHAT_EXAMPLE
    return _named(name, "name").example or {"model": "DIRECTORY", "policy": {"family": name}}


def _named(name: str, key: str = "policy.family") -> Family:
    if name in plugins():
        return plugins()[name].load()
    found = next((family for family in FAMILIES if family.name == name), None)
    if found is None:
        raise ConfigError(f"{key}: {name!r} is not served; served: {_names()}")
    return found


def _names() -> str:
    usable = [name for name, plugin in plugins().items() if not plugin.fault]
    return ", ".join(dict.fromkeys([*(family.name for family in FAMILIES), *usable]))


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
