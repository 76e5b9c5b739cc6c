"""ACT, LeRobot's Action Chunking Transformer, in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.errors import CheckpointError, ConfigError
from edgeflow.policies.act.config import load_config
from edgeflow.policies.act.processors import load_processors
from edgeflow.policies.act.settings import read_settings
from edgeflow.policies.family import Family, Files, Settings, Verification

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published
    from edgeflow.recorded.comparison import CheckResult

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def _detect(files: Files) -> bool:
    return files.config.get("type") == "act"


def _check(directory: Path, settings: Settings) -> None:
    config = load_config(directory)
    load_processors(directory, config)
    if not any((directory / name).is_file() for name in WEIGHTS):
        raise CheckpointError(f"model: {directory} has no {WEIGHTS[0]}: fetch the checkpoint again")
    read_settings(settings, config)


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.policies.act.published import PublishedACT

    _check(directory, settings)
    if options.center_crop:
        raise ConfigError("center_crop: policies of this family, act, take whole images; remove it")
    return PublishedACT(directory, read_settings(settings, load_config(directory)))


def _prepare(policy: Policy, options: EngineOptions) -> PassEngine:
    from edgeflow.engine.control.one_pass import one_pass_engine

    return one_pass_engine(policy, options)


def _verify(directory: Path, asked: Verification) -> list[tuple[str, CheckResult]]:
    from edgeflow.policies.act.verify import verify

    return verify(directory, asked)


ACT = Family(name="act", detect=_detect, check=_check, load=_load, prepare=_prepare, verify=_verify)
