"""What an action must be before a robot may execute it, and for how long it may."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeflow.types import ActionSchema

LIMIT_TOLERANCE = 1e-6  # of a dimension's range: rounding, not disobedience
MIN_VALID_MS = 100
PERIODS_VALID = 3


def within_limits(values: Sequence[float], schema: ActionSchema) -> bool:
    """Whether an action has the schema's width and keeps its limits; NaN keeps none."""
    if len(values) != len(schema.low):
        return False
    for value, low, high in zip(values, schema.low, schema.high, strict=True):
        slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
        if not (math.isfinite(value) and low - slack <= value <= high + slack):
            return False
    return True


def valid_for_ms(control_period_ns: int, action_ttl_ms: int) -> int:
    """Three control periods, at least MIN_VALID_MS, at most the configured time to live."""
    return min(max(PERIODS_VALID * control_period_ns // 1_000_000, MIN_VALID_MS), action_ttl_ms)
