"""The action limits: the vectorised check agrees with a plain loop, for one row or many."""

from __future__ import annotations

import math
import sys

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.contract import LIMIT_TOLERANCE, Chunk, within_limits
from edgeflow_client.types import ActionSchema

LIMIT = st.one_of(st.floats(-2.0, 2.0), st.sampled_from([-math.inf, math.inf, -sys.float_info.max, sys.float_info.max]))
VALUE = st.one_of(st.floats(-2.5, 2.5), st.floats(), st.sampled_from([1.0, -1.0, 2.0, 1.0 + 1e-6, 1.0 + 3e-6]))
STEP_MS = 20.0


def naive(chunk: Chunk, schema: ActionSchema) -> bool:
    for index in range(chunk.horizon):
        for value, low, high in zip(chunk.row(index), schema.low, schema.high, strict=True):
            slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
            if not math.isfinite(value) or not low - slack <= value <= high + slack:
                return False
    return True


@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_the_check_agrees_with_a_plain_loop(data: st.DataObject, dims: int, horizon: int):
    limits = [sorted(data.draw(st.tuples(LIMIT, LIMIT))) for _ in range(dims)]
    schema = ActionSchema(
        names=tuple(map(str, range(dims))),
        units=("1",) * dims,
        low=tuple(low for low, _ in limits),
        high=tuple(high for _, high in limits),
        relative=(False,) * dims,
        horizon=horizon,
        step_ms=STEP_MS if horizon > 1 else 0.0,
    )
    edges = st.sampled_from([edge for pair in limits for edge in pair])
    values = data.draw(st.lists(st.one_of(VALUE, edges), min_size=dims * horizon, max_size=dims * horizon))
    chunk = Chunk(tuple(values), horizon, schema.step_ms)
    assert within_limits(chunk, schema) is naive(chunk, schema)
