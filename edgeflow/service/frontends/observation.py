"""Observations as front ends read them, and the checked request and frame that control gets of them.

Nothing is converted but the images and the state that the policy needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeflow.config.matching import CAMERAS, STATE, Names
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
from edgeflow.service.observation.requests import (
    CheckedFrame,
    OpenRequest,
    matched,
    narrowed,
)
from edgeflow_client.errors import InvalidArgument, NotFound, RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

Made = TypeVar("Made", CameraSpec, StateSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientObservation:
    """The contents of one request, before anything is checked or matched with the policy."""

    images: Mapping[str, NDArray[Any]]
    """Images by name: [height, width, 3] or [3, height, width], bytes or floats from 0 to 1."""
    state: Mapping[str, NDArray[Any]]
    """Vectors by name; a single number has no dimension."""
    instruction: str
    unnorm_key: str = ""
    model: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The client's own field for each name, for messages; other names are their own fields."""


class Reader:
    """Checks and matches the observations of one front end. front: its name in the configuration."""

    def __init__(self, config: ServiceConfig, front: str) -> None:
        self._config = config
        self._front = front
        self._instruction = config.frontends.dialects[front].instruction
        nothing = OpenRequest(
            cameras=(),
            instruction="",
            control_period_ns=MAX_PERIOD_MS * 1_000_000,
            max_action_age_ns=None,
            mode=None,
            unnorm_key="",
            chunks=True,
            front=front,
        )
        self._known: tuple[object, OpenRequest] = (None, nothing)  # cameras and vectors of the last observation

    def read(self, seen: ClientObservation, inputs: PolicyInputs) -> tuple[OpenRequest, CheckedFrame]:
        """The request for a session that fits this observation, and its frame; RequestErrors name the client's field.

        inputs: what the policy needs.
        """
        try:
            return self._read(seen, inputs)
        except RequestError as error:
            raise _renamed(error, seen) from None

    def _read(self, seen: ClientObservation, inputs: PolicyInputs) -> tuple[OpenRequest, CheckedFrame]:
        limits = self._config.limits
        if seen.model not in ("", self._config.alias):
            text = f"unknown model; this service serves {self._config.alias!r}"
            raise NotFound(text, field="model", reason=Reason.MODEL_UNKNOWN)
        instruction = seen.instruction or self._instruction
        if not instruction:
            text = f"is missing: send it, or configure frontends.{self._front}.instruction"
            raise InvalidArgument(text, field="instruction", reason=Reason.TEXT_EMPTY)
        opened = replace(
            self._request(seen, inputs),
            instruction=check_text(instruction, "instruction", limits),
            unnorm_key=check_name(seen.unnorm_key, "unnorm_key") if seen.unnorm_key else "",
        )
        frame = CheckedFrame(
            seq=1,
            stamp_ns=0,
            images=tuple(_pixels(camera.name, seen.images[camera.name]) for camera in opened.cameras),
            state=_numbers(seen.state, opened),
            instruction=opened.instruction,
        )
        return opened, frame

    def _request(self, seen: ClientObservation, inputs: PolicyInputs) -> OpenRequest:
        """The request for the cameras and vectors that the policy needs, reused while they stay the same."""
        cameras, no_images = _usable(_camera, seen.images)
        state, no_vectors = _usable(_vector, seen.state)
        if (cameras, state, inputs) == self._known[0]:
            return self._known[1]
        limits = self._config.limits
        opened = replace(self._known[1], cameras=cameras, state=state, policy_cameras=(), policy_numbers=())
        opened = self._matched(opened, inputs, {CAMERAS: no_images, STATE: no_vectors})
        check_camera_names([camera.name for camera in opened.cameras], limits)
        check_vectors(opened.state, limits)
        for camera in opened.cameras:
            check_camera_size(camera, camera.name, limits)
        self._known = ((cameras, state, inputs), opened)
        return opened

    def _matched(
        self, opened: OpenRequest, inputs: PolicyInputs, unusable: Mapping[str, Sequence[RequestError]]
    ) -> OpenRequest:
        """The request with what the policy needs of it, and nothing else.

        unusable: by the field in which something may be missing, why values of the client are not what has to be there.
        """
        names = Names.of(self._config, inputs, self._front)
        try:
            found = matched(opened, inputs, names)
        except RequestError as error:
            if error.reason == Reason.INPUT_MISSING and unusable.get(error.field):
                raise unusable[error.field][0] from None
            raise
        cameras = tuple(each for each in found.cameras if each in found.policy_cameras)
        narrow, _ = narrowed(found, range(found.numbers))
        return replace(matched(narrow, inputs, names), cameras=cameras)


def _usable(
    read: Callable[[str, NDArray[Any]], Made], values: Mapping[str, NDArray[Any]]
) -> tuple[tuple[Made, ...], list[RequestError]]:
    """Arrays that can be cameras or vectors, and errors for the others, which the policy may not need."""
    made: list[Made] = []
    unusable: list[RequestError] = []
    for name, value in values.items():
        try:
            made.append(read(name, value))
        except RequestError as error:
            unusable.append(error)
    return tuple(made), unusable


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
    """The RGB bytes of an image, without a copy if they are contiguous."""
    if image.shape[2] != CHANNELS:
        image = image.transpose(1, 2, 0)
    if image.dtype != np.uint8:
        if not ((image >= 0) & (image <= 1)).all():  # also rejects NaN
            text = "has values outside 0 to 1; an image of floats has its brightness there"
            raise InvalidArgument(text, field=name, reason=Reason.IMAGE_WRONG_FORMAT)
        image = (image * 255).astype(np.uint8)
    return np.ascontiguousarray(image).data.cast("B")


def _vector(name: str, numbers: NDArray[Any]) -> StateSpec:
    if numbers.ndim > 1 or numbers.dtype.kind not in "fiu" or not numbers.size:
        text = f"is {numbers.dtype} of the shape {list(numbers.shape)}; state is a vector of numbers"
        raise InvalidArgument(text, field=name, reason=Reason.STATE_COUNT)
    return StateSpec(name=name, size=numbers.size)


def _numbers(state: Mapping[str, NDArray[Any]], opened: OpenRequest) -> tuple[float, ...]:
    """The values of all vectors, rounded to 32-bit floats; all are finite and plausible."""
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


def _renamed(error: RequestError, seen: ClientObservation) -> RequestError:
    """The error with the client's own field in place of edgeflow's."""
    name, bracket, rest = error.field.removeprefix("open.").partition("[")
    field = (seen.fields.get(name, name) + bracket + rest) or "observation"
    text = error.text.removeprefix(f"{error.field}: ")
    return type(error)(text, field=field, reason=error.reason, retry_after_ms=error.retry_after_ms)
