"""OpenVLA-OFT in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.policies.family import ONE_PASS_MODES, CheckpointFiles, Family, Settings
from edgeflow.policies.openvla_oft.config import HEAD, PROPRIO, read_checkpoint

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published


def _detect(files: CheckpointFiles) -> bool:
    """config.json is that of OpenVLA; the files of its head and its state are not."""
    return files.config.get("model_type") == "openvla" and any(
        name.startswith((HEAD, PROPRIO)) and name.endswith(".pt") for name in files.names
    )


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.policies.openvla_oft.policy import PublishedOpenVLAOFT

    return PublishedOpenVLAOFT(directory, read_checkpoint(directory, settings), center_crop=options.center_crop)


def _prepare(policy: Policy, options: EngineOptions) -> PassEngine:
    from edgeflow.engine.control.engine import one_pass_engine
    from edgeflow.policies.openvla_oft.policy import OpenVLAOFTPolicy

    if not isinstance(policy, OpenVLAOFTPolicy):
        raise TypeError(f"a policy of openvla_oft is needed, not {type(policy).__name__}")
    kv = policy.network.reserve(options.batch(policy), policy.fixed_rows + options.text_rows)
    return one_pass_engine(policy, options, kv.nbytes)


OPENVLA_OFT = Family(
    name="openvla_oft",
    modes=ONE_PASS_MODES,
    detect=_detect,
    check=read_checkpoint,
    load=_load,
    prepare=_prepare,
    example={
        "model": "moojink/openvla-7b-oft-finetuned-libero-spatial",
        "policy": {"family": "openvla_oft", "preset": "libero"},
        "center_crop": True,
    },
    decisions={
        "policy.preset": "the robot: libero, aloha or bridge; single keys override it",
        "center_crop": "true for fine-tunes with random crops, as the published ones are",
    },
)
