"""Observations as flat mappings, checked and turned into the message that the worker's loop takes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from edgeflow.config.matching import Names, find_inputs, list_text, need_text, sides_text, state_text
from edgeflow.contract import CHANNELS, PolicyInputs
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.observation import encode_images, encode_state
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

INSTRUCTION, STAMP, DELAY = "instruction", "stamp_ns", "delay_ms"
MOST_STAMP_NS = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedObservation:
    """An observation that was checked, in the order of the policy's inputs."""

    sizes: list[int]
    """Height and width of each image, flattened."""
    payload: tuple[bytes, ...]
    """height*width*3 RGB bytes of each image."""
    state: list[float]
    """The values of all state vectors, rounded to float32 as on the wire."""
    instruction: str
    stamp_ns: int | None
    """None = not given."""
    delay_ms: float
    """As in Observation."""


def check_observation(
    observation: Mapping[str, Any], inputs: PolicyInputs, names: Names, *, reads_text: bool
) -> EncodedObservation:
    """Match a flat mapping with what the policy needs; InvalidArgument names both sides.

    observation: cameras as uint8 [height, width, 3], state vectors as numbers [n], "instruction", "stamp_ns" and
    "delay_ms". names: of the configuration. reads_text: the policy reads the instruction, which then may not be
    missing.
    """
    if not isinstance(observation, Mapping):
        raise InvalidArgument(f"must be a dict of arrays by name, got {type(observation).__name__}")
    images, vectors = dict[str, Any](), dict[str, Any]()
    for name, value in observation.items():
        if name not in (INSTRUCTION, STAMP, DELAY):
            array = _array(name, value)
            (images if array.ndim == 3 else vectors)[name] = array
    cameras = tuple(CameraSpec(name, each.shape[1], each.shape[0], ImageFormat.RGB8) for name, each in images.items())
    specs = tuple(StateSpec(name=name, size=len(each)) for name, each in vectors.items())
    try:
        found, places = find_inputs(cameras, specs, inputs, names)
    except InvalidArgument as error:  # its field is one of the protocol
        text = error.text.removeprefix(f"{error.field}: ")
        raise InvalidArgument(text, reason=error.reason) from None
    _reject_unknown(cameras, specs, found, places, inputs)
    numbers = encode_state(vectors, (), specs)
    return EncodedObservation(
        sizes=[side for camera in found for side in (camera.height, camera.width)],
        payload=tuple(encode_images({each.name: images[each.name] for each in found}, found)),
        state=[numbers[place] for place in places],
        instruction=_instruction(observation, needed=reads_text),
        stamp_ns=_stamp_ns(observation),
        delay_ms=_delay_ms(observation, inputs.most_delay_ms),
    )


def _array(name: object, value: object) -> np.ndarray[Any, np.dtype[Any]]:
    """An image [H, W, 3] or a vector [n]."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # ragged, or an array of another library on its own device
        array = np.array(None)
    is_image = array.ndim == 3 and array.shape[2] == CHANNELS
    if not isinstance(name, str) or not array.size or not (is_image or array.ndim == 1):
        given = f"{array.dtype} {list(array.shape)}" if array.ndim else type(value).__name__
        raise InvalidArgument(
            f"{name!r} is {given}; give a camera as uint8 [height, width, 3] RGB, a state vector as numbers [n], and "
            f"{INSTRUCTION!r} and {STAMP!r} by these names"
        )
    return array


def _reject_unknown(
    cameras: tuple[CameraSpec, ...],
    specs: tuple[StateSpec, ...],
    found: tuple[CameraSpec, ...],
    places: tuple[int, ...],
    inputs: PolicyInputs,
) -> None:
    """Reject what the policy does not use: a robot may have more cameras than its policy; here it is a wrong name."""
    of_place = list(chain.from_iterable([each.name] * each.size for each in specs))
    used = {each.name for each in found} | {of_place[place] for place in places}
    unknown = [name for name in (*(each.name for each in cameras), *(each.name for each in specs)) if name not in used]
    if unknown:
        needed = ", ".join([*map(need_text, inputs.cameras), *map(state_text, inputs.state)]) or "nothing"
        sent = ", ".join([*(f"{each.name!r} {each.width}x{each.height}" for each in cameras), *map(state_text, specs)])
        text = sides_text(f"the policy has no {list_text(unknown)}", needed, sent)
        raise InvalidArgument(text, reason=Reason.INPUT_MAPPING)


def _instruction(observation: Mapping[str, Any], *, needed: bool) -> str:
    text = observation.get(INSTRUCTION, "")
    if not isinstance(text, str):
        raise InvalidArgument(f"{INSTRUCTION!r} must be a text, got {type(text).__name__}")
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise InvalidArgument(f"{INSTRUCTION!r} is not a text: it has half of a character")
    if needed and not text.strip():
        text = f"{INSTRUCTION!r} is missing or empty: this policy follows one, such as 'grasp the red handle'"
        raise InvalidArgument(text, reason=Reason.TEXT_EMPTY)
    return text


def _stamp_ns(observation: Mapping[str, Any]) -> int | None:
    given = observation.get(STAMP)
    if given is None:
        return None
    try:
        stamp_ns = operator.index(given)
    except TypeError:
        stamp_ns = -1
    if not 0 <= stamp_ns < MOST_STAMP_NS:
        raise InvalidArgument(f"{STAMP!r} must be an integer of nanoseconds from 0 to 2**63 - 1, got {given!r}")
    return stamp_ns


def _delay_ms(observation: Mapping[str, Any], most: float) -> float:
    given = observation.get(DELAY)
    if given is None:
        return 0.0
    if not most:
        raise InvalidArgument(f"{DELAY!r} is given, and the policy takes no delay; leave it out")
    try:
        delay_ms = float(given)
    except (TypeError, ValueError, OverflowError):
        delay_ms = -1.0
    if isinstance(given, str) or not 0 <= delay_ms <= most:
        raise InvalidArgument(f"{DELAY!r} must be a number of milliseconds from 0 to {most:g}, got {given!r}")
    return delay_ms
