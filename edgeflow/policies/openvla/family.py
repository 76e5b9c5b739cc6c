"""OpenVLA in the registry of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.contract import KVName
from edgeflow.policies.family import TOKEN_MODES, CheckpointFiles, Family, Settings, check_files, check_kind
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import ConfigError

if TYPE_CHECKING:
    from edgeflow.engine.policy import LoadOptions, Published

OFT_STEMS = ("action_head", "proprio_projector")
RATE, MAX_RATE_HZ = "control_rate_hz", 1000.0
REQUIRED = ("preprocessor_config.json", "tokenizer.json")


def _detect(files: CheckpointFiles) -> bool:
    return files.config.get("model_type") == "openvla"


def _check(directory: Path, settings: Settings) -> None:
    others = settings.keys() - {"kv", RATE}
    if others:
        raise ConfigError(f"policy.{min(others)}: this family, openvla, has no such setting; it has kv and {RATE}")
    if settings.get("kv", "model") not in get_args(KVName):
        raise ConfigError(f"policy.kv: must be one of {', '.join(get_args(KVName))}, got {settings['kv']!r}")
    rate_hz = settings.get(RATE, 0.0)
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, int | float) or not 0.0 <= rate_hz <= MAX_RATE_HZ:
        raise ConfigError(f"policy.{RATE}: must be 0 (not known) to {MAX_RATE_HZ:g} Hz, got {rate_hz!r}")
    check_kind(read_json(directory / "config.json"), "model_type", "openvla", family="openvla")
    extra = min((path for stem in OFT_STEMS for path in directory.glob(f"{stem}*.pt")), default=None)
    if extra is not None:
        raise ConfigError(
            f"policy: {directory} has {extra.name}, which is of OpenVLA-OFT: "
            'add "policy": {"family": "openvla_oft", "preset": "libero"} (or aloha, bridge)'
        )
    check_files(directory, *REQUIRED)


def _load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
    from edgeflow.kernels.kv.formats import CONFIGURED
    from edgeflow.policies.openvla.exported import StaticOpenVLACheckpoint
    from edgeflow.policies.openvla.policy import PublishedOpenVLA

    _check(directory, settings)
    kind = StaticOpenVLACheckpoint if is_artifact(directory) else PublishedOpenVLA
    return kind(
        directory,
        center_crop=options.center_crop,
        kv_format=CONFIGURED[settings.get("kv", "model")],
        control_rate_hz=float(settings.get(RATE, 0.0)),
    )


OPENVLA = Family(
    name="openvla",
    modes=TOKEN_MODES,
    detect=_detect,
    check=_check,
    load=_load,
    formats=True,
    example={"model": "openvla/openvla-7b", "policy": {RATE: 5.0}, "unnorm_key": "bridge_orig"},
    decisions={
        f"policy.{RATE}": "the rate of the training data; 0 if it is not known, and then without look-ahead",
        "unnorm_key": "the data set of your robot",
    },
)
