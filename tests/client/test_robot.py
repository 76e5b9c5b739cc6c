"""The client against a real gRPC server, through a socket."""

import contextlib
import importlib.util
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from edgeflow.client.connection.link import Link
from edgeflow.client.connection.outgoing import Outgoing
from edgeflow.client.pose import identity
from edgeflow.client.robot import RobotClient
from edgeflow.client.session import Session
from edgeflow.clock import ManualClock
from edgeflow.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from edgeflow.rpc import control_pb2 as pb
from edgeflow.types import CameraSpec, Command, ImageFormat, Mode
from tests.client.conftest import IMAGE
from tests.client.scripted import CAMERA, Refuse, Talk, answer_all, opened

ROOT = Path(__file__).parents[2]
MANY = 100  # frames pushed at once, most of which are superseded


def test_open_says_what_was_agreed(serve, connect):
    server = serve(answer_all)
    with connect(server, mode=Mode.SERIAL, proprio_names=("a",), max_action_age_s=0.7) as client:
        assert client.opened.action_tokens == 7
        assert client.opened.schema.frame == "tool"
        opening = server.heard.get(timeout=60).open
    assert (opening.instruction, opening.control_period_ms, opening.max_action_age_ms) == ("grasp", 20, 700)
    assert (opening.mode, list(opening.proprio_names)) == (pb.MODE_SERIAL, ["a"])
    camera = opening.cameras[0]
    assert (camera.name, camera.width, camera.height, camera.format) == ("wrist", 8, 6, pb.IMAGE_FORMAT_RGB8)


def test_open_says_how_drafts_are_verified(serve, connect):
    server = serve(answer_all)
    with connect(server, mode=Mode.SPECULATIVE, tolerance_bins=1, max_passes=3):
        opening = server.heard.get(timeout=60).open
    assert (opening.mode, opening.tolerance_bins, opening.max_passes) == (pb.MODE_SPECULATIVE, 1, 3)


def test_a_frame_gets_its_action(serve, connect, eventually):
    with connect(serve(answer_all)) as client:
        seq = client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        directive = client.latest()
        assert directive.action.seq == seq
        assert directive.target.pose.position[0] == pytest.approx(0.01)
        assert directive.target.values == {"gripper": 1.0}
        eventually(lambda: client.statistics().acted == 1)
        assert client.statistics().age_max_ns > 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted),
    ],
)
def test_a_refused_open_is_a_typed_error(serve, connect, code, kind):
    def refuse(talk: Talk) -> None:
        raise Refuse(code, "open.model: there is none of that name", edgeflow_reason="MODEL_UNKNOWN")

    server = serve(refuse)
    with pytest.raises(kind, match="none of that name") as caught, connect(server):
        raise AssertionError("must not be entered")
    assert caught.value.reason == "MODEL_UNKNOWN"
    assert server.streams == 1


def test_nobody_at_the_address_is_unavailable(serve, connect):
    server = serve(answer_all)
    server.stop()
    with pytest.raises(Unavailable, match=server.address), connect(server, open_timeout_s=0.3):
        raise AssertionError("must not be entered")


def test_a_service_that_starts_late_is_waited_for(serve, connect):
    gone = serve(answer_all)
    gone.stop()
    late = threading.Timer(0.2, lambda: serve(answer_all, gone.port))
    late.start()
    with connect(gone, open_timeout_s=10) as client:
        assert client.opened.model == "scripted"
    late.join()


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


def test_a_lost_stream_is_followed_by_a_new_one(serve, connect, eventually):
    first = serve(answer_all)
    with connect(first) as client:
        for _ in range(MANY):
            client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        first.stop()
        eventually(lambda: client.latest().reason == "DISCONNECTED")
        second = serve(answer_all, first.port)

        pushed = 0

        def resumed() -> bool:
            nonlocal pushed
            pushed += 1
            if client.latest().needs_reset:  # this machine took longer than 2 s
                client.reset()
            client.push(IMAGE, pose=identity())
            return client.latest().command is Command.ACT

        eventually(resumed)
        counts = client.statistics()
        assert counts.reconnects == 1
        assert counts.actions >= 2
    opening = second.heard.get(timeout=60)
    assert opening.HasField("open")
    assert second.heard.get(timeout=60).frame.seq <= min(pushed, MANY)  # a new stream counts from the start


def test_a_service_that_no_longer_says_anything_is_given_up(serve, connect, eventually):
    def deaf(talk: Talk) -> None:
        talk.open()
        talk.stall()

    clock, server = ManualClock(1), serve(deaf)
    with connect(server, clock=clock) as client:
        for _ in range(10):
            client.push(IMAGE)
        clock.advance_ns(5_100_000_000)
        eventually(lambda: client.latest().reason == "DISCONNECTED")
        client.push(IMAGE)
        eventually(lambda: server.streams == 2)


def test_an_epoch_that_cannot_be_ends_the_stream_and_another_follows(serve, connect, eventually):
    def wrong(talk: Talk) -> None:
        talk.open()
        if talk.number == 1:
            talk.say(notice=pb.Notice(kind="epoch", epoch=2**63))
        for frame in talk.frames():
            talk.act(frame)

    with connect(serve(wrong)) as client:
        eventually(lambda: client.latest().reason == "DISCONNECTED")

        def acts() -> bool:
            client.push(IMAGE)
            return client.latest().command is Command.ACT

        eventually(acts)


def test_a_service_that_never_answers_open_is_unavailable(serve, connect):
    clock, server = ManualClock(1), serve(lambda talk: talk.stall())
    later = threading.Timer(0.2, lambda: clock.advance_ns(5_100_000_000))
    later.start()
    with pytest.raises(Unavailable, match="stopped answering"), connect(server, clock=clock, open_timeout_s=0.6):
        raise AssertionError("must not be entered")
    later.join()


def test_a_silent_robot_does_not_reconnect_until_it_has_something_to_say(serve, connect, eventually):
    ends = threading.Event()

    def hang_up(talk: Talk) -> None:
        talk.open()
        ends.set()

    server, control = serve(hang_up), serve(hang_up)
    with connect(server) as client, connect(control) as talkative:
        assert ends.wait(60)
        eventually(lambda: client.latest().reason == "DISCONNECTED")

        def comes_back() -> bool:
            talkative.push(IMAGE)
            return control.streams == 3

        eventually(comes_back)
        assert server.streams == 1
        client.push(IMAGE)
        eventually(lambda: server.streams == 2)


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


def test_misuse_is_told(serve, connect):
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


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:0", "http://127.0.0.1:50051"])
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(InvalidArgument, match="address"):
        RobotClient(address, cameras=[CAMERA], instruction="grasp", control_period_s=0.05)


@pytest.mark.parametrize(
    "wrong", [{"control_period_s": 0.0}, {"max_action_age_s": -1.0}, {"resume_within_s": math.nan}]
)
def test_settings_that_make_no_sense_are_refused_at_once(serve, connect, wrong):
    with pytest.raises(InvalidArgument):
        connect(serve(answer_all), **wrong)


def test_a_schema_that_nobody_can_keep_is_refused(serve, connect):
    def contradict(talk: Talk) -> None:
        talk.hear()
        answer = opened()
        answer.schema.dimensions[0].low = math.nan
        talk.say(opened=answer)
        talk.stall()

    with pytest.raises(FailedPrecondition, match="NaN"), connect(serve(contradict)):
        raise AssertionError("must not be entered")


@pytest.mark.parametrize("wait", ["1.5", "abc"])
def test_a_trailer_that_is_no_number_does_not_end_the_link(serve, connect, eventually, wait):
    def busy_once(talk: Talk) -> None:
        if talk.number == 1:
            raise Refuse(grpc.StatusCode.UNAVAILABLE, "starting", retry_after_ms=wait)
        if talk.number == 2:
            talk.open()
            talk.act(next(talk.frames()))
            raise Refuse(grpc.StatusCode.UNAVAILABLE, "draining", retry_after_ms=wait)
        answer_all(talk)

    server = serve(busy_once)
    with connect(server) as client:

        def comes_back() -> bool:
            client.push(IMAGE)
            return server.streams == 3 and client.statistics().reconnects == 1

        eventually(comes_back)


@pytest.mark.parametrize("broken", ["stream_opened", "stream_said", "stream_ended"])
def test_a_mistake_in_the_links_thread_means_hold_and_another_attempt(
    serve, connect, eventually, monkeypatch, caplog, broken
):
    works, breaks = getattr(Session, broken), iter([None])

    def once(session: Session, *arguments) -> object:
        if next(breaks, "no more") is None:
            raise RuntimeError("a mistake of ours")
        return works(session, *arguments)

    monkeypatch.setattr(Session, broken, once)

    def end_first(talk: Talk) -> None:
        if talk.number == 1 and broken == "stream_ended":
            talk.open()
        else:
            answer_all(talk)

    server = serve(end_first)
    with connect(server) as client:

        def acts() -> bool:
            client.push(IMAGE)
            return server.streams == 2 and client.latest().command is Command.ACT

        eventually(acts)
        assert client.statistics().reconnects == (0 if broken == "stream_opened" else 1)
    assert caplog.text.count("RuntimeError: a mistake of ours") == 1
    assert "unexpected RuntimeError in the link" in caplog.text


def test_a_mistake_while_writing_means_hold_and_another_attempt(serve, connect, eventually, monkeypatch, caplog):
    works, breaks = Outgoing._take, iter([False, True])

    def second_time(outgoing: Outgoing) -> object:
        if next(breaks, False):
            raise RuntimeError("a mistake of ours")
        return works(outgoing)

    monkeypatch.setattr(Outgoing, "_take", second_time)
    server = serve(answer_all)
    with connect(server) as client:

        def acts() -> bool:
            client.push(IMAGE)
            return server.streams == 2 and client.latest().command is Command.ACT

        eventually(acts)
    assert caplog.text.count("RuntimeError: a mistake of ours") == 1


def test_a_mistake_in_the_watchdog_does_not_end_it(serve, connect, eventually, monkeypatch, caplog):
    works, breaks = Link.check, iter([None])

    def once(link: Link) -> None:
        if next(breaks, "no more") is None:
            raise RuntimeError("a mistake of ours")
        works(link)

    def act_once(talk: Talk) -> None:
        talk.open()
        talk.act(next(talk.frames()))
        talk.stall()

    monkeypatch.setattr(Link, "check", once)
    seen = []
    with connect(serve(act_once), on_action=seen.append) as client:
        client.push(IMAGE)
        eventually(lambda: any(directive.reason == "SILENCE" for directive in seen))
    assert "unexpected RuntimeError in the watchdog" in caplog.text


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


def test_the_example_moves_the_robot(serve):
    """examples/robot_loop.py, the loop of the README."""
    path = ROOT / "examples" / "robot_loop.py"
    assert len(path.read_text().splitlines()) < 30
    spec = importlib.util.spec_from_file_location("robot_loop", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    camera = example.CAMERA
    picture = np.zeros((camera.height, camera.width, 3), np.uint8)
    moves, holds = [], []
    example.control(
        serve(answer_all).address,
        "grasp the red handle",
        lambda: picture,
        identity,
        lambda pose, gripper: moves.append((pose, gripper)),
        lambda: holds.append(True),
        steps=12,
    )
    assert len(moves) >= 6
    assert moves[0][0].position[0] == pytest.approx(0.01) and moves[0][1] == 1.0
    assert len(moves) + len(holds) == 12
