"""The observer of live pages: nothing is collected while nobody watches, and the warnings in force."""

from __future__ import annotations

from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.sessions.watching import MOST_PER_BATCH, RATE_FRAMES, SessionWatch
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import StateSpec
from tests.service.harness import HEIGHT, JPEG, WIDTH, RunningService, WireRobot, eventually, serving
from tests.service.scripted import Script

WRIST = pb.Camera(name="wrist", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG)
TOP = pb.Camera(name="top", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG)
JOINTS = StateSpec(name="observation.state", size=2, elements=("shoulder", "elbow"), units=("rad", "rad"))


async def acts(robot: WireRobot, first: int, last: int, **changes: object) -> None:
    for seq in range(first, last + 1):
        await robot.frame(seq, **changes)
        await robot.action(seq)


def watch_of(served: RunningService) -> SessionWatch:
    return served.service._watch


def kinds(served: RunningService, number: int) -> list[str]:
    return [each.kind for each in watch_of(served).warnings(number)]


async def test_nothing_is_collected_while_nobody_watches(checkpoint):
    async with serving(checkpoint, timing__silent_hold_ms=50) as served:
        watch, robot = watch_of(served), served.robot()
        number = (await robot.open(control_period_ms=20)).session
        await acts(robot, 1, 5)
        seen = watch._sessions[number]
        assert not seen.changed and seen.newest is None and not seen.ages_ns and not seen.chunks
        await robot.hold("INGRESS_SILENT")
        await eventually(lambda: number in watch._still)
        (shown,) = watch.sessions()  # a state that came before anybody watched
        assert (shown["status"]["state"], shown["status"]["reason"]) == ("hold", "INGRESS_SILENT")
        assert shown["opened"] < shown["status"]["since"]
        watch.start()
        await acts(robot, 6, 8)
        await eventually(lambda: len(seen.answers) == 3)
        assert seen.newest is not None
        watch.stop()
        assert not seen.changed and seen.newest is None


async def test_what_a_batch_takes_of_a_session_is_bounded(checkpoint):
    async with serving(checkpoint) as served:
        watch, robot = watch_of(served), served.robot()
        number = (await robot.open(control_period_ms=20)).session
        watch.start()
        seen = watch._sessions[number]
        await acts(robot, 1, 3)
        await eventually(lambda: len(seen.answers) == 3)
        for _ in range(2 * MOST_PER_BATCH):
            watch.answered(number, seen.answers[0])
        assert len(seen.answers) == MOST_PER_BATCH
        assert len(watch.batch(whole=False)["sessions"][number]["answers"]) == MOST_PER_BATCH


async def test_the_last_news_of_a_session_come_with_its_end(checkpoint):
    async with serving(checkpoint) as served:
        watch, robot = watch_of(served), served.robot()
        number = (await robot.open()).session
        watch.start()
        await acts(robot, 1, 1)
        await acts(robot, 2, 2, arrived=pb.Arrived(seq=1, age_ns=5))
        await robot.send(pb.ClientMessage(close=pb.Close()))
        await robot.rest()
        await eventually(lambda: bool(watch._closed))
        batch = watch.batch(whole=False)
        assert [seq for seq, *_ in batch["sessions"][number]["answers"]] == [1, 2]
        assert [each["session"] for each in batch["closed"]] == [number]
        assert watch.batch(whole=False)["sessions"] == {}


async def test_single_actions_are_not_shown(checkpoint):
    async with serving(checkpoint) as served:
        watch = watch_of(served)
        watch.start()
        open_message = pb.Open(cameras=[WRIST], instruction="go", control_period_ms=50)
        frame = pb.Frame(seq=1, stamp_ns=1, images=[pb.Image(data=JPEG)])
        await served.act(pb.ActRequest(open=open_message, frame=frame))
        assert not watch.batch(whole=True)["whole"] and not watch.sessions()


async def test_warnings_of_rate_and_notices_are_in_force(checkpoint):
    async with serving(checkpoint) as served:
        watch, robot = watch_of(served), served.robot()
        number = (await robot.open(control_period_ms=200, mode=pb.MODE_SPECULATIVE)).session
        watch.start()
        assert kinds(served, number) == []
        await acts(robot, 1, RATE_FRAMES + 2)
        assert kinds(served, number) == ["rate"]
        (warning,) = watch.warnings(number)
        assert "instead of every 200 ms" in warning.text
        served.service.plane.runners[number].ignore(["frame.later"])
        served.service.plane.runners[number].pump()
        await eventually(lambda: kinds(served, number) == ["ignored", "rate"])


async def test_inputs_that_no_name_or_unit_confirms_are_warned_of(checkpoint):
    inputs = PolicyInputs(cameras=(CameraNeed(name="image", named=False),), state=(JOINTS,))
    stated = pb.StateVector(name="observation.state", size=2, elements=["shoulder", "elbow"], units=["rad", "rad"])
    bare = pb.StateVector(name="observation.state", size=2)
    async with serving(checkpoint, Script(inputs=inputs)) as served:
        good, bad = served.robot(), served.robot()
        known = (await good.open(cameras=[WRIST], state=[stated])).session
        unknown = (await bad.open(cameras=[WRIST, TOP], state=[bare])).session
        assert kinds(served, known) == []
        assert kinds(served, unknown) == ["names", "names", "units"]
        assert "'wrist'" in watch_of(served).warnings(unknown)[0].text
