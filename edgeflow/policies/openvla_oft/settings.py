"""The settings of OpenVLA-OFT, which its checkpoints do not state: the keys of the section `policy`, but `family`.

Published source: openvla-oft's prismatic/vla/constants.py, which chooses by the words of the command line. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from edgeflow.policies.settings import Name, validated
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import MAX_HORIZON, check_chunk

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "libero": {"chunk": 8, "dims": 7, "proprio": 8, "images": 2, "bounds": "q99", "control_rate_hz": 20.0},
    "aloha": {"chunk": 25, "dims": 14, "proprio": 14, "images": 3, "bounds": "min_max", "control_rate_hz": 25.0},
    "bridge": {"chunk": 5, "dims": 7, "proprio": 7, "images": 1, "bounds": "q99", "control_rate_hz": 5.0},
}
CAMERAS = {
    1: ("full_image",),
    2: ("full_image", "wrist_image"),
    3: ("full_image", "left_wrist_image", "right_wrist_image"),
}
STATE = "state"
"""The name of the state vector."""
MOST = {"chunk": MAX_HORIZON, "dims": 256, "proprio": 256, "images": 16}
"""The largest of each size."""
LATEST = "latest"


def _checked_step(value: object) -> object:
    if value is None or value == LATEST or (type(value) is int and value >= 0):
        return value
    raise ValueError('should be a training step, or "latest"')


Step = Annotated[int | Literal["latest"] | None, PlainValidator(_checked_step)]


class OFTSettings(BaseModel):
    """The settings that a policy is served with. Keys that are given override those of the preset."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    preset: Literal["libero", "aloha", "bridge"] | None = Field(None, description="the keys that a robot is known by")
    chunk: int = Field(ge=1, le=MOST["chunk"], description="actions per answer")
    dims: int = Field(ge=1, le=MOST["dims"], description="numbers of an action")
    proprio: int = Field(ge=0, le=MOST["proprio"], description="numbers of the state vector; 0 = none")
    images: int = Field(ge=1, le=MOST["images"], description="cameras")
    bounds: Literal["q99", "min_max"] = Field(description="the statistics that stand for -1 and 1")
    control_rate_hz: float = Field(gt=0, le=1000, description="rate at which the actions of a chunk follow each other")
    action_head: bool | None = Field(
        None, description="regress actions with the head of action_head--*.pt; default: if there is such a file"
    )
    step: Step = Field(None, description="training step of the .pt files, of several; latest = the newest")
    dataset: str | None = Field(None, description="the entry of the statistics, of several")
    camera_names: list[Name] | None = Field(None, description="names of the cameras, in the order of the images")
    state_names: list[Name] | None = Field(None, description="names of the numbers of the state vector")
    action_names: list[Name] | None = Field(None, description="names of the numbers of an action")
    relative: list[bool] | None = Field(None, description="per number of an action: true for a displacement")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> OFTSettings:
        """The settings in force; ConfigError in one line."""
        preset = given.get("preset")
        known = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
        missing = dict.fromkeys(cls.model_fields, f"give it, or policy.preset: {', '.join(PRESETS)}")
        settings = validated("openvla_oft", cls, {**known, **given}, missing)
        settings._check_lengths()
        return settings

    def _check_lengths(self) -> None:
        lists: tuple[tuple[str, Sequence[object] | None, str, int], ...] = (
            ("camera_names", self.camera_names, "images", self.images),
            ("state_names", self.state_names, "proprio", self.proprio),
            ("action_names", self.action_names, "dims", self.dims),
            ("relative", self.relative, "dims", self.dims),
        )
        for key, entries, limit, count in lists:
            if entries is not None and len(entries) != count:
                raise ConfigError(f"policy.{key}: has {len(entries)} entries; policy.{limit} is {count}")
            if entries is not None and key != "relative" and len(set(entries)) < count:
                raise ConfigError(f"policy.{key}: a name is repeated")
        try:
            check_chunk(self.chunk, self.dims)
        except ValueError as error:
            raise ConfigError(f"policy.chunk: {error}") from None
        if self.camera_names is None and self.images not in CAMERAS:
            raise ConfigError(f"policy.camera_names: is missing; {self.images} cameras have no customary names")

    @property
    def cameras(self) -> tuple[str, ...]:
        """The names of the cameras, in the order of the images."""
        return CAMERAS[self.images] if self.camera_names is None else tuple(self.camera_names)
