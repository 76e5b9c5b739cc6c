"""Bounds that the SDK enforces on everything a service sends: schemas, validities and forecasts."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema

MAX_DIMENSIONS = 256
MIN_STEP_MS, MAX_STEP_MS = 1.0, 10_000.0
MAX_DECLARED_VALID_MS = 60_000
MAX_DECLARED_AGE_MS = 60_000  # the limit of an action that declares more
MAX_FORECAST_S = 60.0  # a longer forecast counts as unknown
MAX_CONTROL_RATE_HZ = 10_000.0
MAX_CAPTURED_AGE_NS = 60_000_000_000
TOLERANCE = 1e-5  # of a dimension's range, for rounding; ten times the service's


def forecast_s(milliseconds: float) -> float:
    """A forecast in seconds; 0 = unknown, also for implausible values."""
    return milliseconds / 1000 if 0.0 <= milliseconds <= MAX_FORECAST_S * 1000 else 0.0


def within_limits(rows: NDArray[np.float64], schema: ActionSchema) -> bool:
    """True if every value [..., dims] is within the schema's limits; NaN never is."""
    low, high = np.array(schema.low), np.array(schema.high)
    with np.errstate(over="ignore"):
        span = high - low
        slack = TOLERANCE * np.where(np.isfinite(span), span, 0.0)
        return bool(((low - slack <= rows) & (rows <= high + slack)).all())


def check_schema(schema: ActionSchema) -> None:
    """Raise FailedPrecondition unless a robot can keep this schema."""
    count = len(schema.names)
    if not 1 <= count <= MAX_DIMENSIONS:
        found = f"{count} dimensions" if count else "no dimensions"
        raise _unusable(f"has {found}; there must be 1 and may be at most {MAX_DIMENSIONS}")
    name, times = Counter(schema.names).most_common(1)[0]
    if times > 1:
        raise _unusable(f"the name {name[:32]!r} is repeated")
    for name, low, high in zip(schema.names, schema.low, schema.high, strict=True):
        _check_limits(name[:32], low, high)
    if not 0.0 <= schema.control_rate_hz <= MAX_CONTROL_RATE_HZ:
        raise _unusable(f"has a control rate of {schema.control_rate_hz:g} Hz; it must be 0 to {MAX_CONTROL_RATE_HZ:g}")
    _check_step(schema.horizon, schema.step_ms)


def check_validity(valid_for_ms: int) -> None:
    """Raise FailedPrecondition for an invalid validity of actions."""
    if not 1 <= valid_for_ms <= MAX_DECLARED_VALID_MS:
        raise FailedPrecondition(
            f"is {valid_for_ms}; it must be 1 to {MAX_DECLARED_VALID_MS} ms", field="opened.valid_for_ms"
        )


def check_captured(captured_ns: int, now_ns: int) -> None:
    """Raise InvalidArgument for a capture time that is not within the last 60 s: ages would be wrong."""
    if not isinstance(captured_ns, int | np.integer):
        raise InvalidArgument(
            f"must be integer nanoseconds of the client's clock, such as time.monotonic_ns(), got {captured_ns!r:.80}",
            field="captured_ns",
        )
    ahead_ns = captured_ns - now_ns
    if ahead_ns > 0:
        reason, text = Reason.STAMP_FUTURE, f"is {ahead_ns} ns ahead of the client's clock; it may not be"
    elif -ahead_ns > MAX_CAPTURED_AGE_NS:
        longest_s = MAX_CAPTURED_AGE_NS / 1e9
        reason, text = Reason.STAMP_OLD, f"is {-ahead_ns / 1e9:g} s old; it may be at most {longest_s:g} s"
    else:
        return
    raise InvalidArgument(text, field="captured_ns", reason=reason)


def _check_limits(name: str, low: float, high: float) -> None:
    if math.isnan(low) or math.isnan(high):
        raise _unusable(f"a limit of {name!r} is NaN")
    if low > high:
        raise _unusable(f"{name!r} has low {low:g} above high {high:g}")
    if low == math.inf or high == -math.inf:
        raise _unusable(f"{name!r} has low {low:g} and high {high:g}, which no value keeps")


def _check_step(horizon: int, step_ms: float) -> None:
    if horizon > 1 and not MIN_STEP_MS <= step_ms <= MAX_STEP_MS:
        raise _unusable(f"has steps of {step_ms:g} ms; they must be {MIN_STEP_MS:g} to {MAX_STEP_MS:g} ms")


def _unusable(text: str) -> FailedPrecondition:
    return FailedPrecondition(text, field="opened.schema")
