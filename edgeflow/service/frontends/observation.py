"""Observations as front ends read them, and the checked request and frame that control gets of them.

Nothing is converted but the images and the state that the policy needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CHANNELS, PolicyInputs
from edgeflow.service.observation.checks import (
    MAX_NUMBER,
    MAX_PERIOD_MS,
    check_camera_names,
    check_camera_size,
    check_name,
    check_text,
    check_vectors,
)
from edgeflow.service.observation.requests import CheckedFrame, Names, OpenRequest, matched
from edgeflow_client.errors import InvalidArgument, NotFound, RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one request shows, before anything is checked or matched with the policy."""

    images: Mapping[str, NDArray[Any]]
    """By name: [height, width, 3] or [3, height, width], of bytes or of floats in 0 to 1."""
    state: Mapping[str, NDArray[Any]]
    """Vectors by name, [numbers]; a number alone has no dimension."""
    instruction: str
    unnorm_key: str = ""
    model: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The client's own field of each name, for messages; a name that is not in it is its own field."""


class Reader:
    """Checks and matches the observations of one front end. front: its name in the configuration.

    A robot's observations differ in numbers alone: names, sizes and text are checked when they change.
    """

    def __init__(self, config: ServiceConfig, front: str) -> None:
        self._config = config
        self._front = front
        self._instruction = config.frontends.dialects[front].instruction
        self._form: object = None  # of the observation before
        self._opened: OpenRequest

    def read(self, seen: Seen, inputs: PolicyInputs, *, chunks: bool = True) -> tuple[OpenRequest, CheckedFrame]:
        """The request for a session that fits this observation, and its frame; RequestErrors name the client's field.

        inputs: what the policy needs. chunks: the client takes chunks of several actions.
        """
        try:
            return self._read(seen, inputs, chunks)
        except RequestError as error:
            raise _renamed(error, seen) from None

    def _read(self, seen: Seen, inputs: PolicyInputs, chunks: bool) -> tuple[OpenRequest, CheckedFrame]:
        sizes = [(name, each.shape, each.dtype) for part in (seen.images, seen.state) for name, each in part.items()]
        form = (len(seen.images), sizes, seen.instruction, seen.unnorm_key, seen.model, chunks, inputs)
        if form != self._form:
            self._opened = self._request(seen, inputs, chunks)
            self._form = form
        opened = self._opened
        frame = CheckedFrame(
            seq=1,
            stamp_ns=0,
            images=tuple(_pixels(camera.name, seen.images[camera.name]) for camera in opened.cameras),
            state=_numbers(seen.state, opened),
            instruction=opened.instruction,
        )
        return opened, frame

    def _request(self, seen: Seen, inputs: PolicyInputs, chunks: bool) -> OpenRequest:
        limits = self._config.limits
        if seen.model not in ("", self._config.alias):
            text = f"unknown model; this service serves {self._config.alias!r}"
            raise NotFound(text, field="model", reason=Reason.MODEL_UNKNOWN)
        instruction = seen.instruction or self._instruction
        if not instruction:
            text = f"is missing: send it, or configure frontends.{self._front}.instruction"
            raise InvalidArgument(text, field="instruction", reason=Reason.TEXT_EMPTY)
        cameras = tuple(_camera(name, image) for name, image in seen.images.items())
        check_camera_names([camera.name for camera in cameras], limits)
        state = tuple(_vector(name, numbers) for name, numbers in seen.state.items())
        check_vectors(state, limits)
        opened = OpenRequest(
            cameras=cameras,
            instruction=check_text(instruction, "instruction", limits),
            control_period_ns=MAX_PERIOD_MS * 1_000_000,
            max_action_age_ns=None,
            mode=None,
            unnorm_key=check_name(seen.unnorm_key, "unnorm_key") if seen.unnorm_key else "",
            state=state,
            chunks=chunks,
            front=self._front,
        )
        opened = matched(opened, inputs, Names.of(self._config, inputs, self._front))
        opened = replace(opened, cameras=tuple(each for each in cameras if each in opened.policy_cameras))
        for camera in opened.cameras:
            check_camera_size(camera, camera.name, limits)
        return opened


def _camera(name: str, image: NDArray[Any]) -> CameraSpec:
    shape = image.shape
    if len(shape) != 3 or CHANNELS not in (shape[0], shape[2]):
        text = f"has the shape {list(shape)}; an image is [height, width, 3] or [3, height, width]"
        raise InvalidArgument(text, field=name, reason=Reason.IMAGE_WRONG_SIZE)
    if image.dtype != np.uint8 and image.dtype.kind != "f":
        text = f"is of {image.dtype}; an image is of uint8, or of floats in 0 to 1"
        raise InvalidArgument(text, field=name, reason=Reason.IMAGE_WRONG_FORMAT)
    height, width = shape[:2] if shape[2] == CHANNELS else shape[1:]
    return CameraSpec(name, width, height, ImageFormat.RGB8)


def _pixels(name: str, image: NDArray[Any]) -> memoryview:
    """The RGB bytes of an image, without a copy where they lie in order."""
    if image.shape[2] != CHANNELS:
        image = image.transpose(1, 2, 0)
    if image.dtype != np.uint8:
        if not ((image >= 0) & (image <= 1)).all():  # also refuses NaN
            text = "has values outside 0 to 1; an image of floats has its brightness there"
            raise InvalidArgument(text, field=name, reason=Reason.IMAGE_WRONG_FORMAT)
        image = (image * 255).astype(np.uint8)
    return np.ascontiguousarray(image).data.cast("B")


def _vector(name: str, numbers: NDArray[Any]) -> StateSpec:
    if numbers.ndim > 1 or numbers.dtype.kind not in "fiu":
        text = f"is {numbers.dtype} of the shape {list(numbers.shape)}; state is a vector of numbers"
        raise InvalidArgument(text, field=name, reason=Reason.STATE_COUNT)
    return StateSpec(name=name, size=numbers.size)


def _numbers(state: Mapping[str, NDArray[Any]], opened: OpenRequest) -> tuple[float, ...]:
    """The numbers of all vectors, as 32-bit floats hold them; all are finite and plausible."""
    found: list[float] = []
    for vector in opened.state:
        numbers = state[vector.name].reshape(-1)
        fits = np.abs(numbers.astype(np.float64)) <= MAX_NUMBER  # False for NaN
        if not fits.all():
            place = int(np.argmin(fits))
            finite = math.isfinite(numbers[place])
            text = f"must be finite and at most {MAX_NUMBER:g} in magnitude"
            reason = Reason.PROPRIO_OUT_OF_RANGE if finite else Reason.PROPRIO_NOT_FINITE
            raise InvalidArgument(text, field=f"{vector.name}[{place}]", reason=reason)
        found += numbers.astype(np.float32).tolist()
    return tuple(found)


def _renamed(error: RequestError, seen: Seen) -> RequestError:
    """The error with the client's own field in place of ours."""
    name, bracket, rest = error.field.removeprefix("open.").partition("[")
    field = seen.fields.get(name, name) + bracket + rest
    text = error.text.removeprefix(f"{error.field}: ")
    return type(error)(text, field=field, reason=error.reason, retry_after_ms=error.retry_after_ms)
