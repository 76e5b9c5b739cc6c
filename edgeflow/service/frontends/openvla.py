"""`POST /act` as the servers of OpenVLA, OpenVLA-OFT and GR00T N1.5 offer it: its bodies and their answers.

The three dialects share a path, and json-numpy as their coding. A key sets them apart:

| dialect | key | answer |
|---|---|---|
| OPENVLA | image | the first row of the chunk |
| OFT | full_image | a list of all rows |
| GROOT | observation | all rows by part of the robot: `action.<part>`, in the parts of the state |

Answers are float64. Every body may be encoded twice, and its answer then is too; arrays may be nested lists of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.service.frontends.arrays import as_array, joined
from edgeflow.service.frontends.numpy_json import answer_body, parse
from edgeflow.service.frontends.observation import ClientObservation
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.reasons import Reason

NAME = "openvla"
PATH = "/act"
MAX_VALUES = 1 << 18  # a 224x224 image as nested lists has 200,929


class ActDialect(Enum):
    """The server for which a body was written, with the key that only its bodies have."""

    OPENVLA = "image"
    OFT = "full_image"
    GROOT = "observation"


@dataclass(frozen=True, slots=True)
class ActStyle:
    """The form of the answer to a body."""

    dialect: ActDialect
    double: bool
    """The body was encoded twice, and so is the answer."""
    parts: tuple[tuple[str, int], ...] = ()
    """GROOT: name and size of each part of the state, into which actions are divided."""


def read(body: bytes) -> tuple[ClientObservation, ActStyle]:
    """The observation in a body, and how it is answered; InvalidArgument names the field at fault.

    Here only the form is checked, and that arrays are plain numbers; observation.Reader checks what they show.
    """
    values, double = parse(body, MAX_VALUES)
    dialect = _dialect(values)
    if dialect is ActDialect.GROOT:
        seen, parts = _groot(values)
        return seen, ActStyle(dialect, double, parts)
    return (_openvla if dialect is ActDialect.OPENVLA else _oft)(values), ActStyle(dialect, double)


def answer(rows: NDArray[Any], style: ActStyle) -> bytes:
    """The body of the answer: a chunk [rows, numbers] with at least one row, in the dialect of the request.

    FailedPrecondition where GROOT's state has another number of elements than an action.
    """
    actions = rows.astype(np.float64)
    if style.dialect is ActDialect.OPENVLA:
        return answer_body(actions[0], style.double)
    if style.dialect is ActDialect.OFT:
        return answer_body(list(actions), style.double)
    return answer_body(_by_part(actions, style.parts), style.double)


def _dialect(values: dict[str, Any]) -> ActDialect:
    found = [each for each in ActDialect if each.value in values]
    if not found:
        text = "is missing: send image (OpenVLA), full_image (OpenVLA-OFT) or observation (GR00T N1.5)"
        raise InvalidArgument(text, field=ActDialect.OPENVLA.value, reason=Reason.BODY_FIELD)
    if len(found) > 1:
        text = f"cannot stand beside {found[0].value}"
        raise InvalidArgument(text, field=found[1].value, reason=Reason.BODY_FIELD)
    return found[0]


def _openvla(values: dict[str, Any]) -> ClientObservation:
    _check_keys(values, {"image", "instruction", "unnorm_key"})
    return ClientObservation(
        images={"image": _image(values["image"], "image")},
        state={},
        instruction=_text(values.get("instruction"), "instruction"),
        unnorm_key=_text(values.get("unnorm_key"), "unnorm_key"),
        fields={"cameras": "image"},
    )


def _oft(values: dict[str, Any]) -> ClientObservation:
    """The robot's whole observation; keys that the original server ignores are ignored here too."""
    cameras = ["full_image", *(key for key in values if "wrist" in key)]
    return ClientObservation(
        images={name: _image(values[name], joined("", name)) for name in cameras},
        state={"state": as_array(values["state"], "state")} if "state" in values else {},
        instruction=_text(values.get("instruction"), "instruction"),
        unnorm_key=_text(values.get("unnorm_key"), "unnorm_key"),
        fields={"cameras": "full_image"},
    )


def _groot(values: dict[str, Any]) -> tuple[ClientObservation, tuple[tuple[str, int], ...]]:
    """The observation of one step, and the parts of its state."""
    key = ActDialect.GROOT.value
    _check_keys(values, {key})
    if not isinstance(values[key], dict):
        raise InvalidArgument("must be an object", field=key, reason=Reason.BODY_FIELD)
    images: dict[str, Any] = {}
    state: dict[str, Any] = {}
    instruction: str | None = None
    fields = {"cameras": key, "state": key, "instruction": key}
    for path, value in values[key].items():
        kind, _, name = path.partition(".")
        field = fields[name] = joined(key, path)
        if kind == "video":
            images[name] = _step(_image(value, field), field)
        elif kind == "state":
            state[name] = _step(as_array(value, field), field)
        elif kind == "annotation" and instruction is None:
            instruction = _text(value[0] if isinstance(value, list) and len(value) == 1 else value, field)
            fields["instruction"] = field
        else:
            why = "must be a video.<camera>, a state.<part> or the only annotation.<name>"
            raise InvalidArgument(why, field=field, reason=Reason.BODY_FIELD)
    parts = tuple((name, vector.size) for name, vector in state.items())
    return ClientObservation(images=images, state=state, instruction=instruction or "", fields=fields), parts


def _by_part(actions: NDArray[np.float64], parts: tuple[tuple[str, int], ...]) -> dict[str, NDArray[np.float64]]:
    numbers, width = sum(size for _, size in parts), actions.shape[1]
    if numbers != width:
        text = f"has {numbers} numbers, an action of the policy {width}: they cannot be divided into the state's parts"
        raise FailedPrecondition(text, field=f"{ActDialect.GROOT.value}.state", reason=Reason.PROPRIO_COUNT)
    found, at = {}, 0
    for name, size in parts:
        found[f"action.{name}"] = actions[:, at : at + size]
        at += size
    return found


def _check_keys(values: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(values.keys() - known):
        text = "is not a field of this request"
        raise InvalidArgument(text, field=joined("", unknown[0]), reason=Reason.BODY_FIELD)


def _image(value: Any, field: str) -> NDArray[Any]:
    """An image as an array; a list of integers from 0 to 255 becomes uint8."""
    array = as_array(value, field)
    if isinstance(value, list) and array.dtype == np.int64 and array.size and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    return array


def _step(array: NDArray[Any], field: str) -> NDArray[Any]:
    """The only step of an array whose first dimension is time."""
    if array.ndim < 2 or len(array) != 1:
        text = f"must have one step as first dimension, not {list(array.shape)}"
        raise InvalidArgument(text, field=field, reason=Reason.ARRAY_SHAPE)
    step: NDArray[Any] = array[0]
    return step


def _text(value: Any, field: str) -> str:
    """A text; "" if the field is missing."""
    if value is not None and not isinstance(value, str):
        raise InvalidArgument("must be a text", field=field, reason=Reason.BODY_FIELD)
    return value or ""
