"""π0 and π0.5, Physical Intelligence's flow-matching policies in LeRobot's layout, in the registry of policies."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgeflow.policies.family import DENOISING_MODES, Family, Files, Settings
from edgeflow.policies.pi.config import PI0 as PI0_KIND
from edgeflow.policies.pi.config import PI05 as PI05_KIND
from edgeflow.policies.pi.config import load_config, read_checkpoint
from edgeflow_client.errors import ConfigError

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published
    from edgeflow.kernels.table.model_shape import ModelShape


def _detect(kind: str, files: Files) -> bool:
    return files.config.get("type") == kind


def _check(kind: str, directory: Path, settings: Settings) -> None:
    read_checkpoint(directory, kind, settings)


def _load(kind: str, directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.policies.flow.exported import published_flow
    from edgeflow.policies.pi.network import architecture_of

    checkpoint = read_checkpoint(directory, kind, settings)
    if options.center_crop:
        raise ConfigError(f"center_crop: policies of this family, {kind}, take whole images; remove it")
    return published_flow(directory, checkpoint, architecture_of(checkpoint.config))


def _prepare(policy: Policy, options: EngineOptions) -> PassEngine:
    from edgeflow.engine.control.denoising import flow_engine

    return flow_engine(policy, options)


def _shape(kind: str, directory: Path, rows: int) -> ModelShape:
    from edgeflow.policies.pi.network import shape_of

    return shape_of(load_config(directory, kind), directory, rows)


def _family(kind: str) -> Family:
    return Family(
        name=kind,
        modes=DENOISING_MODES,
        detect=partial(_detect, kind),
        check=partial(_check, kind),
        load=partial(_load, kind),
        prepare=_prepare,
        shape=partial(_shape, kind),
    )


PI0, PI05 = _family(PI0_KIND), _family(PI05_KIND)
