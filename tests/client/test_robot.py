"""The client against a real gRPC server, through a socket."""

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.pose import Pose, identity
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, Command, ImageFormat
from tests.client.conftest import IMAGE
from tests.client.scripted import Talk, answer_all


def test_a_frame_gets_its_action(serve, connect, eventually):
    with connect(serve(answer_all)) as client:
        seq = client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        directive = client.latest()
        assert directive.action.seq == seq
        assert directive.tool.pose.position[0] == pytest.approx(0.01)
        assert directive.tool.values == {"gripper": 1.0}
        eventually(lambda: client.statistics().acted == 1)
        assert client.statistics().age_max_ns > 0


@contextlib.contextmanager
def late_timers() -> Iterator[list[float]]:
    """How late this machine wakes a thread meanwhile, in milliseconds: what no deadline can improve on."""
    late_ms, stop = [0.0], threading.Event()

    def measure() -> None:
        while True:
            due = time.monotonic() + 0.005
            if stop.wait(0.005):
                return
            late_ms.append(1e3 * (time.monotonic() - due))

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield late_ms
    finally:
        stop.set()
        thread.join()


def test_silence_becomes_hold_within_the_validity_and_20_ms(serve, connect):
    valid_ms = 100

    def answer_ten_then_stall(talk: Talk) -> None:
        talk.open(valid_for_ms=valid_ms)
        for _, frame in zip(range(10), talk.frames(), strict=False):
            talk.act(frame)
        talk.stall()

    delays_ms: list[float] = []
    with late_timers() as late_ms, connect(serve(answer_ten_then_stall)) as client:
        client.push(IMAGE, pose=identity())
        for directive in client.directives():
            if directive.action is not None:
                action = directive.action
            if directive.reason == "SILENCE":
                delays_ms.append((time.monotonic_ns() - action.received_ns) / 1e6)
                if len(delays_ms) == 10:
                    break
                client.push(IMAGE, pose=identity())
    assert min(delays_ms) >= valid_ms, delays_ms
    late = 2 * np.percentile(late_ms, 90)  # two threads wake in turn; one late wake does not move the percentile
    assert np.median(delays_ms) <= valid_ms + 20 + late, (delays_ms, late)


def test_a_dead_service_becomes_hold_at_once(serve, connect, eventually):
    server = serve(answer_all)
    with connect(server) as client:
        client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        server.stop()
        eventually(lambda: client.latest().reason in ("DISCONNECTED", "SILENCE"))


def test_pushing_never_waits_for_a_service_that_does_not_read(serve, connect):
    camera = CameraSpec("wrist", 640, 480, ImageFormat.RGB8)
    picture = np.zeros((480, 640, 3), np.uint8)

    def deaf(talk: Talk) -> None:
        talk.open()
        talk.stall()

    server = serve(deaf)
    with connect(server, cameras=[camera]) as client:
        for _ in range(100):
            client.push(picture)  # the service never reads: a push that waited for it would not return
        counts = client.statistics()
    assert counts.offered == 100
    assert counts.superseded > 50, "frames must be replaced, not queued"


def test_results_of_an_old_epoch_are_never_given_out(serve, connect, eventually):
    def stale(talk: Talk) -> None:
        talk.open(valid_for_ms=60_000)  # a reader that is late still sees each
        frames = talk.frames()
        talk.epoch = 5
        talk.say(notice=pb.Notice(kind="epoch", epoch=talk.epoch))
        talk.act(next(frames))
        talk.act(next(frames), epoch=4)
        talk.act(next(frames), epoch=5)
        talk.stall()  # the end of the stream would be a HOLD that a late reader sees instead

    seen = []
    with connect(serve(stale), on_action=seen.append) as client:
        for ignored, acted in ((0, 1), (1, 1), (1, 2)):
            client.push(IMAGE, pose=identity())
            eventually(lambda ignored=ignored: client.statistics().ignored == ignored)
            eventually(lambda acted=acted: len([directive for directive in seen if directive.action]) == acted)
    assert [directive.action.seq for directive in seen if directive.action] == [1, 3]


def test_reset_starts_an_episode_and_lets_the_robot_move_again(serve, connect, eventually):
    def stop_first(talk: Talk) -> None:
        talk.open()
        talk.say(action=pb.Action(epoch=1, command=pb.COMMAND_STOP, reason="FAULT"))
        while (message := talk.hear()) is not None:
            if message.HasField("reset"):
                talk.epoch += 1
                talk.instruction = message.reset.instruction
            elif message.HasField("frame"):
                talk.act(message.frame)

    server = serve(stop_first)
    with connect(server) as client:
        eventually(lambda: client.latest().command is Command.STOP)
        assert client.latest().needs_reset
        client.push(IMAGE, pose=identity())
        eventually(lambda: client.statistics().ignored == 1)
        assert client.latest().command is Command.STOP
        client.reset("place")
        client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        assert client.latest().action.epoch == 2
    assert [server.heard.get(timeout=60).WhichOneof("kind") for _ in range(4)] == ["open", "frame", "reset", "frame"]


def test_a_callback_that_raises_is_called_again(serve, connect, eventually, caplog):
    seen = []

    def callback(directive) -> None:
        seen.append(directive)
        raise RuntimeError("the robot's own mistake")

    with connect(serve(answer_all), on_action=callback) as client:
        for count in (1, 2):
            client.push(IMAGE, pose=identity())
            eventually(lambda count=count: sum(d.action is not None for d in seen) >= count)
    assert "the robot's own mistake" in caplog.text
    assert seen[-1].reason == "CLOSED"


def test_the_farthest_pose_is_the_clients_own_setting(serve, connect):
    server = serve(answer_all)
    with pytest.raises(InvalidArgument, match="max_distance_m"):
        connect(server, max_distance_m=0)
    with connect(server, max_distance_m=2.0) as client:
        client.push(IMAGE, pose=Pose([0.0, 0.0, 1.9], wxyz=[1, 0, 0, 0]))
        with pytest.raises(InvalidArgument, match=r"pose\.position: is 2\.1 m .* max_distance_m of the client is 2\."):
            client.push(IMAGE, pose=Pose([0.0, 0.0, 2.1], wxyz=[1, 0, 0, 0]))


def test_misuse_is_an_error(serve, connect):
    client = connect(serve(answer_all))
    with pytest.raises(FailedPrecondition):
        client.push(IMAGE)
    with client:
        with pytest.raises(InvalidArgument, match="uint8"):
            client.push(np.zeros((6, 8, 3)))
        with pytest.raises(InvalidArgument, match="proprio"):
            client.push(IMAGE, proprio=[1.0])
    with pytest.raises(FailedPrecondition):
        client.push(IMAGE)
    assert client.latest().command is Command.HOLD
    client.close()


def test_an_old_frames_action_is_never_given_out(serve, connect, eventually):
    """Every action comes when its frame is older than the action's own limit; the clock is the test's."""
    clock = ManualClock(1_000_000_000)

    def late(talk: Talk) -> None:
        talk.open()
        for frame in talk.frames():
            clock.advance_ns(400_000_000)
            talk.act(frame, max_age_ms=300)

    seen = []
    with connect(serve(late), clock=clock, on_action=seen.append) as client:
        for count in (1, 2):
            client.push(IMAGE)
            eventually(lambda count=count: client.statistics().too_old == count)
            client.reset()
        assert client.statistics().actions == 0
    assert all(directive.action is None for directive in seen)


def test_leaving_says_goodbye_and_ends_every_thread(serve, connect):
    before = set(threading.enumerate())
    server = serve(answer_all)
    with connect(server, on_action=lambda directive: None):
        pass
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("edgeflow-")]
    assert ours == []
    kinds = [server.heard.get(timeout=60).WhichOneof("kind") for _ in range(2)]
    assert kinds == ["open", "close"]


def test_two_clients_do_not_hear_each_other(serve, connect, eventually):
    server = serve(answer_all)
    with connect(server) as one, connect(server) as other:
        one.push(IMAGE, pose=identity())
        eventually(lambda: one.latest().command is Command.ACT)
        assert other.latest().reason == "WAITING"
