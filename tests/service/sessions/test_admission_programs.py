"""Sessions whose answers differ: each is planned by the program of its key and by the cameras that its policy gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeflow.contract import PROMPT, Pace, Speculation, Stage, StageProgram
from edgeflow.scheduler.pace import served_mode
from edgeflow.service.frontends.grpc.stream import opened_message
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.sessions.admission import Admission
from edgeflow.service.sessions.session import Session
from edgeflow_client.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from edgeflow_client.types import CameraSpec, Execution, ImageFormat, Mode
from tests.service.scripted import SCHEMA
from tests.service.sessions.test_admission import MS, fill, make, ready, request
from tests.service.sessions.test_admission_drafts import drafting, pong
from tests.service.sessions.test_session_properties import RULES

ONE_PASS = StageProgram((Stage(rows=PROMPT),))
DENOISING = StageProgram((Stage(rows=PROMPT), Stage(rows=50, repeats=10, group=1, advances=False)))
PROGRAMS = {"arm": StageProgram.tokens(7), "base": StageProgram.tokens(4)}
LARGE = CameraSpec("large", 2000, 2000, ImageFormat.JPEG)
SMALL = CameraSpec("small", 640, 480, ImageFormat.JPEG)


def serving(programs: dict[str, StageProgram], **config: object) -> Admission:
    admission = make(**config)
    keys = {"unnorm_keys": list(programs), "programs": list(programs.values())}
    admission.worker_ready(replace(ready(), bins=True, **keys))
    return admission


def keyed(asked: OpenRequest, key: str) -> OpenRequest:
    return replace(asked, unnorm_key=key)


def test_the_key_decides_how_many_passes_an_answer_has():
    admission = serving(PROGRAMS)
    plans = {key: admission.plan(keyed(request(10), key), ()) for key in ("arm", "base", "")}
    assert {key: plan.stages for key, plan in plans.items()} == {"arm": 7, "base": 4, "": 7}
    assert plans["arm"].forecast.fps == pytest.approx(1000 / 120, rel=0.01)
    assert plans["base"].forecast.fps == pytest.approx(1000 / 90, rel=0.01)
    assert plans["base"].program == plans["base"].robot.program == PROGRAMS["base"]


@pytest.mark.parametrize("key", PROGRAMS)
def test_a_robot_gets_the_tokens_of_its_own_answers(key: str):
    plan = serving(PROGRAMS).plan(keyed(drafting(), key), ())
    asked = drafting()
    answers = Session(1, asked, SCHEMA, RULES, 0).answers
    opened = opened_message(1, SCHEMA, plan, model="m", answers=answers, request=asked).opened
    assert opened.action_tokens == opened.max_passes == PROGRAMS[key].passes


def test_sessions_without_a_key_have_that_of_the_service():
    admission = serving(PROGRAMS, unnorm_key="base")
    assert admission.plan(request(10), ()).stages == 4
    assert list(admission.modes()) == ["serial", "depth 2", "pipelined", "speculative"]
    assert admission.plan(keyed(request(10), "arm"), ()).stages == 7


@pytest.mark.parametrize(("key", "most"), [("arm", 7), ("base", 4)])
def test_depth_and_passes_are_checked_against_the_answers_of_the_key(key: str, most: int):
    admission = serving(PROGRAMS)
    assert admission.plan(keyed(request(10, Mode.DEPTH, depth=most), key), ()).pace == Pace(most)
    assert admission.plan(keyed(request(10, Mode.PIPELINED), key), ()).pace == Pace(most)
    with pytest.raises(InvalidArgument, match=f"is {most + 1}; this model takes 1 to {most}"):
        admission.plan(keyed(request(10, Mode.DEPTH, depth=most + 1), key), ())
    assert admission.plan(keyed(drafting(max_passes=most), key), ()).pace == Pace(0, Speculation(0, most))
    with pytest.raises(InvalidArgument, match=f"is {most + 1}; this model takes 1 to {most}"):
        admission.plan(keyed(drafting(max_passes=most + 1), key), ())


def test_how_answers_settle_is_known_for_each_width_by_itself():
    admission = serving(PROGRAMS)
    assert admission.observe(pong((60, 40), stages=4), 0)
    arm, base = (admission.plan(keyed(drafting(), key), ()).forecast for key in PROGRAMS)
    assert (arm.assumed, base.assumed) == (True, False)
    auto = {key: admission.plan(keyed(request(500, Mode.AUTO, 1000), key), ()).pace for key in PROGRAMS}
    assert auto == {"arm": Pace(1), "base": Pace(0, Speculation())}


def test_narrow_sessions_leave_room_for_more():
    counts = []
    for key in PROGRAMS:
        admission = serving(PROGRAMS)
        with pytest.raises(ResourceExhausted):
            fill(admission, keyed(request(400, Mode.SERIAL), key))
        counts.append(len(admission.others()))
    assert counts[0] < counts[1]


@pytest.mark.parametrize(("program", "frame_ms"), [(ONE_PASS, 60), (DENOISING, 60 + 10 * 10)])
def test_policies_without_tokens_are_served_serially_if_drafts_are_requested(program: StageProgram, frame_ms: float):
    admission = serving({"": program})
    plan = admission.plan(drafting(), ())
    assert (plan.pace, served_mode(plan.mode, plan.pace, plan.stages)) == (Pace(1), Mode.SERIAL)
    assert plan.forecast.fps == pytest.approx(1000 / frame_ms, rel=0.01)
    assert "speculative" not in admission.modes()
    assert admission.plan(request(10, Mode.PIPELINED), ()).pace == Pace(program.passes)
    assert admission.plan(request(10, Mode.AUTO), ()).pace == Pace(1)


def test_auto_is_serial_where_chunks_continue_each_other():
    asked = request(10, Mode.AUTO, age_ms=1000)
    continued = replace(asked, execution=Execution.CONTINUE)
    for continues in (False, True):
        admission = make()
        admission.worker_ready(replace(ready(), bins=True, programs=[DENOISING], continues=continues))
        highest = Pace(DENOISING.passes)  # the highest rate within the limit
        assert admission.plan(asked, ()).pace == highest
        assert admission.plan(replace(asked, execution=Execution.REST), ()).pace == highest
        assert admission.plan(continued, ()).pace == (Pace(1) if continues else highest)
    with pytest.raises(FailedPrecondition, match="an action age of 20 ms cannot be kept"):
        admission.plan(replace(continued, max_action_age_ns=20 * MS), ())


def test_without_keys_there_is_one_program():
    admission = make()
    admission.worker_ready(replace(ready(), unnorm_keys=[], programs=[ONE_PASS]))
    assert admission.plan(request(10), ()).stages == 1


def test_a_worker_with_longer_answers_keeps_the_sessions_that_are_open():
    admission = serving(PROGRAMS)
    admission.enter(1, admission.plan(keyed(request(500), "arm"), ()))
    admission.worker_ready(replace(ready(), programs=[StageProgram.tokens(4)]))
    assert admission.forecast_answers(admission.plans)[1].age_ns > 90 * MS
    assert admission.plan(request(500), admission.others()).stages == 4


def seeing(*cameras: CameraSpec, period_ms: int = 500) -> OpenRequest:
    """A robot with these cameras and one that the policy does not get."""
    return replace(request(period_ms, cameras=(LARGE, *cameras)), policy_cameras=cameras)


def test_all_cameras_that_the_policy_gets_are_decoded_and_no_other():
    admission = make()
    one, three = admission.plan(seeing(SMALL), ()), admission.plan(seeing(SMALL, SMALL, SMALL), ())
    assert three.cameras == (SMALL,) * 3
    assert three.decode_ns == pytest.approx(3 * one.decode_ns, abs=3)
    assert three.robot.prepare_ns == pytest.approx(3 * one.robot.prepare_ns, abs=3)
    assert one.decode_ns < admission.plan(request(500, cameras=(LARGE,)), ()).decode_ns
    admission.enter(1, three)
    assert admission.forecast_answers(admission.plans)[1].age_ns == three.worst_age_ns


@pytest.mark.parametrize(
    ("cameras", "sizes", "field"),
    [((LARGE,), "2000x2000", "open.cameras[0]"), ((LARGE, SMALL), "2000x2000 + 640x480", "open.cameras")],
)
def test_cameras_that_the_decoders_have_no_room_for_are_named(cameras: tuple[CameraSpec, ...], sizes: str, field: str):
    admission = make(preprocess="device")
    admission.worker_ready(ready(percent=5))
    with pytest.raises(ResourceExhausted) as caught:
        fill(admission, seeing(*cameras, period_ms=200))
    assert f"decoding {sizes} pixels every 200 ms" in caught.value.text
    assert caught.value.field == field


def test_the_age_of_a_chunk_counts_from_the_row_that_is_due():
    """One pass takes 60 ms: too late for an action of 30 ms, not for a chunk whose last row is due 80 ms later."""
    admission = serving({"arm": ONE_PASS})
    asked = request(10, Mode.AUTO, age_ms=30)
    with pytest.raises(FailedPrecondition, match=r"cannot be kept; the lowest possible is \d+ ms"):
        admission.plan(asked, ())
    schema = replace(ready().schema, horizon=5, step_ms=20.0)
    admission.worker_ready(replace(ready(), unnorm_keys=["arm"], programs=[ONE_PASS], schema=schema))
    assert admission.plan(asked, ()).stages == 1
