"""The dimensions of a policy's actions that have limits, from the configuration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import accumulate

from edgeflow.config.sections import DimensionLimits
from edgeflow.contract import PolicyInputs
from edgeflow.engine.control.motion.bounds import Bounds
from edgeflow.engine.control.motion.braking import braking_rows
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import ActionSchema

PLANAR = ("x", "y", "z")
MOST_BRAKING = 2000  # rows
_NUMBER = re.compile(r"(?P<vector>.+)\[(?P<index>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A dimension with limits. number: of the state that is its position; None = not known."""

    index: int
    name: str
    relative: bool
    bounds: Bounds
    number: int | None


def limited_dimension(name: str, limits: DimensionLimits, schema: ActionSchema, inputs: PolicyInputs) -> Dimension:
    """A dimension with its limits per step; ConfigError names the limit that cannot be."""
    _check_name(name, schema)
    field, index, step_s = f"trajectory.limits.{name}", schema.names.index(name), schema.step_ms / 1e3
    number = _number(f"{field}.state", limits.state, inputs) if limits.state else None
    relative = schema.relative[index]
    _check_start(field, name, limits, relative=relative)
    box = "low" if limits.low is not None else "high" if limits.high is not None else ""
    if relative and box:
        if name not in PLANAR or schema.frame == "tool":
            raise ConfigError(
                f"{field}.{box}: {name} is a displacement that turns with the tool; only x, y and z in the base's "
                "frame have a workspace: remove it"
            )
        if number is None:
            raise ConfigError(
                f"{field}.{box}: {name} is a displacement, and the pose that it begins from is not known: set "
                f"{field}.state to the number of the state that is {name}, as observation.state[0]"
            )
    bounds = Bounds(
        velocity=_per_step(limits.velocity, step_s),
        acceleration=_per_step(limits.acceleration, step_s**2),
        jerk=_per_step(limits.jerk, step_s**3),
        low=-math.inf if limits.low is None else limits.low,
        high=math.inf if limits.high is None else limits.high,
    )
    _check_braking(field, limits, bounds, step_s)
    return Dimension(index=index, name=name, relative=relative, bounds=bounds, number=number)


def _check_name(name: str, schema: ActionSchema) -> None:
    if name not in schema.names:
        raise ConfigError(
            f"trajectory.limits.{name}: not a dimension of the policy, which has {', '.join(schema.names)}"
        )


def _check_start(field: str, name: str, limits: DimensionLimits, *, relative: bool) -> None:
    """Refuse limits that the first command of a motion would not keep, unless that is wanted."""
    if limits.free_start and (relative or limits.state):
        known = "is a displacement" if relative else f"starts from {limits.state}"
        raise ConfigError(f"{field}.free_start: {name} {known}, and its first command keeps the limits: remove it")
    moving = [key for key in ("velocity", "acceleration", "jerk") if getattr(limits, key) is not None]
    if moving and not (relative or limits.state or limits.free_start):
        raise ConfigError(
            f"{field}.state: {name} is a position, and where a motion starts is not known, so that its first command "
            f"would not keep {' and '.join(moving)}: set {field}.state to the number of the state that is {name}, as "
            f"observation.state[0]; or {field}.free_start to true where a jump does no harm"
        )


def _check_braking(field: str, limits: DimensionLimits, bounds: Bounds, step_s: float) -> None:
    """Refuse a workspace in which a motion of the greatest velocity needs more than MOST_BRAKING rows to rest."""
    speed, rows = bounds.velocity, MOST_BRAKING
    if not bounds.boxed or math.isinf(speed) or (found := braking_rows(speed, bounds)) <= rows:
        return
    slowing, jerk = 2.1 * speed / rows, 4.4 * speed / rows**2  # per step: half of the rows each
    if limits.acceleration is not None and bounds.acceleration < slowing:
        key, least = "acceleration", slowing / step_s**2
    else:
        key, least = "jerk", jerk / step_s**3
    raise ConfigError(
        f"{field}.{key}: a motion of {limits.velocity:g} per second, the limit of its velocity, would need {found:,} "
        f"rows to come to rest within the workspace; at most {rows:,} may be needed: set {key} to {1.01 * least:.3g} "
        "or more, or lower velocity"
    )


def _per_step(limit: float | None, scale: float) -> float:
    return math.inf if limit is None else limit * scale


def _number(field: str, text: str, inputs: PolicyInputs) -> int:
    """The place of a number in the policy's state."""
    sizes = {each.name: each.size for each in inputs.state}
    starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    found = _NUMBER.fullmatch(text)
    if found is None or found["vector"] not in sizes:
        known = ", ".join(f"{name}[0..{size - 1}]" for name, size in sizes.items()) or "none"
        raise ConfigError(f"{field}: {text!r} is not one of the numbers of the policy's state: {known}")
    vector, index = found["vector"], int(found["index"])
    if index >= sizes[vector]:
        raise ConfigError(
            f"{field}: {vector} has {sizes[vector]} numbers, [0] to [{sizes[vector] - 1}], and no {text!r}"
        )
    return starts[vector] + index
