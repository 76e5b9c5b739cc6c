"""The files of an OpenVLA-OFT checkpoint beside those of OpenVLA. Torch-free.

Published source: `save_training_checkpoint` of openvla-oft's vla-scripts/finetune.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeflow.errors import CheckpointError, ConfigError
from edgeflow.policies.openvla_oft.settings import OFTSettings

HEAD, PROPRIO = "action_head", "proprio_projector"
UNSUPPORTED = {"vision_backbone": "FiLM", "noisy_action_projector": "the diffusion head"}


@dataclass(frozen=True, slots=True)
class ExtraFiles:
    """head: None for a policy of tokens. proprio: None for one without state."""

    head: Path | None
    proprio: Path | None


def find_files(directory: Path, settings: OFTSettings) -> ExtraFiles:
    """The .pt files that the settings call for; CheckpointError or ConfigError where one is missing, or cannot be
    chosen."""
    for stem, name in UNSUPPORTED.items():
        found = _of_stem(directory, stem)
        if found:
            raise CheckpointError(f"model: {directory} has {found[0].name}: {name} is not supported")
    heads = _of_stem(directory, HEAD)
    head = bool(heads) if settings.action_head is None else settings.action_head
    return ExtraFiles(
        head=_choose(directory, HEAD, settings, "policy.action_head is true") if head else None,
        proprio=_choose(directory, PROPRIO, settings, f"policy.proprio is {settings.proprio}")
        if settings.proprio
        else None,
    )


def _of_stem(directory: Path, stem: str) -> list[Path]:
    return sorted(directory.glob(f"{stem}--*_checkpoint.pt"))


def _choose(directory: Path, stem: str, settings: OFTSettings, why: str) -> Path:
    """The one file of a stem, or that of `policy.step`."""
    found = _of_stem(directory, stem)
    if settings.step is not None:
        wanted = f"{stem}--{settings.step}_checkpoint.pt"
        chosen = next((path for path in found if path.name == wanted), None)
        if chosen is None:
            raise ConfigError(f"policy.step: {directory} has no {wanted}")
        return chosen
    if not found:
        raise CheckpointError(
            f"model: {directory} has no {stem}--*_checkpoint.pt, but {why}: fetch the checkpoint again"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(f"policy.step: choose the training step of one of {names}")
    return found[0]
