"""ACT, LeRobot's Action Chunking Transformer, in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.policies.act.config import read_checkpoint
from edgeflow.policies.family import ONE_PASS_MODES, CheckpointFiles, Family, Settings, reject_crop
from edgeflow.policies.lerobot import RATE_DECISION

if TYPE_CHECKING:
    from edgeflow.engine.policy import LoadOptions, Published


def _detect(files: CheckpointFiles) -> bool:
    return files.config.get("type") == "act"


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.policies.act.policy import PublishedACT

    checkpoint = read_checkpoint(directory, settings)
    reject_crop("act", options)
    return PublishedACT(directory, checkpoint)


ACT = Family(
    name="act",
    modes=ONE_PASS_MODES,
    detect=_detect,
    check=read_checkpoint,
    load=_load,
    example={"model": "OWNER/NAME", "policy": {"control_rate_hz": 50.0}},
    decisions=RATE_DECISION,
)
