"""The files of an OpenVLA-OFT checkpoint beside those of OpenVLA. Torch-free.

Published source: `save_training_checkpoint` of openvla-oft's vla-scripts/finetune.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from edgeflow.policies.openvla_oft.settings import LATEST, OFTSettings
from edgeflow_client.errors import CheckpointError, ConfigError

HEAD, PROPRIO = "action_head", "proprio_projector"
UNSUPPORTED = {"vision_backbone": "FiLM", "noisy_action_projector": "the diffusion head"}
_UNUSED = {HEAD: "policy.action_head to false", PROPRIO: "policy.proprio to 0"}


@dataclass(frozen=True, slots=True)
class ExtraFiles:
    """head: None for a policy of tokens. proprio: None for one without state."""

    head: Path | None
    proprio: Path | None


def find_files(directory: Path, settings: OFTSettings) -> ExtraFiles:
    """The .pt files that the settings call for; CheckpointError or ConfigError where one is missing, has another name
    than the original gives it, or cannot be chosen."""
    for stem, name in UNSUPPORTED.items():
        found = min(directory.glob(f"{stem}*.pt"), default=None)
        if found is not None:
            raise CheckpointError(f"model: {directory} has {found.name}: {name} is not supported")
    heads = {} if settings.action_head is False else _by_step(directory, HEAD)
    head = _choose(directory, HEAD, heads, settings, "policy.action_head is true") if _has_head(settings, heads) else ""
    proprio = ""
    if settings.proprio:
        files = _by_step(directory, PROPRIO)
        proprio = _choose(directory, PROPRIO, files, settings, f"policy.proprio is {settings.proprio}")
    if head and proprio and settings.step == LATEST and head.removeprefix(HEAD) != proprio.removeprefix(PROPRIO):
        raise ConfigError(f"policy.step: the newest are {head} and {proprio}: give the step of both")
    return ExtraFiles(head=directory / head if head else None, proprio=directory / proprio if proprio else None)


def _has_head(settings: OFTSettings, heads: dict[str, str]) -> bool:
    return bool(heads) if settings.action_head is None else settings.action_head


def _by_step(directory: Path, stem: str) -> dict[str, str]:
    """Names of a stem's files by training step, the newest last; CheckpointError for another name."""
    found = {}
    for path in sorted(directory.glob(f"{stem}*.pt")):
        named = re.fullmatch(rf"{stem}--(\d+|{LATEST})_checkpoint\.pt", path.name)
        if named is None:
            raise CheckpointError(
                f"model: {directory} has {path.name}, whose name is not {stem}--<step>_checkpoint.pt: "
                f"rename it, or set {_UNUSED[stem]}"
            )
        found[named[1]] = path.name
    return dict(sorted(found.items(), key=lambda entry: math.inf if entry[0] == LATEST else int(entry[0])))


def _choose(directory: Path, stem: str, files: dict[str, str], settings: OFTSettings, why: str) -> str:
    """The one file of a stem, that of `policy.step`, or the newest."""
    if not files:
        raise CheckpointError(
            f"model: {directory} has no {stem}--*_checkpoint.pt, but {why}: fetch the checkpoint again"
        )
    if settings.step == LATEST:
        return list(files.values())[-1]
    if settings.step is not None:
        if str(settings.step) not in files:
            raise ConfigError(f"policy.step: {directory} has no {stem}--{settings.step}_checkpoint.pt")
        return files[str(settings.step)]
    if len(files) > 1:
        raise ConfigError(f"policy.step: choose the training step of one of {', '.join(files.values())}")
    return next(iter(files.values()))
