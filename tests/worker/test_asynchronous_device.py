"""Pass times, forecasts and admission on a device that runs behind the host are those of the device."""

from __future__ import annotations

import random

import pytest
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CameraNeed, Pace, PassTimes, PolicyInputs, Speculation, StageProgram
from edgeflow.ipc.messages import Ping, Pong, WorkerReady
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.cost import CostModel
from edgeflow.scheduler.forecast import Forecast, ForecastSession, forecast
from edgeflow.scheduler.pace import depths_of
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow.scheduler.verification import WHOLE, VerificationPasses, VerificationSample, estimate
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.sessions.admission import OVERHEAD_NS, Admission
from edgeflow.service.sessions.capacity import Decoders
from edgeflow.worker.calibrate import calibrate
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import FailedPrecondition, ResourceExhausted
from edgeflow_client.types import ActionSchema, CameraSpec, ImageFormat, Mode
from tests.tiny_checkpoint import write_checkpoint
from tests.worker.simulated_device import LAUNCH_NS, MS, TRUTH, AsynchronousEngine, ClosedLoop, Delivered

K = 7
CLOSE = 0.05


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> OpenVLAPolicy:
    torch.set_num_threads(1)
    return load_openvla(write_checkpoint(tmp_path_factory.mktemp("tiny")), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def times(policy) -> PassTimes:
    clock = ManualClock()
    return calibrate(AsynchronousEngine(policy, 2 * K, clock), clock=clock)


def test_calibration_measures_the_device(times):
    names = ("prefill_ns", "two_prefills_ns", "packed_ns", "decode_ns", "decodes_ns", "row_ns")
    assert [getattr(times, name) for name in names] == pytest.approx([getattr(TRUTH, name) for name in names], rel=0.02)
    assert 0 < times.launch_ns <= LAUNCH_NS


def limits(sessions: int = 1) -> SchedulerLimits:
    return SchedulerLimits(K, sessions, row_budget=1000, drain_after_ns=2 * MS)


def check(foretold: Forecast, delivered: Delivered) -> None:
    assert foretold.fps == pytest.approx(delivered.fps, rel=CLOSE)
    assert foretold.age_ns == pytest.approx(delivered.age_ns, rel=CLOSE)
    assert foretold.worst_age_ns == pytest.approx(delivered.worst_age_ns, rel=CLOSE)


@pytest.mark.parametrize("period_ms", [0, 33, 150])
@pytest.mark.parametrize("depth", depths_of(K))
def test_the_forecast_rate_is_delivered(policy, times, depth: int, period_ms: int):
    robots = [ForecastSession(pace=Pace(depth), period_ns=period_ms * MS)]
    (delivered,) = ClosedLoop(policy, robots).run(60)
    check(forecast(times, limits(), robots)[0], delivered)


@pytest.mark.parametrize("depths", [(1, 1), (7, 7), (1, 7), (3, 7)])
def test_two_robots_get_the_forecast_rate(policy, times, depths: tuple[int, int]):
    robots = [ForecastSession(pace=Pace(depth), period_ns=70 * MS) for depth in depths]
    found = ClosedLoop(policy, robots).run(40)
    for foretold, delivered in zip(forecast(times, limits(2), robots), found, strict=True):
        check(foretold, delivered)


SHARES = (25, 35, 20, 12, 8)


def drafts(period_ms: int = 0, patience_ms: int = 0, max_passes: int = 0) -> ForecastSession:
    """A robot whose frames draft and are verified by SHARES."""
    shares = [WHOLE * share // 100 for share in SHARES]
    verification = VerificationPasses((WHOLE - sum(shares[1:]), *shares[1:], *[0] * (K - len(shares))))
    pace = Pace(0, Speculation(max_passes=max_passes))
    return ForecastSession(pace=pace, period_ns=period_ms * MS, patience_ns=patience_ms * MS, verification=verification)


def drafting(policy, robots: list[ForecastSession]) -> ClosedLoop:
    """A loop whose frames are verified by SHARES, drawn at random."""
    dice = random.Random(5)
    return ClosedLoop(policy, robots, verified_in=lambda: dice.choices(range(1, len(SHARES) + 1), SHARES)[0])


@pytest.mark.parametrize("robot", [drafts(), drafts(33), drafts(150), drafts(7, 30), drafts(0, 0, 1), drafts(20, 0, 3)])
def test_frames_that_draft_get_the_forecast_rate(policy, times, robot: ForecastSession):
    (delivered,) = drafting(policy, [robot]).run(600)
    (foretold,) = forecast(times, limits(), [robot])
    assert foretold.fps == pytest.approx(delivered.fps, rel=CLOSE)
    assert foretold.age_ns == pytest.approx(delivered.age_ns, rel=CLOSE)
    if robot.patience_ns:
        assert delivered.worst_age_ns <= robot.patience_ns


def test_frames_that_draft_beside_others_get_the_forecast_rate(policy, times):
    robots = [drafts(70), ForecastSession(pace=Pace(K), period_ns=70 * MS)]
    found = drafting(policy, robots).run(300)
    for foretold, delivered in zip(forecast(times, limits(2), robots), found, strict=True):
        assert foretold.fps == pytest.approx(delivered.fps, rel=CLOSE)
        assert foretold.age_ns == pytest.approx(delivered.age_ns, rel=CLOSE)


def test_the_worker_measures_how_frames_settle_though_slow_ones_are_overtaken(policy):
    loop = drafting(policy, [drafts()])
    loop.run(700)
    loop.worker.inbox.put(Ping(1))
    loop.worker.step()
    (pong,) = (message for message in loop.others if isinstance(message, Pong))
    shown = pong.settling_stages, pong.settling_bins, pong.settling_passes, pong.settling_done
    frames = list(zip(*shown, strict=True))
    answered = [passes for _, _, passes, verified in frames if verified]
    truth = sum(passes * share for passes, share in enumerate(SHARES, 1)) / 100
    assert sum(answered) / len(answered) < truth - 0.4, "the slow ones are missing"
    assert estimate([VerificationSample(*frame) for frame in frames], K).mean_percent == pytest.approx(
        100 * truth, rel=0.06
    )


def test_frames_without_drafts_report_nothing(policy):
    loop = ClosedLoop(policy, [ForecastSession(pace=Pace(K), period_ns=0)])
    loop.run(10)
    loop.worker.inbox.put(Ping(1))
    loop.worker.step()
    (pong,) = (message for message in loop.others if isinstance(message, Pong))
    assert pong.pass_ns and (pong.settling_stages, pong.settling_passes, pong.settling_done) == ([], [], [])


def test_serial_passes_do_not_run_far_ahead_of_the_device(policy):
    """A frame is taken when the last pass of the one before it has begun, not while that still decodes."""
    (delivered,) = ClosedLoop(policy, [ForecastSession(pace=Pace(1), period_ns=0)]).run(20)
    serial_ns = TRUTH.prefill_ns + 6 * TRUTH.decode_ns
    assert delivered.fps == pytest.approx(1e9 / serial_ns, rel=CLOSE)
    assert delivered.age_ns <= serial_ns + TRUTH.decode_ns + LAUNCH_NS


def test_every_pass_is_sampled_the_last_of_a_burst_too(policy):
    loop = ClosedLoop(policy, [ForecastSession(pace=Pace(K), period_ns=1000 * MS)])
    loop.run(3)
    samples = loop.worker.take_passes()
    assert len(samples) == 3 * K
    decodes = [sample.ns for sample in samples if sample.prefills == 0]
    assert decodes == pytest.approx([TRUTH.decode_ns] * 6 * 3, rel=0.02)


def test_drift_of_the_device_is_seen_and_corrected(policy, times):
    slower = TRUTH.scaled(150)
    loop = ClosedLoop(policy, [ForecastSession(pace=Pace(K), period_ns=0)], slower)
    model = CostModel(times)
    loop.run(10)
    assert not model.observe(loop.worker.take_passes()[:10], 0), "too few"
    loop.run(60)
    assert model.observe(loop.worker.take_passes(), 0)
    assert model.times.packed_ns == pytest.approx(slower.packed_ns, rel=CLOSE)
    (delivered,) = loop.delivered
    assert forecast(model.times, limits(), [ForecastSession(pace=Pace(K), period_ns=0)])[0].fps == pytest.approx(
        delivered.fps, rel=CLOSE
    )


# What the front decides by these times.


def admission(times: PassTimes, mode: Mode = Mode.AUTO) -> Admission:
    made = Admission(ServiceConfig.model_validate({"mode": mode.value}), Decoders(1, 0))
    ready = WorkerReady(
        model="demo",
        model_fingerprint="f",
        max_sessions=8,
        device="simulated",
        schema=ActionSchema(names=(), units=(), low=(), high=(), relative=()),
        unnorm_keys=["a"],
        kv_bytes=0,
        prefill_rows=55,
        pass_times=times,
        inputs=PolicyInputs(cameras=(CameraNeed(name="image", named=False),)),
        programs=[StageProgram.tokens(times.stages)],
    )
    made.worker_ready(ready)
    return made


def request(period_ms: int, age_ms: int = 0) -> OpenRequest:
    camera = CameraSpec("front", 64, 64, ImageFormat.JPEG)
    return OpenRequest(
        cameras=(camera,),
        instruction="go",
        control_period_ns=period_ms * MS,
        max_action_age_ns=age_ms * MS or None,
        mode=None,
        unnorm_key="",
    )


@pytest.mark.parametrize("age_ms", [65, 75, 85, 95, 105, 120])
def test_auto_keeps_the_age_and_takes_no_needless_loss_of_rate(policy, times, age_ms: int):
    period_ms = 7
    found = {
        depth: ClosedLoop(policy, [ForecastSession(pace=Pace(depth), period_ns=period_ms * MS)]).run(60)[0]
        for depth in depths_of(K)
    }
    limit_ns = age_ms * MS - OVERHEAD_NS
    allowed = {depth: each for depth, each in found.items() if each.worst_age_ns <= limit_ns * (1 - CLOSE)}
    plan = admission(times).plan(request(period_ms, age_ms), ())
    assert found[plan.pace.depth].worst_age_ns <= limit_ns * (1 + CLOSE)
    assert found[plan.pace.depth].fps >= max(each.fps for each in allowed.values()) * (1 - CLOSE)


def test_an_age_that_the_device_cannot_keep_is_rejected(policy, times):
    best = min(
        ClosedLoop(policy, [ForecastSession(pace=Pace(depth), period_ns=7 * MS)]).run(60)[0].worst_age_ns
        for depth in depths_of(K)
    )
    with pytest.raises(FailedPrecondition, match="cannot be kept"):
        admission(times).plan(request(7, round(best / MS) - 2), ())
    assert admission(times).plan(request(7, round(best * (1 + CLOSE) / MS) + 4), ())


def test_as_many_serial_robots_are_admitted_as_the_device_serves(policy, times):
    """Each admitted robot gets its rate on the device; with twice as many it would not."""
    period_ms = 100
    front = admission(times, Mode.SERIAL)
    count = 0
    while True:
        try:
            plan = front.plan(request(period_ms), front.others())
        except ResourceExhausted as error:
            assert error.reason == "DEVICE_FULL"
            break
        front.enter(count, plan)
        count += 1
    assert 1 < count < 8
    rates = [
        each.fps
        for each in ClosedLoop(policy, [ForecastSession(pace=Pace(1), period_ns=period_ms * MS)] * count).run(15)
    ]
    assert min(rates) >= 0.98 * 1000 / period_ms
    crowded = [
        each.fps
        for each in ClosedLoop(policy, [ForecastSession(pace=Pace(1), period_ns=period_ms * MS)] * (2 * count)).run(15)
    ]
    assert min(crowded) < 0.98 * 1000 / period_ms


def test_a_pong_of_this_device_changes_nothing(policy, times):
    loop = ClosedLoop(policy, [ForecastSession(pace=Pace(K), period_ns=0)])
    loop.run(60)
    samples = loop.worker.take_passes()
    front = admission(times)
    pong = Pong(
        nonce=1,
        passes=len(samples),
        rows=0,
        full_passes=0,
        pass_ns=[each.ns for each in samples],
        pass_prefills=[each.prefills for each in samples],
        pass_decodes=[each.decodes for each in samples],
        pass_whole=[each.whole for each in samples],
    )
    assert not front.observe(pong, 0)
    assert front.pass_times == times


@pytest.mark.parametrize("depth", [1, K])
def test_two_robots_that_declare_little_get_what_the_device_can_do(policy, depth: int):
    """A frame is always at hand; five per second were declared."""
    robots = [ForecastSession(pace=Pace(depth), period_ns=0)] * 2
    early, due = (ClosedLoop(policy, robots, declared_ns=declared).run(30) for declared in (200 * MS, 0))
    for found, expected in zip(early, due, strict=True):
        assert found.fps == pytest.approx(expected.fps, rel=CLOSE) and expected.fps > 10
        assert found.age_ns <= expected.age_ns + 3 * MS
