"""SmolVLA, LeRobot's small flow-matching policy, in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.policies.family import DENOISING_MODES, Family, Files, Settings
from edgeflow.policies.smolvla.config import load_config, read_checkpoint
from edgeflow_client.errors import ConfigError

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published
    from edgeflow.kernels.table.model_shape import ModelShape


def _detect(files: Files) -> bool:
    return files.config.get("type") == "smolvla"


def _check(directory: Path, settings: Settings) -> None:
    read_checkpoint(directory, settings)


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.policies.flow.exported import published_flow
    from edgeflow.policies.smolvla.network import architecture_of

    checkpoint = read_checkpoint(directory, settings)
    if options.center_crop:
        raise ConfigError("center_crop: policies of this family, smolvla, take whole images; remove it")
    return published_flow(directory, checkpoint, architecture_of(checkpoint.config))


def _prepare(policy: Policy, options: EngineOptions) -> PassEngine:
    from edgeflow.engine.control.denoising import flow_engine

    return flow_engine(policy, options)


def _shape(directory: Path, rows: int) -> ModelShape:
    from edgeflow.policies.smolvla.network import shape_of

    return shape_of(load_config(directory), directory, rows)


SMOLVLA = Family(
    name="smolvla",
    modes=DENOISING_MODES,
    detect=_detect,
    check=_check,
    load=_load,
    prepare=_prepare,
    shape=_shape,
)
