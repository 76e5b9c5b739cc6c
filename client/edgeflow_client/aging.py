"""Settings for the age of actions on the robot's side: look-ahead, slower motion, delays of arm and camera."""

from __future__ import annotations

from dataclasses import dataclass, fields

from edgeflow_client.connection.bounds import MAX_CONTROL_RATE_HZ
from edgeflow_client.displacement import moves_tool
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.types import ActionSchema

MAX_S = 10.0  # the most for every time set here
MOST_FOLLOW_S = 1.0
LOOK_AHEAD_S = 0.05  # the default for actions that are known to stand for one control step
_MOST = {"control_rate_hz": (MAX_CONTROL_RATE_HZ, "Hz"), "follow_s": (MOST_FOLLOW_S, "s")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aging:
    """How a robot compensates the age of its actions. 0 turns a setting off.

    Chunks of several actions need no look-ahead: their rows are for the moments at which they are executed.
    """

    look_ahead_s: float | None = None
    """The largest age by which a relative action is extended. The action stands for one control step, so at an age of n
    steps it is multiplied by 1 + n, within the limits of the schema. None = LOOK_AHEAD_S where the control rate is
    known, here or by the schema, and the schema does not say that actions are the whole way to their target; else 0.
    """
    control_rate_hz: float = 0.0
    """Steps per second of the data that the policy was trained on; 0 = as the policy's schema states."""
    follow_s: float = 0.0
    """The largest age by which a target moves on with a moving goal, at most MOST_FOLLOW_S. For policies whose single
    actions are the whole way to their target: successive answers tell how their goal moves (following.py). An answer
    that is older on arrival stays where it is.
    """
    slow_from_s: float = 0.0
    """The age beyond which `Target.speed` falls."""
    command_lead_s: float = 0.0
    """The time from a command to the arm's motion, which is added to the age of every target."""
    camera_offset_s: float = 0.0
    """The time from the capture of an image to the call of `push`, which subtracts it from the time of the call
    unless `captured_ns` is given.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            most, unit = _MOST.get(field.name, (MAX_S, "s"))
            if not isinstance(value, int | float) or not 0.0 <= value <= most:
                raise InvalidArgument(f"must be 0 to {most:g} {unit}, got {value!r}", field=f"aging.{field.name}")

    def check(self, schema: ActionSchema) -> None:
        """Raise FailedPrecondition for a look-ahead without a control rate, which chunks of several actions do not
        need, and for goals to follow where actions are not the whole way to one.
        """
        if self.follow_s and not self.follows(schema):
            raise FailedPrecondition(
                "is for a policy whose single actions are the whole way to their target, which this one does not "
                "state; set it to 0",
                field="aging.follow_s",
            )
        if schema.horizon == 1 and self.look_ahead_s and not self.rate_hz(schema):
            raise FailedPrecondition(
                "is not set and the policy does not state it; set the control rate of its training data, in Hz: "
                "a look-ahead multiplies actions by it",
                field="aging.control_rate_hz",
            )

    def follows(self, schema: ActionSchema) -> bool:
        """True if targets move on with a moving goal."""
        return bool(self.follow_s) and schema.whole_way and schema.horizon == 1 and moves_tool(schema)

    def undecided(self, schema: ActionSchema) -> bool:
        """True if neither these settings nor the schema state if relative actions stand for one control step."""
        known = self.look_ahead_s is not None or schema.whole_way or self.rate_hz(schema) > 0.0
        return not known and schema.horizon == 1 and moves_tool(schema)

    def most_look_ahead_s(self, schema: ActionSchema) -> float:
        """The largest age by which relative actions are extended; 0 = none."""
        if self.look_ahead_s is not None:
            return self.look_ahead_s
        return LOOK_AHEAD_S if self.rate_hz(schema) and not schema.whole_way else 0.0

    def rate_hz(self, schema: ActionSchema) -> float:
        """Control steps per second: as configured, or else as the schema states; 0 = unknown."""
        return self.control_rate_hz or schema.control_rate_hz

    def age_s(self, captured_ns: int, commanded_ns: int) -> float:
        """The age of an action when its command takes effect."""
        return max(commanded_ns - captured_ns, 0) / 1e9 + self.command_lead_s

    def speed(self, age_s: float) -> float:
        """The share of full speed for an action of this age."""
        return self.slow_from_s / age_s if 0.0 < self.slow_from_s < age_s else 1.0


DEFAULT = Aging()
OFF = Aging(look_ahead_s=0.0)
"""Targets do not depend on the age of actions."""
