"""The families of policies that are served: one line each, and after them the installed plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from edgeflow.policies.act.family import ACT
from edgeflow.policies.family import CheckpointFiles, Family, described_kind
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.pi.family import PI0, PI05
from edgeflow.policies.plugins import Plugin, installed
from edgeflow.policies.smolvla.family import SMOLVLA
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

FAMILIES: tuple[Family, ...] = (OPENVLA_OFT, OPENVLA, ACT, SMOLVLA, PI0, PI05)
"""The first that recognises a checkpoint serves it; where none does, the first plug-in by name."""


@cache
def plugins() -> Mapping[str, Plugin]:
    """The plug-ins by name; searched once per process."""
    return installed(tuple(family.name for family in FAMILIES))


def family_of(directory: Path, configured: str = "", *, recorded: bool = False) -> Family:
    """The family of a checkpoint: as configured, or as its files say. recorded: cases.json is one of them.

    ConfigError for a name that is not served, for a plug-in of this name that cannot be used, and where no family
    recognises a checkpoint and two plug-ins have one name; CheckpointError for any other checkpoint that no family
    recognises. Both say which plug-ins cannot be used.
    """
    if configured:
        return _named(configured)
    found, problems = _search(directory, recorded=recorded)
    if found is None:
        config = read_json(directory / "config.json")
        served = f"model: config.json of {directory} has {described_kind(config)}; served: {_names()}"
        text = "; ".join([served, *problems])
        raise ConfigError(text) if any(plugin.is_ambiguous for plugin in plugins().values()) else CheckpointError(text)
    return found


def detected(directory: Path, *, recorded: bool = False) -> Family | None:
    """The family that recognises a checkpoint's files; None where no family recognises it. recorded: as in
    `family_of`.
    """
    return _search(directory, recorded=recorded)[0]


def _search(directory: Path, *, recorded: bool) -> tuple[Family | None, list[str]]:
    """The family of a checkpoint's files; where none recognises them, the plug-ins that could not be loaded."""
    config = read_json(directory / "config.json")
    files = CheckpointFiles(config, read_json(directory / "cases.json", required=False) if recorded else None)
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
