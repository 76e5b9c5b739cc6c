"""The check every action must pass before a robot may execute it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeflow.types import ActionSchema

LIMIT_TOLERANCE = 1e-6  # of a dimension's range, for rounding


def within_limits(values: Sequence[float], schema: ActionSchema) -> bool:
    """True if an action has the schema's width and is within its limits; NaN is not."""
    if len(values) != len(schema.low):
        return False
    for value, low, high in zip(values, schema.low, schema.high, strict=True):
        slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
        if not (math.isfinite(value) and low - slack <= value <= high + slack):
            return False
    return True
