"""Shared by all sessions: places, and the decoder threads as a part of the device. Integers; callers pass the time."""

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
EXTRA_PIXELS = 8_192  # what a decoder takes however small the image is
WEIGHT = 8  # of what was known, against one new measurement
OUTLIER = 2  # times what was known: one measurement counts no more
LEAST_ALLOWANCE_NS = SECOND_NS // 1000  # per second: a session with none would never be heard


class SessionCapacity:
    """SessionCapacity in use. A session has one from `take` to `leave`, except between `give_up` and `take_again`.

    most: number of places; as many sessions again may exist without one. most_of_principal: sessions per principal,
    with or without a place.
    """

    def __init__(self, most: int, most_of_principal: int) -> None:
        self._most = most
        self._most_of_principal = most_of_principal
        self._callers: dict[int, Caller] = {}
        self._given_up: dict[int, None] = {}  # in this order

    def allow(self, most: int) -> None:
        """SessionCapacity for so many sessions from now on; sessions that have one keep it."""
        self._most = most

    def __iter__(self) -> Iterator[tuple[int, Caller]]:
        return iter(list(self._callers.items()))

    def take(self, number: int, caller: Caller) -> None:
        """Take a place for a new session; ResourceExhausted if there is none."""
        self._check_free()
        self._check_principal(caller.principal)
        self._callers[number] = caller

    @property
    def surplus(self) -> int | None:
        """The session longest without a place, if there are more than twice as many sessions as places."""
        return next(iter(self._given_up), None) if len(self._callers) > 2 * self._most else None

    def give_up(self, number: int) -> None:
        """Free the place for others; idempotent."""
        self._given_up.setdefault(number)

    def take_again(self, number: int) -> None:
        """Take a place again after `give_up`; ResourceExhausted if there is none."""
        self._check_free()
        self._given_up.pop(number, None)

    def leave(self, number: int) -> None:
        """Remove an ended session."""
        del self._callers[number]
        self._given_up.pop(number, None)

    def _check_free(self) -> None:
        if len(self._callers) - len(self._given_up) >= self._most:
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
    """The processor time that JPEGs take, per pixel, as measured lately. A frame has an image of each camera."""

    def __init__(self, kilopixel_ns: int = JPEG_NS) -> None:
        self.kilopixel_ns = kilopixel_ns

    def frame_ns(self, cameras: Iterable[CameraSpec]) -> int:
        """The time of a frame; raw images take none."""
        return _pixels(cameras) * self.kilopixel_ns // 1000

    def observe(self, cameras: Iterable[CameraSpec], took_ns: int) -> None:
        """Take a measurement of a frame."""
        if pixels := _pixels(cameras):
            measured_ns = min(took_ns * 1000 // pixels, OUTLIER * self.kilopixel_ns)
            self.kilopixel_ns = (WEIGHT * self.kilopixel_ns + measured_ns) // (WEIGHT + 1)


@dataclass(slots=True)
class _Share:
    """A session's part of the decoders."""

    cameras: tuple[CameraSpec, ...]
    period_ns: int
    admitted_ns: int = 0
    """Per second, estimated at first, then measured while all fit."""
    cost: DecodeCost = field(default_factory=DecodeCost)

    @property
    def taken_ns(self) -> int:
        """Processor time per second as measured, at the declared rate."""
        return per_second(self.cost.frame_ns(self.cameras), self.period_ns)


class Decoders:
    """The decoder threads, which sessions share as they were admitted.

    Who takes more than that is limited only while all together take more than there is.
    """

    def __init__(self, threads: int, headroom_percent: int) -> None:
        self._most_ns = threads * SECOND_NS * (100 - headroom_percent) // 100
        self._cost = DecodeCost()
        self._shares: dict[int, _Share] = {}

    def frame_ns(self, cameras: Iterable[CameraSpec], number: int | None = None) -> int:
        """The time of a frame of these cameras: as the session's were measured, else as everybody's."""
        share = self._shares.get(number) if number is not None else None
        return (share.cost if share else self._cost).frame_ns(cameras)

    def load_ns(self, number: int) -> int | None:
        """Time per second that a session takes, as measured; None if it is unknown."""
        share = self._shares.get(number)
        return None if share is None else share.taken_ns

    def suffice(self, loads_ns: Iterable[int]) -> bool:
        """True if decoders have that much time per second, with the headroom kept free."""
        return sum(loads_ns) <= self._most_ns

    def admits(self, load_ns: int, others_ns: Sequence[int]) -> bool:
        """True if one more load fits beside others, none of which can keep more than its fair part from it."""
        fair_ns = self._most_ns // (len(others_ns) + 1)
        return not load_ns or self.suffice((load_ns, *(min(other_ns, fair_ns) for other_ns in others_ns)))

    def enter(self, number: int, cameras: tuple[CameraSpec, ...], period_ns: int, frame_ns: int) -> None:
        """Admit a session with an estimate; known ones keep what was measured."""
        share = self._shares.get(number) or _Share(cameras, period_ns, cost=DecodeCost(self._cost.kilopixel_ns))
        share.admitted_ns = per_second(frame_ns, period_ns)
        self._shares[number] = share

    def leave(self, number: int) -> None:
        """Remove a session; unknown ones are ignored."""
        self._shares.pop(number, None)

    def observe(self, number: int, took_ns: int) -> None:
        """Take a measurement of a session's frame."""
        share = self._shares.get(number)
        if share is not None:
            share.cost.observe(share.cameras, took_ns)
            self._cost.observe(share.cameras, took_ns)
            if self._all_fit:
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
        """An equal part, or what the others leave where that is more."""
        others_ns = sum(each.taken_ns for each in self._shares.values() if each is not share)
        return max(self._most_ns // len(self._shares), self._most_ns - others_ns)


class DecodeBudget:
    """The time that a session has earned for decoding. It may be in debt: then its next frame waits."""

    def __init__(self) -> None:
        self._allowance_ns: int | None = None
        self._earned_ns = 0
        self._then_ns = 0

    def spend(self, took_ns: int, allowance_ns: int | None, now_ns: int) -> None:
        """Pay for a frame; what is earned from now on is `allowance_ns` per second, or anything."""
        self._earn(now_ns)
        self._allowance_ns = allowance_ns
        self._earned_ns = 0 if allowance_ns is None else self._earned_ns - took_ns

    def ready_at_ns(self, now_ns: int) -> int:
        """When the next frame may be decoded; `now_ns` or earlier if it may be now."""
        self._earn(now_ns)
        if self._allowance_ns is None:
            return now_ns
        return now_ns - self._earned_ns * SECOND_NS // self._allowance_ns

    def _earn(self, now_ns: int) -> None:
        """Earn what the time since the last call is worth. Nothing is saved up: idle decoders cannot be lent."""
        if self._allowance_ns is not None:
            earned_ns = max(now_ns - self._then_ns, 0) * self._allowance_ns // SECOND_NS
            self._earned_ns = min(self._earned_ns + earned_ns, 0)
        self._then_ns = now_ns


def per_second(frame_ns: int, period_ns: int) -> int:
    """The time per second that frames of a period take."""
    return frame_ns * SECOND_NS // period_ns


def prepare_ns(cameras: Iterable[CameraSpec]) -> int:
    """The worker's host time for a frame of these cameras."""
    return sum(camera.width * camera.height for camera in cameras) * PREPARE_NS // 1000


def _pixels(cameras: Iterable[CameraSpec]) -> int:
    """The work of a decoder for a frame, in pixels."""
    encoded = [camera for camera in cameras if camera.format is not ImageFormat.RGB8]
    return sum(camera.width * camera.height + EXTRA_PIXELS for camera in encoded)
