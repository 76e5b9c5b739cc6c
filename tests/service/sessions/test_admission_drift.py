"""A device whose clocks were lowered: forecasts and admission follow within two seconds, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from edgeflow.contract import PassTimes, StageProgram
from edgeflow.ipc.messages import Pong
from edgeflow.scheduler.forecast import forecast
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow.service.sessions.admission import Admission
from edgeflow.service.worker.supervisor import CHECK_S, PING_S
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.types import Mode
from tests.service.sessions.test_admission import MS, make, ready, request

SECOND_NS = 1000 * MS
PINGED_NS = int((PING_S + CHECK_S) * SECOND_NS)  # the most between two pings
SERIAL = ((1, 0, False), *[(0, 1, False)] * 6)
"""The passes of a serial frame of 7 tokens."""
PACKED = ((1, 6, False),)
WHOLE = ((1, 0, True),)


class Device:
    """Runs frames, each pass `percent` / 100 times as long as calibrated, and answers pings between passes."""

    def __init__(
        self, admission: Admission, times: PassTimes, frame: tuple[tuple[int, int, bool], ...], idle_ms: int = 0
    ) -> None:
        self.now_ns = 0
        self.percent = 100
        self._admission = admission
        self._pinged_ns = 0
        self._passes: list[tuple[int, int, bool, int]] = []
        self._work = self._shapes(times, frame, idle_ms)
        self._shape, self._left_ns = next(self._work)
        self._begun_ns = 0

    def run(self, seconds: float) -> None:
        """Run for so long; the pass in progress goes on in the next call, at the pace of that call."""
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while self.now_ns + self._left_ns * self._pace // 100 <= end_ns:
            self.now_ns += self._left_ns * self._pace // 100
            if self._shape is not None:
                self._passes.append((*self._shape, self.now_ns - self._begun_ns))
            self._report()
            self._begun_ns = self.now_ns
            self._shape, self._left_ns = next(self._work)
        self._left_ns -= (end_ns - self.now_ns) * 100 // self._pace
        self.now_ns = end_ns

    @property
    def _pace(self) -> int:
        return 100 if self._shape is None else self.percent

    @staticmethod
    def _shapes(
        times: PassTimes, frame: tuple[tuple[int, int, bool], ...], idle_ms: int
    ) -> Iterator[tuple[tuple[int, int, bool] | None, int]]:
        while True:
            for shape in frame:
                yield shape, times.pass_ns(*shape)
            for _ in range(0, idle_ms, 5):
                yield None, 5 * MS

    def _report(self) -> None:
        if self.now_ns - self._pinged_ns < PINGED_NS:
            return
        self._pinged_ns = self.now_ns
        prefills, decodes, whole, took = zip(*self._passes, strict=True) if self._passes else ((), (), (), ())
        self._passes.clear()
        pong = Pong(
            nonce=1, passes=0, rows=0, full_passes=0,
            pass_ns=list(took), pass_prefills=list(prefills), pass_decodes=list(decodes), pass_whole=list(whole),
        )  # fmt: skip
        self._admission.observe(pong, self.now_ns)


def times(prefill_ms: float, decode_ms: float, packed_ms: float, whole_ms: float = 0) -> PassTimes:
    prefill, decode, packed, whole = (round(each * MS) for each in (prefill_ms, decode_ms, packed_ms, whole_ms))
    return PassTimes(
        stages=7, prefill_ns=prefill, two_prefills_ns=2 * prefill, packed_ns=packed, decode_ns=decode,
        decodes_ns=decode, whole_ns=whole,
    )  # fmt: skip


def admission_of(measured: PassTimes) -> Admission:
    made = make()
    programs = [StageProgram.tokens(measured.stages)]
    made.worker_ready(replace(ready(), pass_times=measured, programs=programs))
    return made


ORIN, DEMO = times(313.1, 81.7, 313.1), times(60, 10, 66)
SMOLVLA, THOR = times(50, 56, 60, 388), times(10, 3, 12, 27.3)


@pytest.mark.parametrize("begun_s", [5, 5.13, 5.29, 5.37])
@pytest.mark.parametrize(
    ("measured", "frame", "idle_ms"),
    [
        (DEMO, SERIAL, 0),
        (DEMO, SERIAL, 380),
        (DEMO, PACKED, 0),
        (ORIN, SERIAL, 0),
        (ORIN, PACKED, 0),
        (SMOLVLA, WHOLE, 0),
        (THOR, WHOLE, 0),
        (THOR, WHOLE, 235),
    ],
    ids=["demo", "demo idle", "demo packed", "orin", "orin packed", "smolvla", "thor", "thor idle"],
)
def test_the_forecast_follows_within_two_seconds(measured: PassTimes, frame, idle_ms: int, begun_s: float):
    admission = admission_of(measured)
    device = Device(admission, measured, frame, idle_ms)
    device.run(begun_s)
    assert admission.pass_times == measured
    for percent in (200, 100):
        device.percent = percent
        device.run(2)
        found = admission.pass_times
        assert found is not None
        for shape in frame:
            truth_ns = measured.pass_ns(*shape) * percent // 100
            assert found.pass_ns(*shape) == pytest.approx(truth_ns, rel=0.1), percent
        device.run(3.21)


def test_who_no_longer_fits_is_rejected_and_who_was_admitted_keeps_the_promise():
    admission = admission_of(DEMO)
    device = Device(admission, DEMO, SERIAL)
    asked = request(400, Mode.SERIAL)
    for number in range(2):
        admission.enter(number, admission.plan(asked, admission.others()))
    third = admission.plan(asked, admission.others())
    assert third.forecast.fps == pytest.approx(1000 / 400, rel=0.02), "before, there is room for a third"
    device.run(3)
    ages = admission.forecast_answers(admission.plans)
    device.percent = 200
    device.run(2)
    with pytest.raises(ResourceExhausted) as caught:
        admission.plan(asked, admission.others())
    assert caught.value.reason == "DEVICE_FULL"
    later = admission.forecast_answers(admission.plans)
    assert all(later[number].age_ns > 1.7 * ages[number].age_ns for number in ages), "limits of age follow the forecast"
    assert admission.pass_times is not None
    limits = SchedulerLimits(DEMO.stages, 8, 1024, 0)
    now = forecast(admission.pass_times, limits, [plan.robot for plan in admission.plans.values()])
    for plan, seen in zip(admission.plans.values(), now, strict=True):
        assert seen.begun_fps >= 0.98 * plan.forecast.begun_fps, "the promised rate holds where the device has it"
    device.percent = 100
    device.run(2)
    admission.plan(asked, admission.others())
