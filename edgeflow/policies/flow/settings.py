"""The section `policy` of the configuration for flow-matching policies: what their checkpoints do not state.

A file edgeflow.json beside the checkpoint gives defaults of the same keys; configured keys win. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from edgeflow.policies.family import Settings
from edgeflow.policies.flow.config import MOST_STEPS, FlowConfig
from edgeflow.policies.lerobot.features import ACTION, STATE
from edgeflow.policies.settings import Name, validated
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import ConfigError

DEFAULTS_FILE = "edgeflow.json"
MOST_CANDIDATES = 16
MOST_GUIDANCE = 100.0
MOST_RATE = 1000.0  # Hz
MOST_SEED = (1 << 63) - 1
MISSING = {
    "control_rate_hz": "the checkpoint does not state it: add the rate of the training's data, "
    'such as "policy": {"control_rate_hz": 30}'
}


def _between(low: float, high: float) -> AfterValidator:
    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"must be {low:g} to {high:g}")
        return value

    return AfterValidator(check)


def _rate(value: float) -> float:
    if not 0 < value <= MOST_RATE:
        raise ValueError(f"must be above 0 and at most {MOST_RATE:g}")
    return value


class ChunkingSettings(BaseModel):
    """Real-time chunking: how an answer continues the chunk that is being played.

    execution_horizon: rows that are drawn to it, at most; None = 10, or the chunk. max_guidance_weight: bound of the
    guidance. mode: trained = rows that will have passed are set, not guided. trained_max_delay: most rows that the
    checkpoint's training set; None = rtc_training_max_delay of its config.json.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    schedule: Literal["ZEROS", "ONES", "LINEAR", "EXP"] = "LINEAR"
    execution_horizon: Annotated[int, Field(ge=1)] | None = None
    max_guidance_weight: Annotated[float, _between(0.0, MOST_GUIDANCE)] = 10.0
    mode: Literal["guided", "trained"] = "guided"
    trained_max_delay: Annotated[int, Field(ge=1)] | None = None


class FlowSettings(BaseModel):
    """control_rate_hz: rate at which the training's actions followed each other. action_*: of the numbers of an action,
    in order; empty = not stated. frame, rotation: as of ActionSchema. absent_cameras: names of the checkpoint's cameras
    that the robot does not have. steps: N; None = the checkpoint's. noise_seed: of the noise that answers begin with.
    candidates: chunks that are denoised for a frame. rtc: None = answers begin anew.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    control_rate_hz: Annotated[float, AfterValidator(_rate)]
    action_names: list[Name] = []
    action_units: list[Name] = []
    action_low: list[float] = []
    action_high: list[float] = []
    action_relative: list[bool] = []
    frame: Literal["tool", "base"] = "base"
    rotation: Literal["rotvec", "euler_xyz"] = "euler_xyz"
    state_names: list[Name] = []
    state_units: list[Name] = []
    absent_cameras: list[Name] = []
    steps: Annotated[int, _between(1, MOST_STEPS)] | None = None
    noise_seed: Annotated[int, Field(ge=0, le=MOST_SEED)] = 0
    candidates: Annotated[int, _between(1, MOST_CANDIDATES)] = 1
    rtc: ChunkingSettings | None = None


ANY_RATE = {"control_rate_hz": 1.0}
"""For readers to which the rate of the actions does not matter."""


def read_settings(family: str, directory: Path, given: Settings, config: FlowConfig) -> FlowSettings:
    """The settings for a checkpoint; ConfigError names the key, what is wrong and what to write."""
    stated = read_json(directory / DEFAULTS_FILE, required=False)
    read = validated(family, FlowSettings, {**stated, **given}, MISSING)
    for key in ("action_names", "action_units", "action_low", "action_high", "action_relative"):
        _check_length(key, getattr(read, key), config.action, ACTION)
    for key in ("state_names", "state_units"):
        _check_length(key, getattr(read, key), config.state, STATE)
    for key in ("action_names", "state_names", "absent_cameras"):
        _check_unique(key, getattr(read, key))
    pairs = zip(read.action_low, read.action_high, strict=False)
    wrong = [(low, high) for low, high in pairs if low >= high]
    if wrong:
        raise ConfigError(f"policy.action_high: {wrong[0][1]} is not above action_low, {wrong[0][0]}")
    _check_cameras(read.absent_cameras, [camera.name for camera in config.cameras])
    if read.rtc is not None:
        _check_chunking(read.rtc, config)
    return read


def _check_length(key: str, values: Sequence[object], size: int, what: str) -> None:
    if values and len(values) != size:
        raise ConfigError(f"policy.{key}: {len(values)} entries, but {what} has {size} numbers")


def _check_unique(key: str, names: list[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"policy.{key}: {twice[0]!r} is there twice")


def _check_cameras(absent: list[str], cameras: list[str]) -> None:
    unknown = [name for name in absent if name not in cameras]
    if unknown:
        raise ConfigError(f"policy.absent_cameras: {unknown[0]!r} is not one of {', '.join(cameras)}")
    if len(absent) == len(cameras):
        raise ConfigError("policy.absent_cameras: names all cameras of the checkpoint; leave at least one")


def _check_chunking(rtc: ChunkingSettings, config: FlowConfig) -> None:
    if rtc.execution_horizon is not None and rtc.execution_horizon > config.chunk:
        raise ConfigError(f"policy.rtc.execution_horizon: {rtc.execution_horizon} must be 1 to {config.chunk}")
    most = config.trained_delay or config.chunk
    if rtc.trained_max_delay is not None and rtc.trained_max_delay > most:
        raise ConfigError(f"policy.rtc.trained_max_delay: {rtc.trained_max_delay} must be 1 to {most}")
    if rtc.trained_max_delay is not None and rtc.mode != "trained":
        raise ConfigError('policy.rtc.trained_max_delay: is for "mode": "trained"; set that, or remove it')
    if rtc.mode == "trained" and not (rtc.trained_max_delay or config.trained_delay):
        raise ConfigError(
            "policy.rtc.mode: this checkpoint does not say that it was trained for it: use guided, or state "
            "policy.rtc.trained_max_delay, the most rows that its training kept"
        )
