"""Capacity for sessions, and the time of the decoder threads that they share. Integers; callers pass the time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import RETRY_AFTER_MS, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat

SECOND_NS = 1_000_000_000
JPEG_NS = 6_000  # per 1,000 pixels, baseline, quality 85; progressive ones take three times as long
PREPARE_NS = 12_000  # per 1,000 pixels, of the worker's host: resizing and normalising
EXTRA_PIXELS = 8_192  # cost of a decoder however small the image is
WEIGHT = 8  # of the estimate, against one new measurement
OUTLIER = 2  # times the estimate: the most that one measurement counts
COPY_NS = 3_000  # per 1,000 pixels, from control to the worker
HANDLING_NS = 200_000  # of a frame in control and the worker's loop, however small it is
EARLY_PERCENT = 5
MOST_EARLY_NS = 10_000_000
LEAST_ALLOWANCE_NS = SECOND_NS // 1000  # per second: without any, a session would never be heard


class SessionCapacity:
    """The capacity for sessions. A session uses it from `take` to `leave`, except between `release` and `reclaim`.

    most: sessions that fit; as many again may stay open without using capacity. most_of_principal: sessions per
    principal, whether or not they use capacity.
    """

    def __init__(self, most: int, most_of_principal: int) -> None:
        self._most = most
        self._most_of_principal = most_of_principal
        self._callers: dict[int, Caller] = {}
        self._released: dict[int, None] = {}  # in this order

    def allow(self, most: int) -> None:
        """Change the number of sessions that fit; those that use capacity keep it."""
        self._most = most

    def __iter__(self) -> Iterator[tuple[int, Caller]]:
        return iter(list(self._callers.items()))

    def take(self, number: int, caller: Caller) -> None:
        """Add a session; ResourceExhausted if it does not fit."""
        self._check_free()
        self._check_principal(caller.principal)
        self._callers[number] = caller

    @property
    def surplus(self) -> int | None:
        """The session that released its capacity first, if more than twice as many sessions are open as fit."""
        return next(iter(self._released), None) if len(self._callers) > 2 * self._most else None

    def release(self, number: int) -> None:
        """Free the capacity of a session for others; idempotent."""
        self._released.setdefault(number)

    def reclaim(self, number: int) -> None:
        """Use capacity again after `release`; ResourceExhausted if none is left."""
        self._check_free()
        self._released.pop(number, None)

    def leave(self, number: int) -> None:
        """Remove an ended session."""
        del self._callers[number]
        self._released.pop(number, None)

    def _check_free(self) -> None:
        if len(self._callers) - len(self._released) >= self._most:
            raise ResourceExhausted(
                f"all {self._most} sessions are in use",
                field="max_sessions",
                reason=Reason.SESSIONS_TAKEN,
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _check_principal(self, principal: str) -> None:
        most = self._most_of_principal
        if principal and sum(each.principal == principal for each in self._callers.values()) >= most:
            raise ResourceExhausted(
                f"{principal} already has {most} open sessions, as many as permitted",
                field="limits.sessions_per_principal",
                reason=Reason.PRINCIPAL_SESSIONS,
                retry_after_ms=RETRY_AFTER_MS,
            )


class DecodeCost:
    """The recent processor time of decoding JPEGs, per pixel. A frame has one image per camera."""

    def __init__(self, kilopixel_ns: int = JPEG_NS) -> None:
        self.kilopixel_ns = kilopixel_ns

    def frame_ns(self, cameras: Iterable[CameraSpec]) -> int:
        """The time of a frame; raw images need none."""
        return _pixels(cameras) * self.kilopixel_ns // 1000

    def observe(self, cameras: Iterable[CameraSpec], took_ns: int) -> None:
        """Add the measured time of a frame."""
        if pixels := _pixels(cameras):
            measured_ns = min(took_ns * 1000 // pixels, OUTLIER * self.kilopixel_ns)
            self.kilopixel_ns = (WEIGHT * self.kilopixel_ns + measured_ns) // (WEIGHT + 1)


@dataclass(slots=True)
class _Share:
    """A session's share of the decoders."""

    cameras: tuple[CameraSpec, ...]
    period_ns: int
    admitted_ns: int = 0
    """Admitted time per second: estimated at first, then measured while all sessions fit."""
    cost: DecodeCost = field(default_factory=DecodeCost)

    @property
    def taken_ns(self) -> int:
        """Measured processor time per second, at the declared rate."""
        return per_second(self.cost.frame_ns(self.cameras), self.period_ns)


class Decoders:
    """The decoder threads, shared by the sessions in proportion to their admitted time.

    A session that takes more is limited only while all sessions together take more time than there is.
    """

    def __init__(self, threads: int, headroom_percent: int) -> None:
        self._most_ns = threads * SECOND_NS * (100 - headroom_percent) // 100
        self._cost = DecodeCost()
        self._shares: dict[int, _Share] = {}

    def frame_ns(self, cameras: Iterable[CameraSpec], number: int | None = None) -> int:
        """The expected time of a frame of these cameras, from the session's own measurements or else from all."""
        share = self._shares.get(number) if number is not None else None
        return (share.cost if share else self._cost).frame_ns(cameras)

    def early_ns(self, cameras: Sequence[CameraSpec], number: int) -> int:
        """Processor time that a frame of these cameras takes from other sessions, its passes apart."""
        pixels = sum(camera.width * camera.height for camera in cameras)
        return self.frame_ns(cameras, number) + pixels * COPY_NS // 1000 + HANDLING_NS

    def load_ns(self, number: int) -> int | None:
        """Measured time per second of a session; None if it is unknown."""
        share = self._shares.get(number)
        return None if share is None else share.taken_ns

    def suffice(self, loads_ns: Iterable[int]) -> bool:
        """True if the decoders have this much time per second with the headroom kept free."""
        return sum(loads_ns) <= self._most_ns

    def admits(self, load_ns: int, others_ns: Sequence[int]) -> bool:
        """True if one more load fits beside the others, each counted up to its fair share at most."""
        fair_ns = self._most_ns // (len(others_ns) + 1)
        return not load_ns or self.suffice((load_ns, *(min(other_ns, fair_ns) for other_ns in others_ns)))

    def enter(self, number: int, cameras: tuple[CameraSpec, ...], period_ns: int, frame_ns: int) -> None:
        """Admit a session with an estimate; known sessions keep their measurements."""
        share = self._shares.get(number) or _Share(cameras, period_ns, cost=DecodeCost(self._cost.kilopixel_ns))
        share.admitted_ns = per_second(frame_ns, period_ns)
        self._shares[number] = share

    def leave(self, number: int) -> None:
        """Remove a session; unknown ones are ignored."""
        self._shares.pop(number, None)

    def observe(self, number: int, took_ns: int) -> None:
        """Add the measured time of a session's frame."""
        share = self._shares.get(number)
        if share is not None:
            share.cost.observe(share.cameras, took_ns)
            self._cost.observe(share.cameras, took_ns)
            if self._all_fit:  # an estimate that was too low costs nobody anything; under shortage it must not grow
                share.admitted_ns = max(share.admitted_ns, share.taken_ns)

    def allowance_ns(self, number: int) -> int | None:
        """Time per second that a session may take; None = no limit."""
        share = self._shares.get(number)
        if share is None or self._all_fit:
            return None
        due_ns = share.admitted_ns
        if not self.suffice(each.admitted_ns for each in self._shares.values()):
            due_ns = min(due_ns, self._fair_ns(share))
        return None if share.taken_ns <= due_ns else max(due_ns, LEAST_ALLOWANCE_NS)

    @property
    def _all_fit(self) -> bool:
        return self.suffice(each.taken_ns for each in self._shares.values())

    def _fair_ns(self, share: _Share) -> int:
        """An equal share, or the time that the others leave if that is more."""
        others_ns = sum(each.taken_ns for each in self._shares.values() if each is not share)
        return max(self._most_ns // len(self._shares), self._most_ns - others_ns)


class EarlyHandling:
    """Processor time that a session may take for frames before their turn, beside other sessions: EARLY_PERCENT of one
    thread. Frames that take more than MOST_EARLY_NS each wait for their turn.
    """

    def __init__(self) -> None:
        self._budget = DecodeBudget()

    def ready_at_ns(self, frame_ns: int, now_ns: int) -> int | None:
        """The time from which a frame of this cost may be handled; None = never."""
        return self._budget.ready_at_ns(now_ns) if frame_ns <= MOST_EARLY_NS else None

    def spend(self, frame_ns: int, now_ns: int) -> None:
        """Pay for a frame."""
        self._budget.spend(frame_ns, SECOND_NS * EARLY_PERCENT // 100, now_ns)


class DecodeBudget:
    """The decoding time that a session has earned. While it is in debt, its next frame waits."""

    def __init__(self) -> None:
        self._allowance_ns: int | None = None
        self._earned_ns = 0
        self._then_ns = 0

    def spend(self, took_ns: int, allowance_ns: int | None, now_ns: int) -> None:
        """Pay for a frame. From now on the session earns `allowance_ns` per second; None = no limit."""
        self._earn(now_ns)
        self._allowance_ns = allowance_ns
        self._earned_ns = 0 if allowance_ns is None else self._earned_ns - took_ns

    def ready_at_ns(self, now_ns: int) -> int:
        """The time from which the next frame may be decoded; `now_ns` or earlier for now."""
        self._earn(now_ns)
        if self._allowance_ns is None:
            return now_ns
        return now_ns - self._earned_ns * SECOND_NS // self._allowance_ns

    def _earn(self, now_ns: int) -> None:
        """Earn for the time since the last call. The balance never exceeds 0: idle time cannot be saved for a burst."""
        if self._allowance_ns is not None:
            earned_ns = max(now_ns - self._then_ns, 0) * self._allowance_ns // SECOND_NS
            self._earned_ns = min(self._earned_ns + earned_ns, 0)
        self._then_ns = now_ns


def per_second(frame_ns: int, period_ns: int) -> int:
    """The time per second of frames that arrive once per period."""
    return frame_ns * SECOND_NS // period_ns


def prepare_ns(cameras: Iterable[CameraSpec]) -> int:
    """The worker's host time for a frame of these cameras."""
    return sum(camera.width * camera.height for camera in cameras) * PREPARE_NS // 1000


def _pixels(cameras: Iterable[CameraSpec]) -> int:
    """The work of decoding a frame, in pixels."""
    encoded = [camera for camera in cameras if camera.format is not ImageFormat.RGB8]
    return sum(camera.width * camera.height + EXTRA_PIXELS for camera in encoded)
