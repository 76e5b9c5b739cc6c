"""OpenVLA-OFT in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.errors import CheckpointError
from edgeflow.policies.family import Family, Files, Settings, Verification
from edgeflow.policies.openvla_oft.files import find_files
from edgeflow.policies.openvla_oft.settings import OFTSettings
from edgeflow.policies.openvla_oft.statistics import read_statistics

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published
    from edgeflow.recorded.comparison import CheckResult

REQUIRED = ("preprocessor_config.json", "tokenizer.json")


def _detect(files: Files) -> bool:
    """True for recordings alone: config.json is that of OpenVLA."""
    constants = (files.cases or {}).get("constants")
    recorded = isinstance(constants, dict) and "NUM_ACTIONS_CHUNK" in constants
    return recorded and files.config.get("model_type") == "openvla"


def _check(directory: Path, settings: Settings) -> None:
    chosen = OFTSettings.of(settings)
    for name in REQUIRED:
        if not (directory / name).is_file():
            raise CheckpointError(f"model: {directory} has no {name}: fetch the checkpoint again")
    find_files(directory, chosen)
    read_statistics(directory, chosen)


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.policies.openvla_oft.published import PublishedOpenVLAOFT

    _check(directory, settings)
    return PublishedOpenVLAOFT(directory, OFTSettings.of(settings), center_crop=options.center_crop)


def _prepare(policy: Policy, options: EngineOptions) -> PassEngine:
    from edgeflow.engine.control.one_pass import one_pass_engine
    from edgeflow.policies.openvla_oft.policy import OpenVLAOFTPolicy

    if isinstance(policy, OpenVLAOFTPolicy):
        policy.network.reserve(options.sessions, policy.fixed_rows + options.text_rows)
    return one_pass_engine(policy, options)


def _verify(directory: Path, asked: Verification) -> list[tuple[str, CheckResult]]:
    from edgeflow.policies.openvla_oft.verify import verify

    return verify(directory, asked)


OPENVLA_OFT = Family(name="openvla_oft", detect=_detect, check=_check, load=_load, prepare=_prepare, verify=_verify)
