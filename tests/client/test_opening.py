"""Opening a session through a real gRPC server: what is agreed, rejected, or never answered."""

import math
import threading

import grpc
import pytest

from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from edgeflow_client.robot import RobotClient
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command, Mode, StateSpec
from tests.client.conftest import IMAGE
from tests.client.scripted import CAMERA, Refuse, Talk, answer_all, opened


def test_open_says_what_was_agreed(serve, connect):
    server = serve(answer_all)
    with connect(server, mode=Mode.SERIAL, state=(StateSpec(name="a", size=1),), max_action_age_s=0.7) as client:
        assert client.opened.action_tokens == 7
        assert client.opened.schema.frame == "tool"
        opening = server.heard.get(timeout=60).open
    assert (opening.instruction, opening.control_period_ms, opening.max_action_age_ms) == ("grasp", 20, 700)
    assert (opening.mode, [each.name for each in opening.state]) == (pb.MODE_SERIAL, ["a"])
    camera = opening.cameras[0]
    assert (camera.name, camera.width, camera.height, camera.format) == ("wrist", 8, 6, pb.IMAGE_FORMAT_RGB8)


def test_open_says_how_drafts_are_verified(serve, connect):
    server = serve(answer_all)
    with connect(server, mode=Mode.SPECULATIVE, tolerance_bins=1, max_passes=3):
        opening = server.heard.get(timeout=60).open
    assert (opening.mode, opening.tolerance_bins, opening.max_passes) == (pb.MODE_SPECULATIVE, 1, 3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted),
    ],
)
def test_a_rejected_open_is_a_typed_error(serve, connect, code, kind):
    def refuse(talk: Talk) -> None:
        raise Refuse(code, "open.model: there is none of that name", edgeflow_reason="MODEL_UNKNOWN")

    server = serve(refuse)
    with pytest.raises(kind, match="none of that name") as caught, connect(server):
        raise AssertionError("must not be entered")
    assert caught.value.reason == "MODEL_UNKNOWN"
    assert server.streams == 1


def test_services_of_other_versions_are_warned_of_once(serve, connect, eventually, caplog):
    def answer(talk: Talk) -> None:
        talk.hear()
        talk.valid_for_ms = 100
        later = pb.Opened.FromString(opened().SerializeToString() + b"\x98\x06\x01")
        later.schema.MergeFromString(b"\xf8\x01\x01")
        later.ignored.append("message.open.107")
        talk.say(opened=later)
        talk.say(notice=pb.Notice(kind="ignored", text="message.frame.108"))
        talk.out.put(pb.ServerMessage.FromString(b"\x98\x06\x01"))  # a kind of message that is unknown
        for frame in talk.frames():
            talk.act(frame)

    with connect(serve(answer)) as client:
        client.push(IMAGE)
        eventually(lambda: client.latest().command is Command.ACT)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"][:-1] == [
        "the service is newer than this SDK, which ignores opened.99, opened.schema.31",
        "the service is older than this SDK, and ignores some of what it sends: it does not know message.open.107",
    ]


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


def test_a_service_that_never_answers_open_is_unavailable(serve, connect):
    clock, server = ManualClock(1), serve(lambda talk: talk.stall())
    later = threading.Timer(0.2, lambda: clock.advance_ns(5_100_000_000))
    later.start()
    with pytest.raises(Unavailable, match="stopped answering"), connect(server, clock=clock, open_timeout_s=0.6):
        raise AssertionError("must not be entered")
    later.join()


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:0", "http://127.0.0.1:50051"])
def test_an_invalid_address_is_rejected_at_once(address):
    with pytest.raises(InvalidArgument, match="address"):
        RobotClient(address, cameras=[CAMERA], instruction="grasp", control_period_s=0.05)


@pytest.mark.parametrize(
    "wrong", [{"control_period_s": 0.0}, {"max_action_age_s": -1.0}, {"resume_within_s": math.nan}]
)
def test_settings_that_make_no_sense_are_rejected_at_once(serve, connect, wrong):
    with pytest.raises(InvalidArgument):
        connect(serve(answer_all), **wrong)


@pytest.mark.parametrize("wrong", [{"cameras": CAMERA}, {"cameras": None}, {"state": 6}])
def test_a_value_that_must_be_a_list_is_an_error(serve, connect, wrong):
    with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))}: must be a list, got"):
        connect(serve(answer_all), **wrong)


def test_a_schema_that_nobody_can_keep_is_rejected(serve, connect):
    def contradict(talk: Talk) -> None:
        talk.hear()
        answer = opened()
        answer.schema.dimensions[0].low = math.nan
        talk.say(opened=answer)
        talk.stall()

    with pytest.raises(FailedPrecondition, match="NaN"), connect(serve(contradict)):
        raise AssertionError("must not be entered")
