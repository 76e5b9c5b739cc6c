"""The checks every action must pass before a robot may execute it, its values and its age."""

from __future__ import annotations

import math
import sys
from collections import deque
from statistics import median_low

import numpy as np

from edgeflow.contract import Chunk
from edgeflow.service.observation.requests import OpenRequest
from edgeflow_client.types import ActionSchema

MEASURED_NS = 2_000_000_000  # measured times count up to this, or up to a multiple of the age foretold
MEASURED_TIMES = 4
IN_FLIGHT = 3  # times K: more than twice the frames that are in flight or wait
LIMIT_TOLERANCE = 1e-6  # of a dimension's range, for rounding
MOST = sys.float_info.max


def within_limits(chunk: Chunk, schema: ActionSchema) -> bool:
    """True if a chunk has the schema's shape and step, and all its actions are within the limits; NaN is not."""
    if (chunk.horizon, chunk.dims, chunk.step_ms) != (schema.horizon, len(schema.low), schema.step_ms):
        return False
    bounds = list(map(_bounds, schema.low, schema.high))
    if chunk.horizon == 1:
        return all(low <= value <= high for value, (low, high) in zip(chunk.values, bounds, strict=True))
    lowest, highest = np.array(bounds, np.float64).reshape(-1, 2).T
    rows = np.array(chunk.values, np.float64).reshape(chunk.horizon, chunk.dims)
    return bool(((lowest <= rows) & (rows <= highest)).all())


def _bounds(low: float, high: float) -> tuple[float, float]:
    """The least and the greatest value of a dimension, both finite."""
    slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
    return max(low - slack, -MOST), min(high + slack, MOST)


def validity_ms(ttl_ms: int, schema: ActionSchema) -> int:
    """How long a robot may execute an answer: ttl_ms, or until the last row of its chunk is over."""
    return min(ttl_ms, math.ceil(schema.horizon * schema.step_ms)) if schema.horizon > 1 else ttl_ms


class FrameTimes:
    """How long the last frames took in the worker. One stall cannot move it: it is the median of `most` frames.

    most: more than twice the frames that a stall can catch in flight.
    """

    def __init__(self, most: int) -> None:
        self._last_ns = deque([0] * most, maxlen=most)
        self.typical_ns = 0

    def observe(self, took_ns: int) -> None:
        """Take a frame's time."""
        self._last_ns.append(took_ns)
        self.typical_ns = median_low(self._last_ns)


class AgeLimit:
    """How old a frame may be when its action is executed.

    explicit_ns: from the session or the configuration; None = the validity of an action and the age foretold for the
    session, or the time that its frames take where that is longer, within bounds. reach_ns: how long after the capture
    of a frame the last row of its chunk is due, from which that row's age counts.
    """

    def __init__(self, explicit_ns: int | None, validity_ns: int, times: FrameTimes, reach_ns: int = 0) -> None:
        self.times = times
        self.foretold_ns = 0
        self._reach_ns = reach_ns
        self._explicit_ns = explicit_ns
        self._validity_ns = validity_ns

    @classmethod
    def of(cls, request: OpenRequest, schema: ActionSchema, ttl_ms: int, times: FrameTimes | None) -> AgeLimit:
        """The limit of a session. times: of all sessions of one frame; None = the session's own."""
        times = FrameTimes(IN_FLIGHT * len(schema.names)) if times is None else times
        return cls(request.max_action_age_ns, ttl_ms * 1_000_000, times, reach_ns=schema.reach_ns)

    @property
    def ns(self) -> int:
        """The limit as it is now."""
        if self._explicit_ns is not None:
            return self._explicit_ns
        return self._validity_ns + self._expected_ns

    @property
    def oldest_ns(self) -> int:
        """The age of a frame from which no row of its answer is executed."""
        return self.ns + self._reach_ns

    @property
    def spare_ns(self) -> int:
        """The part of the limit that remains beyond the time that frames are expected to take."""
        return self.oldest_ns - self._expected_ns

    @property
    def _expected_ns(self) -> int:
        return max(self.foretold_ns, min(self.times.typical_ns, max(MEASURED_NS, MEASURED_TIMES * self.foretold_ns)))
