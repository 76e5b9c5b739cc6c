"""Validation of proprioceptive state: the vectors of Open, and the numbers of each frame."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.grpc.fields import check_name
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import StateSpec

MAX_NUMBER = 1e6  # a larger value means a broken sensor, whatever its unit
FIELD, NAMES_FIELD = "open.state", "open.proprio_names"


def check_state(message: pb.Open, limits: LimitsConfig) -> tuple[StateSpec, ...]:
    """The state vectors of an Open; each of its proprio_names, which older clients send, is a vector of one number."""
    if message.state and message.proprio_names:
        raise InvalidArgument("replaces proprio_names: set one of them", field=FIELD, reason=Reason.STATE_TWICE)
    if not message.state:
        return _scalars(message.proprio_names, limits)
    _check_numbers([vector.size for vector in message.state], limits)
    vectors = tuple(_vector(vector, f"{FIELD}[{index}]") for index, vector in enumerate(message.state))
    check_vectors(vectors, limits)
    return vectors


def check_vectors(vectors: Sequence[StateSpec], limits: LimitsConfig) -> None:
    """Validate vectors: bounded sizes, names that differ, bounded texts."""
    _check_numbers([vector.size for vector in vectors], limits)
    for index, vector in enumerate(vectors):
        check_name(vector.name, f"{FIELD}[{index}].name")
        for kind, texts in (("elements", vector.elements), ("units", vector.units)):
            for place, text in enumerate(texts):
                if text:  # else not stated
                    check_name(text, f"{FIELD}[{index}].{kind}[{place}]")
    if len({vector.name for vector in vectors}) != len(vectors):
        text = "two vectors have the same name; names must differ"
        raise InvalidArgument(text, field=FIELD, reason=Reason.STATE_NAME)


def check_numbers(values: Sequence[float], expected: int) -> tuple[float, ...]:
    """The state of a frame: as many numbers as its session was opened with, all plausible."""
    if len(values) != expected:
        raise InvalidArgument(
            f"has {len(values)} values; the session was opened with {expected} numbers",
            field="frame.proprio",
            reason=Reason.PROPRIO_COUNT,
        )
    for index, value in enumerate(values):
        if not abs(value) <= MAX_NUMBER:  # also refuses NaN
            raise InvalidArgument(
                f"must be finite and at most {MAX_NUMBER:g} in magnitude",
                field=f"frame.proprio[{index}]",
                reason=Reason.PROPRIO_NOT_FINITE if not math.isfinite(value) else Reason.PROPRIO_OUT_OF_RANGE,
            )
    return tuple(values)


def _scalars(names: Sequence[str], limits: LimitsConfig) -> tuple[StateSpec, ...]:
    if len(names) > limits.proprio:
        text = f"has {len(names)} names; the limit is {limits.proprio}"
        raise InvalidArgument(text, field=NAMES_FIELD, reason=Reason.PROPRIO_COUNT)
    checked = [check_name(name, f"{NAMES_FIELD}[{index}]") for index, name in enumerate(names)]
    return tuple(StateSpec(name=name, size=1) for name in checked)


def _vector(message: pb.StateVector, field: str) -> StateSpec:
    for kind in ("elements", "units"):
        count = len(getattr(message, kind))
        if count not in (0, message.size):
            text = f"has {count} entries; a vector of {message.size} numbers has one per number, or none"
            raise InvalidArgument(text, field=f"{field}.{kind}", reason=Reason.STATE_COUNT)
    return StateSpec(name=message.name, size=message.size, elements=tuple(message.elements), units=tuple(message.units))


def _check_numbers(sizes: Sequence[int], limits: LimitsConfig) -> None:
    for index, size in enumerate(sizes):
        if size < 1:
            text = f"is {size}; a vector has at least one number"
            raise InvalidArgument(text, field=f"{FIELD}[{index}].size", reason=Reason.STATE_COUNT)
    if sum(sizes) > limits.proprio:
        text = f"has {sum(sizes)} numbers; the limit is {limits.proprio}"
        raise InvalidArgument(text, field=FIELD, reason=Reason.STATE_COUNT)
