"""The checks every action must pass before a robot may execute it, its values and its age; and the ages measured."""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from edgeflow.types import ActionSchema, Chunk

MEASURED_NS = 2_000_000_000  # measured times count up to this, or up to a multiple of the age foretold
MEASURED_TIMES = 4
KEPT_AGES = 64
AGE_PERCENT = 95  # of them are at most as old as is expected
MOST_AGE_NS = 60_000_000_000  # that a robot is believed
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


@dataclass(slots=True)
class _Age:
    """server_ns: as the service measured. fits_ns: the age up to which the chunk fits; None = any."""

    server_ns: int
    fits_ns: int | None
    age_ns: int | None = None


class AnswerAges:
    """The ages of the last KEPT_AGES frames when their answers arrived at the robot.

    The robot says them; until it does, and if it never does, an age is the time in the service and what the transport
    of others took. Expected is the age that AGE_PERCENT of them had at most: one spike among many moves it little, and
    is forgotten.
    """

    def __init__(self) -> None:
        self._ages: dict[int, _Age] = {}

    def sent(self, seq: int, server_ns: int, fits_ns: int | None = None) -> None:
        """An answer was handed out, so long after its frame was received."""
        self._ages[seq] = _Age(server_ns, fits_ns)
        if len(self._ages) > KEPT_AGES:
            del self._ages[next(iter(self._ages))]

    def arrived(self, seq: int, age_ns: int) -> bool:
        """The robot says how old a frame was when its answer arrived; True if that is news, and it came too late."""
        age = self._ages.get(seq)
        if age is None or age.age_ns is not None:
            return False
        age.age_ns = max(min(age_ns, MOST_AGE_NS), age.server_ns)
        return age.fits_ns is not None and age.age_ns > age.fits_ns

    @property
    def expected_ns(self) -> int:
        """The age of the next frame when its answer arrives; 0 before the first answer."""
        if not self._ages:
            return 0
        transports = [each.age_ns - each.server_ns for each in self._ages.values() if each.age_ns is not None]
        usual_ns = median_low(transports) if transports else 0
        ages = sorted(each.server_ns + usual_ns if each.age_ns is None else each.age_ns for each in self._ages.values())
        return ages[-(-AGE_PERCENT * len(ages) // 100) - 1]


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

    @property
    def ns(self) -> int:
        """The limit as it is now."""
        if self._explicit_ns is not None:
            return self._explicit_ns
        return self._validity_ns + self._expected_ns

    @property
    def spare_ns(self) -> int:
        """The part of the limit that remains beyond the time that frames are expected to take."""
        return self.ns + self._reach_ns - self._expected_ns

    @property
    def _expected_ns(self) -> int:
        return max(self.foretold_ns, min(self.times.typical_ns, max(MEASURED_NS, MEASURED_TIMES * self.foretold_ns)))
