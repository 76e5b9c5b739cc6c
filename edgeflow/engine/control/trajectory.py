"""The trajectory contract: chooses the best of a frame's candidate chunks, and keeps its motion within limits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edgeflow.config.sections import CandidateWeights, DimensionLimits, TrajectoryConfig
from edgeflow.contract import PolicyInputs
from edgeflow.engine.control.continuity import HISTORY, ExecutedRows
from edgeflow.engine.control.motion import (
    ROUNDING,
    MotionBounds,
    MotionState,
    braking_rows,
    is_safe,
    rows_within,
    steps_within,
)
from edgeflow_client.errors import ConfigError
from edgeflow_client.trajectory import Candidate, Limited, LimitKind
from edgeflow_client.types import ActionSchema

PLANAR = ("x", "y", "z")
MOST_BRAKING = 2000  # rows
_NUMBER = re.compile(r"(?P<vector>.+)\[(?P<index>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A dimension with limits."""

    index: int
    name: str
    relative: bool
    bounds: MotionBounds
    number: int | None
    """The index of its position among the numbers of the state; None = not known."""


def limited_dimension(name: str, limits: DimensionLimits, schema: ActionSchema, inputs: PolicyInputs) -> Dimension:
    """A dimension with its limits per step; ConfigError names the limit that cannot be."""
    if name not in schema.names:
        raise ConfigError(
            f"trajectory.limits.{name}: not a dimension of the policy, which has {', '.join(schema.names)}"
        )
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
    bounds = MotionBounds(
        velocity=_per_step(limits.velocity, step_s),
        acceleration=_per_step(limits.acceleration, step_s**2),
        jerk=_per_step(limits.jerk, step_s**3),
        low=-math.inf if limits.low is None else limits.low,
        high=math.inf if limits.high is None else limits.high,
    )
    _check_braking(field, limits, bounds, step_s)
    return Dimension(index=index, name=name, relative=relative, bounds=bounds, number=number)


def _check_start(field: str, name: str, limits: DimensionLimits, *, relative: bool) -> None:
    """Reject limits that the first command of a motion would not keep, unless that is wanted."""
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


def _check_braking(field: str, limits: DimensionLimits, bounds: MotionBounds, step_s: float) -> None:
    """Reject a workspace in which a motion of the greatest velocity needs more than MOST_BRAKING rows to rest."""
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


Rows = NDArray[np.float64]
_ORDERS = {LimitKind.VELOCITY: 1, LimitKind.ACCELERATION: 2, LimitKind.JERK: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The chunk to be sent: actions [H, D], and how it came about."""

    actions: Rows
    index: int
    limited: tuple[Limited, ...]
    candidates: tuple[Candidate, ...]


class Trajectory:
    """The contract for the chunks of one schema. ConfigError names the dimension and the limit that is impossible."""

    def __init__(self, config: TrajectoryConfig, schema: ActionSchema, inputs: PolicyInputs) -> None:
        self._weights: CandidateWeights = config.weights
        self._step_s = schema.step_ms / 1e3
        if config.limits and schema.horizon == 1:
            raise ConfigError("trajectory.limits: this policy answers with single actions, which have no step to limit")
        self._dimensions = [limited_dimension(name, limits, schema, inputs) for name, limits in config.limits.items()]

    @property
    def has_limits(self) -> bool:
        """True if there are limits on the motion."""
        return bool(self._dimensions)

    def choose(
        self,
        count: int,
        actions_of: Callable[[int], Rows],
        normalised: Rows | None,
        plan: ExecutedRows | None,
        state: Sequence[float] = (),
        delay: int = 0,
    ) -> Chosen:
        """The best of `count` chunks [H, D], within the limits.

        normalised: [count, H', A] of them, by which they are compared. plan, state, delay: as in within_limits.
        """
        index, scores = 0, tuple[Candidate, ...]()
        actions = actions_of(0)
        if count > 1 and normalised is not None:
            chunks = [actions, *(actions_of(each) for each in range(1, count))]
            scores = tuple(self._score(chunk, values, plan) for chunk, values in zip(chunks, normalised, strict=True))
            index = min(range(count), key=lambda each: scores[each].score)
            actions = chunks[index]
        limited: tuple[Limited, ...] = ()
        if self._dimensions and np.isfinite(actions).all():
            actions, limited = self.within_limits(actions, plan, state, delay)
        return Chosen(actions=actions, index=index, limited=limited, candidates=scores)

    def within_limits(
        self, actions: Rows, plan: ExecutedRows | None, state: Sequence[float] = (), delay: int = 0
    ) -> tuple[Rows, tuple[Limited, ...]]:
        """A chunk [H, D] within the limits from the first executed row on, with what the limits changed.

        Where the chunk keeps them it is returned as it is. Otherwise, in the dimensions that do not, the rows that will
        have passed become those of the chunk in execution, so that it does not matter when exactly it arrives. plan:
        what is executed; None = the robot rests where the state says for `delay` rows. state: the numbers of the frame,
        in the policy's order.
        """
        result, found = actions, []
        for dimension in self._dimensions:
            wanted = actions[:, dimension.index]
            pose = state[dimension.number] if dimension.number is not None and len(state) else None
            before, passed = _executed(dimension, plan, pose, min(delay, len(wanted) - 1))
            rows, continued = _column(dimension, wanted, before, passed, pose)
            if rows is wanted:
                continue
            if result is actions:
                result = actions.copy()
            result[:, dimension.index] = rows
            excesses = _excesses(dimension, [*before, *passed], wanted[len(passed) :], sum(passed), pose)
            limited = [(kind, excess / self._step_s ** _ORDERS.get(kind, 0)) for kind, excess in excesses.items()]
            if not continued:
                limited.append((LimitKind.START, 0.0))
            changed = float(np.abs((rows - wanted)[len(passed) :]).max(initial=0.0))
            found += [
                Limited(dimension=dimension.name, limit=kind, beyond=beyond, changed=changed)
                for kind, beyond in limited or [(LimitKind.BRAKING, 0.0)]
            ]
        return result, tuple(found)

    def _score(self, chunk: Rows, values: Rows, plan: ExecutedRows | None) -> Candidate:
        """The scores of a candidate; the greatest number there is where it is not finite."""
        horizon, dims = chunk.shape
        values = values[:horizon, :dims]
        if not (np.isfinite(values).all() and np.isfinite(chunk).all()):
            worst = float(np.finfo(np.float64).max)
            return Candidate(score=worst, distance=worst, roughness=worst, beyond=worst)
        distance = 0.0
        if plan is not None and plan.values is not None:
            rows = min(len(plan.values), horizon)
            distance = float(np.square(values[:rows] - plan.values[:rows, :dims]).mean())
        jerk = np.diff(values, n=3, axis=0)
        roughness = float(np.square(jerk).mean()) if jerk.size else 0.0
        shares = [_share(dimension, chunk[:, dimension.index]) for dimension in self._dimensions]
        beyond = sum(shares) / max(len(shares), 1)
        weights = self._weights
        score = weights.distance * distance + weights.roughness * roughness + weights.limits * beyond
        return Candidate(score=score, distance=distance, roughness=roughness, beyond=beyond)


def _executed(
    dimension: Dimension, plan: ExecutedRows | None, pose: float | None, rest: int
) -> tuple[list[float], list[float]]:
    """The rows in execution, those before the capture and those up to the delay; without a plan those of a robot at
    rest for `rest` rows, after which at least one remains in which it can move."""
    if plan is not None:
        passed = plan.actions[: plan.delay, dimension.index]
        return plan.before[:, dimension.index].tolist(), passed.tolist()
    if dimension.relative:
        return [], [0.0] * rest
    return [], [] if pose is None else [pose] * rest


def _column(
    dimension: Dimension, wanted: Rows, before: list[float], passed: list[float], pose: float | None
) -> tuple[Rows, bool]:
    """One dimension within its limits, the same array where it is; False where the motion could not be continued."""
    if _keeps(dimension, wanted, before, passed, pose):
        return wanted, True
    start = _motion_after(dimension, [*before, *passed], sum(passed), pose)
    limit = steps_within if dimension.relative else rows_within
    rest, continued = limit(wanted[len(passed) :].tolist(), start, dimension.bounds)
    return np.array([*passed, *rest]), continued


def _motion_after(dimension: Dimension, rows: Sequence[float], moved: float, pose: float | None) -> MotionState:
    """The motion after rows that are executed. moved: by displacements since the capture, at which the pose was."""
    last = list(rows[-HISTORY:])
    if not dimension.relative:
        return MotionState.of(last if last or pose is None else [pose])
    v = last[-1] if last else None
    a = last[-1] - last[-2] if len(last) > 1 else None
    return MotionState(None if pose is None else pose + moved, v, a)


def _keeps(dimension: Dimension, wanted: Rows, before: list[float], passed: list[float], pose: float | None) -> bool:
    """True if a chunk keeps the limits, whichever row up to the delay is the first to be executed.

    passed: the rows in execution that are before the delay.
    """
    # The chunk may be joined at any row up to the delay, so every one of these seams must keep the limits.
    if passed and _excesses(dimension, [], wanted, 0.0, None):
        return False
    for first in range(len(passed) + 1):
        # Rows further than HISTORY from the seam were compared above; a workspace needs all rows, from this pose on.
        near = first < len(passed) and not (dimension.relative and pose is not None)
        rest = wanted[first : first + HISTORY] if near else wanted[first:]
        if _excesses(dimension, [*before, *passed[:first]], rest, sum(passed[:first]), pose):
            return False
    rest = wanted[len(passed) :]
    end = _motion_after(dimension, [*before, *passed, *rest.tolist()], sum(passed) + float(rest.sum()), pose)
    return is_safe(end, dimension.bounds, _slack(dimension.bounds, wanted))


def _excesses(
    dimension: Dimension, history: Sequence[float], rows: Rows, moved: float, pose: float | None
) -> dict[LimitKind, float]:
    """By how much rows after a history exceed each limit at most, per step; only where it is more than rounding."""
    bounds, found = dimension.bounds, {}
    slack = ROUNDING * max(float(np.abs(rows).max(initial=0.0)), float(np.abs(history).max(initial=0.0)))
    for kind, amounts in _amounts(dimension, history, rows, pose).items():
        limit: float = getattr(bounds, kind.value)
        excess = float(np.abs(amounts).max(initial=0.0)) - limit
        if excess > ROUNDING * limit + slack:
            found[kind] = excess
    if bounds.boxed and (not dimension.relative or pose is not None):
        positions = rows if not dimension.relative or pose is None else pose + moved + np.cumsum(rows)
        outside = max(bounds.low - positions.min(initial=math.inf), positions.max(initial=-math.inf) - bounds.high)
        if outside > _slack(bounds, positions):
            found[LimitKind.WORKSPACE] = float(outside)
    return found


def _amounts(dimension: Dimension, history: Sequence[float], rows: Rows, pose: float | None) -> dict[LimitKind, Rows]:
    """Velocities, accelerations and jerks per step, as far as they involve the rows."""
    known = list(history[-HISTORY:])
    if not known and pose is not None and not dimension.relative:
        known = [pose]
    line = np.concatenate([known, rows])
    differences = range(3) if dimension.relative else range(1, 4)
    return {
        kind: np.diff(line, n=order)[max(len(known) - order, 0) :]
        for kind, order in zip(_ORDERS, differences, strict=True)
        if len(line) > order
    }


def _slack(bounds: MotionBounds, positions: Rows) -> float:
    """The tolerance for the rounding of positions."""
    size = bounds.high - bounds.low
    return ROUNDING * (float(np.abs(positions).max(initial=0.0)) + (size if math.isfinite(size) else 0.0))


def _share(dimension: Dimension, rows: Rows) -> float:
    """Mean excess over the limits, as a share of each."""
    bounds, found = dimension.bounds, 0.0
    for kind, amounts in _amounts(dimension, [], rows, None).items():
        limit: float = getattr(bounds, kind.value)
        if amounts.size and math.isfinite(limit):
            found += float(np.maximum(np.abs(amounts) / limit - 1.0, 0.0).mean())
    if bounds.boxed and not dimension.relative:
        size = bounds.high - bounds.low
        outside = np.maximum(np.maximum(bounds.low - rows, rows - bounds.high), 0.0)
        found += float(outside.mean()) / (size if math.isfinite(size) else 1.0)
    return found
