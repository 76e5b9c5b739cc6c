"""How old frames are when their answers arrive at a robot, measured: the delay that the next chunk must allow for."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

KEPT_AGES = 64
AGE_PERCENT = 95  # per cent of the ages are at most the expected one
FEWEST_TO_LEAVE_OUT_ONE = 2
FAR_ABOVE = 2  # times the forecast, from which on the time of a single answer in the service does not count
ENOUGH = 8  # ages from which on the forecast no longer counts


@dataclass(slots=True)
class _Age:
    """The age of one answer."""

    server_ns: int
    """The time in the service, as it measured it."""
    fits_ns: int | None
    """The age up to which the chunk fits; None = any."""
    age_ns: int | None = None


class AnswerAges:
    """The ages of the last KEPT_AGES frames when their answers arrived at the robot.

    The robot says them; until it does, and if it never does, an age is the time in the service and what the transport
    of others took. Expected is the age that AGE_PERCENT of them had at most, or of few, from
    FEWEST_TO_LEAVE_OUT_ONE on, all but one: a spike moves it little, and is forgotten. Of a first answer that was
    FAR_ABOVE the forecast in the service, as after a warm-up, only the transport counts. Fewer than ENOUGH may all have
    been lucky, so then it is at least the forecast.
    """

    def __init__(self) -> None:
        self._ages: dict[int, _Age] = {}

    def sent(self, seq: int, server_ns: int, fits_ns: int | None = None) -> None:
        """Record that an answer was handed out, so long after its frame was received."""
        self._ages[seq] = _Age(server_ns, fits_ns)
        if len(self._ages) > KEPT_AGES:
            del self._ages[next(iter(self._ages))]

    def arrived(self, seq: int, age_ns: int) -> bool:
        """Record the robot's report of a frame's age at its answer's arrival; True if that is new, and it came too
        late.
        """
        age = self._ages.get(seq)
        if age is None or age.age_ns is not None:
            return False
        age.age_ns = max(age_ns, age.server_ns)
        return age.fits_ns is not None and age.age_ns > age.fits_ns

    def expected_ns(self, forecast_ns: int) -> int:
        """The age of the next frame when its answer arrives. forecast_ns: the forecast, used before any was
        measured.
        """
        if not self._ages:
            return forecast_ns
        transports = [each.age_ns - each.server_ns for each in self._ages.values() if each.age_ns is not None]
        usual_ns = median_low(transports) if transports else 0
        first = next(iter(self._ages.values()))
        if len(self._ages) == 1 and first.server_ns > FAR_ABOVE * forecast_ns > 0:
            return forecast_ns + usual_ns
        ages = sorted(each.server_ns + usual_ns if each.age_ns is None else each.age_ns for each in self._ages.values())
        left_out = max((100 - AGE_PERCENT) * len(ages) // 100, int(len(ages) >= FEWEST_TO_LEAVE_OUT_ONE))
        return max(ages[-1 - left_out], forecast_ns if len(ages) < ENOUGH else 0)
