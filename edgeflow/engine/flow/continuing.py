"""Continuing the chunk being played: an answer is drawn to it, or keeps its next rows (arXiv 2512.05964)."""

from __future__ import annotations

import numpy as np
import torch

from edgeflow.engine.flow.frames import FlowSizes, Guidance
from edgeflow.engine.flow.guidance import Previous, RTCSettings, schedule_weights
from edgeflow_client.errors import InvalidArgument


def guidance_of(previous: Previous, settings: RTCSettings, sizes: FlowSizes) -> Guidance | None:
    """The rows that an answer must continue; None where no row is left, or where it would keep rows and none passes.

    InvalidArgument for a chunk or a delay that no answer of these sizes can continue.
    """
    values = previous.values
    _check(previous, settings, sizes)
    if not len(values) or (settings.trained_max_delay and not previous.delay):
        return None
    target = torch.zeros(sizes.horizon, sizes.dims)
    target[: len(values), : values.shape[1]] = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    if settings.trained_max_delay:
        return Guidance(
            target=target, weights=torch.zeros(sizes.horizon), most=0.0, clean=previous.delay, delay=previous.delay
        )
    weights = schedule_weights(
        settings.schedule, previous.delay, settings.execution_horizon, len(values), size=sizes.horizon
    )
    return Guidance(target=target, weights=weights, most=settings.max_guidance_weight, delay=previous.delay)


def _check(previous: Previous, settings: RTCSettings, sizes: FlowSizes) -> None:
    values = previous.values
    if values.ndim != 2 or len(values) > sizes.horizon or values.shape[1] > sizes.dims:
        raise InvalidArgument(
            f"is of shape {list(values.shape)}; a chunk has up to {sizes.horizon} rows of up to {sizes.dims} numbers",
            field="previous.values",
        )
    if not np.isfinite(values).all():
        raise InvalidArgument("has a number that is not finite", field="previous.values")
    most = min(settings.trained_max_delay or sizes.horizon, sizes.horizon)
    if not 0 <= previous.delay <= most:
        raise InvalidArgument(f"is {previous.delay} rows; it must be 0 to {most}", field="previous.delay")
    if settings.trained_max_delay and previous.delay > len(values):
        raise InvalidArgument(
            f"is {previous.delay} rows; {len(values)} are left of the chunk being played", field="previous.delay"
        )
