"""Runs against a real front whose worker is scripted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import StartError
from edgeflow_client.loadtest.command import loadtest_command
from edgeflow_client.loadtest.results import Results, results_json, results_of
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.plan import Bursts, ClosedLoopPlan, Fixed, Ramp
from edgeflow_client.loadtest.run import LoadRun
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat, Mode, StateSpec
from tests.client.loadtest.conftest import CAMERA, PLAN
from tests.service.frontends.grpc.test_observations import HORIZON, SIZES, STEP_MS, wide_script
from tests.service.harness import eventually, serving
from tests.service.scripted import Script

IMAGES = frames_for((CAMERA,), None, 4, seed=0)
QUICK = {"limits__rate_hz": 1000.0, "mode": "pipelined"}  # the robots of a test are faster than real ones


def plan_for(served, **changes):
    return replace(PLAN, address=served.service.status.grpc_address, **changes)


def running(plan) -> tuple[LoadRun, asyncio.Event]:
    return LoadRun(plan, IMAGES), asyncio.Event()


async def results(plan, limits=()) -> Results:
    run, stop = running(plan)
    found = results_of(await run.measure(stop), dict(limits))
    assert total(found) == found.total.frames.offered
    assert not found.total.contradictions
    return found


def total(found: Results) -> int:
    frames = found.total.frames
    refused = (frames.rejected, frames.dropped, frames.unanswered)
    return frames.acted + frames.superseded + sum(sum(each.values()) for each in refused)


async def test_a_closed_loop_keeps_its_window_and_ends_after_its_count(checkpoint):
    async with serving(checkpoint, **QUICK) as served:
        found = await results(plan_for(served, count=25, robots=3, connections=2))
        assert [robot.frames.acted for robot in found.robots] == [25] * 3
        assert found.total.frames.superseded == 0, "one frame under way cannot be superseded"
        assert found.total.age_ms.count == 75 and found.total.age_ms.max >= found.total.service_ms.max > 0
        assert found.total.pass_ms.p50 == pytest.approx(20 / 3 / 1e6)
        opens = [message for message in served.script.worker.seen if type(message).__name__ == "OpenSession"]
        assert len(opens) == 3


async def test_an_open_loop_offers_its_rate_though_nothing_is_answered(checkpoint):
    """A generator that waited for answers would offer next to nothing here, and find no frame old."""
    script = Script()
    async with serving(checkpoint, script, **QUICK) as served:
        script.hold = True
        found = await results(plan_for(served, pattern=Fixed(100.0), duration_s=1.0, grace_s=0.2))
        frames = found.total.frames
        assert frames.offered == pytest.approx(100, abs=20)
        assert frames.acted == 0 and frames.unanswered[Reason.NO_ANSWER] > 0


async def test_the_age_of_an_action_is_its_wait(checkpoint):
    """The three oldest frames are answered when 13 younger ones, 20 ms apart, are with the worker."""
    script = Script()
    async with serving(checkpoint, script, **QUICK) as served:
        script.hold = True
        plan = plan_for(served, pattern=Fixed(50.0), warm_up_s=0.0, duration_s=60.0, grace_s=0.1)
        run, stop = running(plan)
        task = asyncio.create_task(run.measure(stop))
        await eventually(lambda: len(script.worker.submitted()) >= 16)
        script.worker.release(3)
        await eventually(lambda: len(script.worker.submitted()) >= 20)
        stop.set()
        found = results_of(await task, {})
        assert found.interrupted
        assert 1 <= found.total.frames.acted <= 3
        assert 240 <= found.total.age_ms.max == pytest.approx(found.total.service_ms.max, abs=200)


async def test_robots_with_several_cameras_and_state_play_chunks(checkpoint):
    cameras = tuple(CameraSpec(name, *size, ImageFormat.JPEG) for name, size in SIZES.items())
    session = replace(PLAN.session, cameras=cameras, state=(StateSpec(name="state", size=2),))
    async with serving(checkpoint, wide_script(), **QUICK) as served:
        plan = plan_for(served, session=session, count=5)
        run, stop = LoadRun(plan, frames_for(cameras, None, 4, seed=0)), asyncio.Event()
        found = results_of(await run.measure(stop), {})
        assert found.total.frames.acted == 5 and found.total.misses == 0
        assert (found.horizon, found.step_ms) == (HORIZON, STEP_MS)
        assert json.loads(results_json(found))["horizon"] == HORIZON
        states = [frame.state for frame in served.script.worker.submitted()]
        assert len(set(map(tuple, states))) == len(states) and all(len(state) == 2 for state in states)


async def test_a_closed_loop_of_a_robot_that_rests_waits_until_it_stands_still(checkpoint):
    """A frame taken in motion would never be answered, and the loop never go on."""
    script = wide_script(bridged_rows=0)
    script.schema = replace(script.schema, step_ms=20.0)
    cameras = tuple(CameraSpec(name, *size, ImageFormat.JPEG) for name, size in SIZES.items())
    session = replace(PLAN.session, cameras=cameras, state=(StateSpec(name="state", size=2),))
    async with serving(checkpoint, script, **QUICK) as served:
        run = LoadRun(plan_for(served, session=session, count=3), frames_for(cameras, None, 4, seed=0))
        found = results_of(await run.measure(asyncio.Event()), {})
        frames = found.total.frames
        assert (frames.acted, frames.offered) == (3, 3)


async def test_bursts_supersede(checkpoint):
    script = Script()
    async with serving(checkpoint, script, **QUICK) as served:
        plan = plan_for(served, pattern=Bursts(10, 0.2), warm_up_s=0.0, duration_s=0.9)
        found = await results(plan)
        assert found.total.frames.offered % 10 == 0 and found.total.frames.acted >= 1


async def test_a_ramp_stops_where_the_service_does_not_follow(checkpoint):
    """The worker answers no frame once the second step is under way."""
    script = Script()
    async with serving(checkpoint, script, **QUICK) as served:
        plan = plan_for(served, pattern=Ramp(20, 2000, step_s=0.5, factor=2), warm_up_s=0.2, grace_s=0.2)
        run, stop = running(plan)
        task = asyncio.create_task(run.measure(stop))
        await eventually(lambda: bool(script.workers) and len(script.worker.submitted()) >= 22)
        script.hold = True
        found = results_of(await task, {})
        assert not found.interrupted
        assert not found.steps[-1].followed and len(found.steps) < 7


async def test_the_service_goes_away_and_comes_back(checkpoint):
    """The worker is not lost, the front is: robots reconnect, what was due meanwhile is told."""
    async with serving(checkpoint, **QUICK) as served:
        plan = plan_for(served, pattern=Fixed(50.0), robots=2, warm_up_s=0.0, duration_s=60.0)
        port = int(plan.address.rpartition(":")[2])
        run, stop = running(plan)
        task = asyncio.create_task(run.measure(stop))
        await eventually(lambda: len(served.script.worker.submitted()) >= 10)
    async with serving(checkpoint, grpc__port=port, **QUICK) as served:
        await eventually(lambda: len({each.session for each in served.script.worker.submitted()}) == 2)
        await eventually(lambda: len(served.script.worker.submitted()) >= 10)
        stop.set()
        found = results_of(await task, {})
    assert sum(found.total.losses.values()) >= 2
    assert set(found.total.frames.unanswered) <= {Reason.DISCONNECTED, Reason.STREAM_LOST, Reason.NO_ANSWER}
    assert found.total.frames.unanswered[Reason.DISCONNECTED] > 0
    assert total(found) == found.total.frames.offered
    assert all(robot.frames.acted > 0 for robot in found.robots)


async def test_without_a_service_the_test_cannot_run():
    run, stop = running(replace(PLAN, address="127.0.0.1:1"))
    with pytest.raises(StartError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
        await run.measure(stop)


async def test_a_rejection_names_the_field(checkpoint):
    async with serving(checkpoint) as served:
        session = replace(PLAN.session, control_period_s=0.001)
        run, stop = running(plan_for(served, session=session))
        with pytest.raises(StartError, match="control_period_ms"):
            await run.measure(stop)


async def test_a_rejection_of_what_robots_send_names_the_options(checkpoint):
    async with serving(checkpoint, wide_script()) as served:
        run, stop = running(plan_for(served))
        with pytest.raises(StartError, match=r"open\.cameras.*--cameras NAME:WxH.*--state NAME:SIZE"):
            await run.measure(stop)


async def test_mode_and_depth_are_requested_and_the_forecast_is_kept(checkpoint):
    async with serving(checkpoint, **QUICK) as served:
        session = replace(PLAN.session, mode=Mode.DEPTH, depth=2)
        found = await results(plan_for(served, pattern=Fixed(20.0), session=session))
        (prediction,) = found.predictions
        assert prediction is not None and (prediction.mode, prediction.depth) == ("depth", 2)
        assert prediction.fps > 0 and prediction.age_ms > 0 and prediction.kept


async def test_the_passes_of_drafting_frames_are_reported(checkpoint):
    script = Script(passes=1, settled=2)
    async with serving(checkpoint, script, **QUICK) as served:
        session = replace(PLAN.session, mode=Mode.SPECULATIVE)
        found = await results(plan_for(served, pattern=Fixed(20.0), session=session))
        frames = found.total.frames
        assert frames.acted > 0 and frames.unsettled == frames.acted
        assert (found.total.passes.mean, found.total.passes.max) == (1.0, 1.0)
        (prediction,) = found.predictions
        assert prediction is not None and (prediction.mode, prediction.depth) == ("speculative", 0)


async def test_the_command_judges(checkpoint, capsys, tmp_path):
    async with serving(checkpoint, **QUICK) as served:
        plan = plan_for(served, pattern=ClosedLoopPlan(2), count=10)
        met = await asyncio.to_thread(
            loadtest_command, plan, {"max-age-p99": 1e6}, Credentials(), as_json=True, out=tmp_path / "out"
        )
        content = json.loads(capsys.readouterr().out)
        missed = await asyncio.to_thread(
            loadtest_command, plan, {"min-fps": 1e6}, Credentials(), as_json=False, out=None
        )
        text, progress = capsys.readouterr()
    assert (met, missed) == (0, 1)
    assert content["met"] is True and content["total"]["frames"]["offered"] >= 10
    assert "min-fps" in text and "NOT MET" in text
    assert "live page: http://127.0.0.1:8000/" in progress
    assert len(list((tmp_path / "out").iterdir())) == 6
