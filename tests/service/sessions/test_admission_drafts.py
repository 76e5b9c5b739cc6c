"""Sessions whose frames draft: what they may ask for, what is foretold for them, and when mode auto chooses them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace, PassTimes, Speculation, StageProgram
from edgeflow.ipc.messages import Pong
from edgeflow.scheduler.verification import LEAST_SAMPLES
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.sessions.admission import OVERHEAD_NS, Admission
from edgeflow_client.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from edgeflow_client.types import Mode
from tests.service.sessions.test_admission import MS, fill, make, ready, request

EXACT = Pace(0, Speculation())
QUICK = (20, 45, 20, 10, 5)  # per cent of frames that settle in 1, 2, ... passes: about those of the embedded policy
PACKED_NS = 51_400_000


def drafting(tolerance_bins: int = 0, max_passes: int = 0, period_ms: int = 10, age_ms: int = 0) -> OpenRequest:
    asked = request(period_ms, Mode.SPECULATIVE, age_ms)
    return replace(asked, tolerance_bins=tolerance_bins, max_passes=max_passes)


def pong(percent: tuple[int, ...], *, bins: int = 0, frames: int = 400, stages: int = 7) -> Pong:
    """A message of a worker whose frames settled so, a few of which were overtaken."""
    dice = random.Random(3)
    passes = [dice.choices(range(1, len(percent) + 1), percent)[0] for _ in range(frames)]
    seen = [min(each, dice.choice((2, 9, 9, 9))) for each in passes]
    return Pong(
        nonce=1,
        passes=0,
        rows=0,
        full_passes=0,
        pass_ns=[],
        pass_prefills=[],
        pass_decodes=[],
        pass_whole=[],
        settling_stages=[stages] * frames,
        settling_bins=[bins] * frames,
        settling_passes=seen,
        settling_done=[had == needed for had, needed in zip(seen, passes, strict=True)],
    )


def rtx5090(**changes: object) -> Admission:
    """Serial takes 131 ms a frame, a packed pass 51 ms."""
    admission = make(**changes)
    times = PassTimes(
        stages=7,
        prefill_ns=PACKED_NS,
        two_prefills_ns=2 * PACKED_NS,
        packed_ns=PACKED_NS,
        decode_ns=13_300_000,
        decodes_ns=13_300_000,
        row_ns=PACKED_NS // 280,
    )
    admission.worker_ready(replace(ready(), pass_times=times, bins=True))
    return admission


def measured(percent: tuple[int, ...] = QUICK, **changes: object) -> Admission:
    admission = rtx5090(**changes)
    assert admission.observe(pong(percent), 0)
    return admission


def test_a_session_gets_the_pace_that_it_asks_for():
    admission = rtx5090()
    assert admission.plan(drafting(), ()).pace == EXACT
    assert admission.plan(drafting(2, 7), ()).pace == Pace(0, Speculation(2, 7))


def test_the_service_says_how_for_those_who_choose_no_mode():
    admission = rtx5090(mode="speculative", tolerance_bins=1, max_passes=3)
    assert admission.plan(request(10), ()).pace == Pace(0, Speculation(1, 3))
    assert admission.plan(drafting(), ()).pace == EXACT, "who chooses the mode chooses the rest"


@pytest.mark.parametrize("max_passes", [8, 64])
def test_more_passes_than_tokens_are_rejected_with_the_range(max_passes: int):
    with pytest.raises(InvalidArgument, match=f"is {max_passes}; this model takes 1 to 7") as caught:
        rtx5090().plan(drafting(max_passes=max_passes), ())
    assert caught.value.field == "open.max_passes"


@pytest.mark.parametrize(("bins", "passes", "field"), [(1, 0, "tolerance_bins"), (0, 2, "max_passes")])
def test_values_that_are_not_bins_settle_exactly(bins: int, passes: int, field: str):
    admission = make()
    admission.worker_ready(replace(ready(), bins=False))
    with pytest.raises(InvalidArgument, match="are for models whose outputs are bins, and this one takes 0") as caught:
        admission.plan(drafting(bins, passes), ())
    assert caught.value.field == f"open.{field}"
    assert admission.plan(drafting(), ()).pace == EXACT


def test_one_token_per_action_is_serial():
    admission = make()
    times = replace(ready().pass_times, stages=1)
    admission.worker_ready(replace(ready(), pass_times=times, bins=True, programs=[StageProgram.tokens(1)]))
    assert admission.plan(drafting(), ()).pace == Pace(1)
    assert admission.plan(request(10, Mode.AUTO), ()).pace == Pace(1)
    assert list(admission.modes()) == ["serial"]


def test_before_a_measurement_each_frame_is_taken_to_need_all_passes():
    plan = rtx5090().plan(drafting(), ())
    assert plan.forecast.assumed and plan.forecast.passes_per_action == 7
    assert plan.forecast.age_ns > 7 * PACKED_NS


def test_a_measurement_changes_the_forecast_and_is_news_once():
    admission = rtx5090()
    before = admission.plan(drafting(), ()).forecast
    assert not admission.observe(pong(QUICK, frames=LEAST_SAMPLES - 1), 0)
    assert admission.modes()["speculative"].assumed
    assert admission.observe(pong(QUICK), 0)
    assert not admission.observe(pong(QUICK), 0), "what is known is no news"
    after = admission.plan(drafting(), ()).forecast
    assert after.fps == pytest.approx(admission.modes()["speculative"].fps, rel=0.01)
    assert not after.assumed and after.age_ns < before.age_ns / 3
    assert 0.3 < after.overtaken_share < 0.5 and after.fps == pytest.approx(19 * (1 - after.overtaken_share), rel=0.03)
    assert admission.observe(pong((0, 0, 0, 10, 20, 30, 40)), 0)


def test_each_tolerance_has_its_own_measurement():
    admission = measured()
    assert admission.plan(drafting(1), ()).forecast.assumed
    assert admission.observe(pong((60, 40), bins=1), 0)
    near, exact = admission.plan(drafting(1), ()).forecast, admission.plan(drafting(), ()).forecast
    assert not near.assumed and near.age_ns < exact.age_ns


def test_measured_times_outlive_a_worker():
    admission = measured()
    admission.worker_ready(replace(ready(), bins=True))
    assert not admission.modes()["speculative"].assumed


def test_frames_leave_after_at_most_so_many_passes():
    plan = measured().plan(drafting(max_passes=1), ())
    assert plan.forecast.passes_per_action == 1 and plan.forecast.overtaken == 0
    assert plan.forecast.fps == pytest.approx(1e9 / PACKED_NS, rel=0.01)


def test_actions_that_draft_keep_the_age_limit():
    plan = measured().plan(drafting(age_ms=120), ())
    assert plan.forecast.actions and plan.worst_age_ns <= 120 * MS
    assert plan.robot.patience_ns == 120 * MS - plan.decode_ns - OVERHEAD_NS


AUTO_AGE_MS = 120  # less than serial decoding takes


def test_auto_chooses_drafts_once_it_is_known_how_they_settle_and_not_before():
    admission = rtx5090()
    with pytest.raises(FailedPrecondition):
        admission.plan(request(10, Mode.AUTO, AUTO_AGE_MS), ())
    admission.observe(pong(QUICK), 0)
    plan = admission.plan(request(10, Mode.AUTO, AUTO_AGE_MS), ())
    assert (plan.mode, plan.pace) == (Mode.AUTO, EXACT)
    assert plan.worst_age_ns <= AUTO_AGE_MS * MS


@pytest.mark.parametrize("period_ms", [10, 500])
def test_without_an_age_limit_auto_drafts_from_the_first_frame(period_ms: int):
    """Also where the configuration and the session say nothing."""
    plan = rtx5090(mode=ServiceConfig().mode).plan(request(period_ms), ())
    assert (plan.mode, plan.pace) == (Mode.AUTO, EXACT)
    assert plan.forecast.assumed and plan.forecast.passes_per_action == 7, "no frame needs more passes than tokens"
    assert measured().plan(request(period_ms, Mode.AUTO), ()).pace == EXACT


def test_auto_takes_the_highest_rate_that_keeps_the_age():
    admission = measured()
    found = {age_ms: admission.plan(request(10, Mode.AUTO, age_ms), ()).pace for age_ms in (110, 200, 300)}
    assert found == {110: EXACT, 200: EXACT, 300: Pace(4)}
    slow = measured((0, 0, 0, 0, 10, 20, 70))
    assert slow.plan(request(10, Mode.AUTO, 200), ()).pace == Pace(2)


def test_auto_takes_the_youngest_actions_where_the_rate_is_the_cameras():
    assert measured().plan(request(500, Mode.AUTO, 1000), ()).pace == EXACT
    assert rtx5090().plan(request(500, Mode.AUTO, 1000), ()).pace == Pace(1)


@pytest.mark.parametrize("period_ms", [10, 33, 100, 500])
def test_an_age_that_cannot_be_kept_is_rejected_with_the_best_one(period_ms: int):
    """The best one can be had, and is that of drafts where they are youngest."""
    admission = measured()
    with pytest.raises(FailedPrecondition, match="cannot be kept; the lowest possible is") as caught:
        admission.plan(request(period_ms, Mode.AUTO, 55), ())
    best_ms = int(caught.value.text.split()[-2])
    plan = admission.plan(request(period_ms, Mode.AUTO, best_ms), ())
    assert plan.worst_age_ns <= best_ms * MS
    with pytest.raises(FailedPrecondition):
        admission.plan(request(period_ms, Mode.AUTO, best_ms - 2), ())
    with pytest.raises(FailedPrecondition) as before:
        rtx5090().plan(request(period_ms, Mode.AUTO, 55), ())
    assert best_ms < int(before.value.text.split()[-2])


def test_sessions_that_draft_share_a_device_while_all_frames_have_their_passes():
    admission = measured()
    with pytest.raises(ResourceExhausted):
        fill(admission, drafting(period_ms=400))
    plans = admission.others()
    assert len(plans) > 2
    for plan in plans:
        assert plan.forecast.begun_fps == pytest.approx(2.5, rel=0.03)
