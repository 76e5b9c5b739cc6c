"""Who is let in and how deep: arithmetic on forecasts, no worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CameraNeed, PassTimes, PolicyInputs, StageProgram
from edgeflow.ipc.messages import Pong, WorkerReady
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.sessions.admission import Admission, SessionPlan
from edgeflow.service.sessions.capacity import Decoders
from edgeflow_client.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from edgeflow_client.types import ActionSchema, CameraSpec, ImageFormat, Mode

MS = 1_000_000
SCHEMA = ActionSchema(names=(), units=(), low=(), high=(), relative=())


def ready(percent: int = 100) -> WorkerReady:
    """Serial takes 120 ms a frame, pipelined 66."""
    times = PassTimes(
        stages=7,
        prefill_ns=60 * MS,
        two_prefills_ns=110 * MS,
        packed_ns=66 * MS,
        decode_ns=10 * MS,
        decodes_ns=16 * MS,
    )
    return WorkerReady(
        model="demo",
        model_fingerprint="f",
        max_sessions=8,
        device="cpu",
        schema=SCHEMA,
        unnorm_keys=["a"],
        kv_bytes=0,
        prefill_rows=55,
        pass_times=times.scaled(percent),
        inputs=PolicyInputs(cameras=(CameraNeed(name="image", named=False),)),
        programs=[StageProgram.tokens(times.stages)],
    )


def make(**changes: object) -> Admission:
    config = ServiceConfig.model_validate({"mode": "serial", **changes})
    admission = Admission(config, Decoders(1, config.admission_headroom_percent))
    admission.worker_ready(ready())
    return admission


CAMERA = CameraSpec("front", 64, 64, ImageFormat.JPEG)


def request(
    period_ms: int,
    mode: Mode | None = None,
    age_ms: int = 0,
    depth: int = 0,
    cameras: tuple[CameraSpec, ...] = (CAMERA,),
) -> OpenRequest:
    age_ns = age_ms * MS or None
    return OpenRequest(
        cameras=cameras,
        instruction="go",
        control_period_ns=period_ms * MS,
        max_action_age_ns=age_ns,
        mode=mode,
        unnorm_key="",
        depth=depth,
    )


def fill(admission: Admission, asked: OpenRequest, most: int = 9) -> list[SessionPlan]:
    plans: list[SessionPlan] = []
    for number in range(most):
        plans.append(admission.plan(asked, admission.others()))
        admission.enter(number, plans[-1])
    return plans


def test_modes_are_announced_with_rate_and_age():
    modes = make().modes()
    assert list(modes) == ["serial", "depth 2", "depth 3", "depth 4", "pipelined", "speculative"]
    assert modes["speculative"].assumed
    rates = [seen.fps for seen in modes.values()][:-1]
    ages = [seen.age_ns for seen in modes.values()][:-1]
    assert rates == sorted(rates) and ages == sorted(ages)
    assert rates[-1] == pytest.approx(1000 / 66, rel=0.03)


def test_a_lone_robot_is_always_let_in():
    plan = make().plan(request(10), ())
    assert plan.forecast.fps == pytest.approx(1000 / 120, rel=0.05)


def test_the_session_that_does_not_fit_is_rejected_with_a_hint():
    admission = make()
    with pytest.raises(ResourceExhausted, match="cannot serve a frame every") as caught:
        fill(admission, request(500, Mode.SERIAL))
    assert (caught.value.reason, caught.value.retry_after_ms) == ("DEVICE_FULL", 1000)
    others = admission.others()
    assert len(others) == 6
    for plan in others:
        assert plan.forecast.fps == pytest.approx(2, rel=0.02), "an admitted session has its rate"


def rtx5090() -> Admission:
    admission = make()
    packed_ns = 51_400_000
    times = PassTimes(
        stages=7,
        prefill_ns=packed_ns,
        two_prefills_ns=2 * packed_ns,
        packed_ns=packed_ns,
        decode_ns=13_300_000,
        decodes_ns=13_300_000,
    )
    admission.worker_ready(replace(ready(), pass_times=times, prefill_rows=280))
    return admission


@pytest.mark.parametrize("mode", [Mode.SERIAL, Mode.PIPELINED])
@pytest.mark.parametrize("periods_ms", [(10_000, 200), (200, 10_000), (7_777, 333, 9_999)])
def test_no_session_is_judged_by_another_s_longer_period(mode: Mode, periods_ms: tuple[int, ...]):
    """As with 5,000 ms instead of the longest, only that the load is even less."""
    for cut_ms in (5_000, 10_000):
        admission = rtx5090()
        for number, period_ms in enumerate(periods_ms):
            plan = admission.plan(request(min(period_ms, cut_ms), mode), admission.others())
            admission.enter(number, plan)
            assert plan.forecast.fps == pytest.approx(1000 / min(period_ms, cut_ms), rel=0.05)


def test_a_long_period_does_not_make_room_on_a_saturated_device():
    admission = rtx5090()
    admission.enter(1, admission.plan(request(10, Mode.SERIAL), ()))
    with pytest.raises(ResourceExhausted):
        admission.plan(request(10_000, Mode.SERIAL), admission.others())


def test_room_is_kept_free():
    crowded, roomy = make(admission_headroom_percent=0), make(admission_headroom_percent=60)
    counts = []
    for admission in (roomy, crowded):
        with pytest.raises(ResourceExhausted):
            fill(admission, request(400, Mode.SERIAL))
        counts.append(len(admission.others()))
    assert counts[0] < counts[1]


def test_a_saturated_device_lets_nobody_else_in():
    admission = make()
    admission.enter(1, admission.plan(request(10), ()))
    with pytest.raises(ResourceExhausted):
        admission.plan(request(1000), admission.others())
    admission.leave(1)
    assert admission.plan(request(1000), admission.others()).forecast.fps == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(("age_ms", "depth"), [(150, 1), (190, 2), (250, 3), (310, 4), (480, 0)])
def test_auto_takes_the_highest_rate_that_keeps_the_age(age_ms: int, depth: int):
    """Drafts (depth 0) are taken to need all passes, which gives the rate of the pipeline."""
    plan = make().plan(request(10, Mode.AUTO, age_ms), ())
    assert (plan.mode, plan.pace.depth) == (Mode.AUTO, depth)
    assert plan.worst_age_ns <= age_ms * MS


def test_auto_takes_the_youngest_actions_where_the_rate_is_the_cameras():
    assert make().plan(request(500, Mode.AUTO, 1000), ()).pace.depth == 1


def test_an_age_that_cannot_be_kept_is_rejected_with_the_best_one():
    with pytest.raises(
        FailedPrecondition, match=r"an action age of 100 ms cannot be kept; the lowest possible is 1[23]\d ms"
    ):
        make().plan(request(10, Mode.AUTO, 100), ())


def test_depth_is_checked_against_the_model():
    assert make().plan(request(10, Mode.DEPTH, depth=5), ()).pace.depth == 4, "5 and 4 take the same passes"
    for depth in (0, 8):
        with pytest.raises(InvalidArgument, match="1 to 7"):
            make().plan(request(10, Mode.DEPTH, depth=depth), ())


def test_the_service_names_depth_for_those_who_name_no_mode():
    assert make(mode="depth", depth=3).plan(request(10), ()).pace.depth == 3


def test_a_device_that_slowed_down_changes_the_forecast():
    admission = make()
    before = admission.modes()["pipelined"].fps
    pong = Pong(
        nonce=1,
        passes=0,
        rows=0,
        full_passes=0,
        pass_ns=[132 * MS] * 30,
        pass_prefills=[1] * 30,
        pass_decodes=[6] * 30,
        pass_whole=[False] * 30,
    )
    assert admission.observe(pong, 0)
    assert admission.modes()["pipelined"].fps == pytest.approx(before / 2, rel=0.03)
    assert not admission.observe(pong, 0), "what is known is no news"


def test_images_that_the_worker_resizes_take_their_time_in_the_forecast():
    large = CameraSpec("front", 2000, 2000, ImageFormat.RGB8)
    host, device = make(), make(preprocess="device")
    ages = [each.plan(request(500, cameras=(large,)), ()).forecast.worst_age_ns for each in (host, device)]
    assert 47 * MS < ages[0] - ages[1] < 49 * MS
