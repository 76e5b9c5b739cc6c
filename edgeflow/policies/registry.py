"""The families of policies that are served: one line each."""

from __future__ import annotations

from pathlib import Path

from edgeflow.policies.act.family import ACT
from edgeflow.policies.family import Family, Files, described_kind
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.pi.family import PI0, PI05
from edgeflow.policies.smolvla.family import SMOLVLA
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

FAMILIES: tuple[Family, ...] = (OPENVLA_OFT, OPENVLA, ACT, SMOLVLA, PI0, PI05)
"""The first that recognises a checkpoint serves it."""


def family_of(directory: Path, configured: str = "", *, recorded: bool = False) -> Family:
    """The family of a checkpoint: as configured, or as its files say. recorded: cases.json is one of them.

    ConfigError for a name that is not served, CheckpointError for a checkpoint that no family recognises.
    """
    names = ", ".join(family.name for family in FAMILIES)
    if configured:
        found = next((family for family in FAMILIES if family.name == configured), None)
        if found is None:
            raise ConfigError(f"policy.family: {configured!r} is not served; served: {names}")
        return found
    found = detected(directory, recorded=recorded)
    if found is None:
        config = read_json(directory / "config.json")
        raise CheckpointError(f"model: config.json of {directory} has {described_kind(config)}; served: {names}")
    return found


def detected(directory: Path, *, recorded: bool = False) -> Family | None:
    """The family that a checkpoint's files tell; None where no family recognises it. recorded: as of `family_of`."""
    config = read_json(directory / "config.json")
    files = Files(config, read_json(directory / "cases.json", required=False) if recorded else None)
    return next((family for family in FAMILIES if family.detect(files)), None)
