"""Outgoing messages, back-off, images, statuses."""

import math
import random

import grpc
import numpy as np
import pytest
import torch
from PIL import Image

from edgeflow_client.connection.credentials import check_address
from edgeflow_client.connection.link import LONGEST_S, SHORTEST_S, Backoff
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import age_limit_ns, error_of, open_message, opened_of
from edgeflow_client.errors import EdgeflowError, FailedPrecondition, InvalidArgument, ResourceExhausted
from edgeflow_client.observation import encode_images
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat, Mode
from tests.client.scripted import opened, session_settings

RGB = CameraSpec("wrist", 4, 3, ImageFormat.RGB8)
JPEG = CameraSpec("scene", 4, 3, ImageFormat.JPEG)
PIXELS = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)


def kinds(outgoing: OutgoingMessages) -> list[str]:
    return [message.WhichOneof("kind") for message in outgoing]


def test_only_the_newest_frame_is_written():
    outgoing = OutgoingMessages(pb.Open(model="m"))
    assert outgoing.offer(pb.Frame(seq=1)) == 0
    assert outgoing.offer(pb.Frame(seq=2)) == 1
    assert next(outgoing).open.model == "m"
    assert next(outgoing).frame.seq == 2
    assert outgoing.offer(pb.Frame(seq=3)) == 0
    outgoing.close()
    assert kinds(outgoing) == ["frame", "close"]


def test_a_reset_comes_before_the_frames_that_follow_it_and_withdraws_those_before():
    outgoing = OutgoingMessages(pb.Open())
    outgoing.offer(pb.Frame(seq=1))
    assert outgoing.reset("place") == 1
    outgoing.offer(pb.Frame(seq=2))
    outgoing.close()
    assert kinds(outgoing) == ["open", "reset", "frame", "close"]


def test_ending_lets_a_waiting_writer_go():
    outgoing = OutgoingMessages(pb.Open())
    next(outgoing)
    outgoing.end()
    assert list(outgoing) == []


@pytest.mark.parametrize("seed", range(5))
def test_at_most_two_attempts_a_second_growing_to_the_longest_wait(seed):
    backoff = Backoff(random.Random(seed))
    delays = [backoff.next_delay_s() for _ in range(20)]
    assert min(delays) >= SHORTEST_S
    assert max(delays) <= LONGEST_S
    assert delays[0] <= 2 * SHORTEST_S
    assert min(delays[6:]) >= LONGEST_S / 2
    backoff.succeeded()
    assert backoff.next_delay_s() <= 2 * SHORTEST_S


def test_robots_do_not_come_back_in_step():
    assert len({Backoff(random.Random(seed)).next_delay_s() for seed in range(20)}) == 20


def test_images_travel_in_the_order_of_the_cameras():
    assert encode_images({"scene": b"jpeg", "wrist": PIXELS}, [RGB, JPEG]) == [PIXELS.tobytes(), b"jpeg"]
    assert encode_images(PIXELS.tobytes(), [RGB]) == [PIXELS.tobytes()]
    assert encode_images(PIXELS[:, ::-1], [RGB]) == [np.ascontiguousarray(PIXELS[:, ::-1]).tobytes()]


@pytest.mark.parametrize(
    ("images", "cameras", "told"),
    [
        (PIXELS, [RGB, JPEG], "2 cameras"),
        ({"wrist": PIXELS}, [RGB, JPEG], "wrist"),
        ({"other": PIXELS}, [RGB], "other"),
        (PIXELS.astype(np.float32), [RGB], "float32"),
        (PIXELS[:2], [RGB], r"\[3, 4, 3\]"),
        (b"short", [RGB], "36"),
        (PIXELS, [JPEG], "JPEG"),
        (PIXELS.tolist(), [RGB], r"images\['wrist'\]: has type list; pass a uint8 array \[3, 4, 3\]"),
        ([0] * 36, [RGB], "has type list"),
        (36, [RGB], "has type int"),
        ("frame.jpg", [JPEG], "has type str; the camera was opened as JPEG: pass the encoded bytes"),
        (
            Image.fromarray(PIXELS),
            [RGB],
            r"has type PIL\.Image\.Image; pass .*: numpy\.asarray\(image\.convert\('RGB'\)\)",
        ),
        (torch.zeros(3, 4, 3), [RGB], r"has type torch\.Tensor; pass .*: image\.cpu\(\)\.numpy\(\)"),
        ({1: PIXELS, "wrist": PIXELS}, [RGB], "has cameras"),
    ],
)
def test_a_wrong_image_is_rejected_before_it_travels(images, cameras, told):
    with pytest.raises(InvalidArgument, match=told):
        encode_images(images, cameras)


class Failed:
    def __init__(self, code, details, trailers=()):
        self._answers = code, details, trailers

    def code(self):
        return self._answers[0]

    def details(self):
        return self._answers[1]

    def trailing_metadata(self):
        return self._answers[2]


def test_trailers_of_asyncio_are_read_too():
    trailers = grpc.aio.Metadata(("edgeflow-reason", "SESSIONS"), ("retry-after-ms", "5"))
    error = error_of(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "open: full", trailers))
    assert (error.reason, error.retry_after_ms) == ("SESSIONS", 5)


def test_statuses_become_typed_errors():
    trailers = (("edgeflow-reason", "SESSIONS"), ("edgeflow-field", "open"), ("retry-after-ms", "1000"))
    error = error_of(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "open: full", trailers))
    assert isinstance(error, ResourceExhausted)
    assert (error.text, error.reason, error.field, error.retry_after_ms) == ("open: full", "SESSIONS", "open", 1000)
    unknown = error_of(Failed(grpc.StatusCode.UNIMPLEMENTED, "no"))
    assert type(unknown) is EdgeflowError and "UNIMPLEMENTED" in unknown.text


def test_an_answer_that_is_not_understood_is_a_typed_error():
    message = opened()
    message.schema.frame = "sideways"
    with pytest.raises(FailedPrecondition, match="sideways"):
        opened_of(message)
    message = opened()
    message.mode = pb.MODE_UNSPECIFIED
    with pytest.raises(FailedPrecondition):
        opened_of(message)


@pytest.mark.parametrize("value", ["1.5", "abc", "", "-7", "1e400", "9" * 4000, "\u0663", b"\xff"])
def test_an_invalid_wait_is_ignored(value):
    error = error_of(Failed(grpc.StatusCode.UNAVAILABLE, "later", (("retry-after-ms", value),)))
    assert (error.code, error.text, error.retry_after_ms) == ("UNAVAILABLE", "later", None)


@pytest.mark.parametrize("failed", [Failed(None, None, None), Failed(14, 5, 7), Failed("x", b"y", [("one",), 3])])
def test_a_status_of_any_shape_is_a_typed_error(failed):
    assert isinstance(error_of(failed), EdgeflowError)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda message: message.schema.dimensions[1].MergeFrom(pb.ActionDimension(name="x")), "'x' is repeated"),
        (lambda message: message.schema.dimensions[0].MergeFrom(pb.ActionDimension(low=math.nan)), "NaN"),
        (lambda message: message.schema.dimensions[0].MergeFrom(pb.ActionDimension(low=2.0)), "low 2 above high 1"),
        (lambda message: message.schema.dimensions[0].MergeFrom(pb.ActionDimension(low=math.inf, high=math.inf)), "no"),
        (lambda message: message.schema.dimensions.extend([pb.ActionDimension(name="z")] * 300), "at most 256"),
        (lambda message: message.schema.ClearField("dimensions"), "no dimensions"),
        (lambda message: setattr(message.schema, "control_rate_hz", -1.0), "control_rate_hz is a rate or 0, got -1"),
        (lambda message: setattr(message.schema, "control_rate_hz", math.nan), "control_rate_hz"),
        (lambda message: setattr(message, "valid_for_ms", 0), "valid_for_ms"),
        (lambda message: setattr(message, "valid_for_ms", 1 << 31), "valid_for_ms"),
    ],
)  # fmt: skip
def test_an_answer_that_no_robot_can_keep_is_rejected(change, told):
    message = opened()
    change(message)
    with pytest.raises(FailedPrecondition, match=told):
        opened_of(message)


def test_settings_of_drafts_and_control_steps_are_kept():
    message = opened()
    message.mode, message.tolerance_bins, message.max_passes = pb.MODE_SPECULATIVE, 1, 7
    message.schema.control_rate_hz = 5.0
    found = opened_of(message)
    assert (found.mode, found.depth, found.tolerance_bins, found.max_passes) == (Mode.SPECULATIVE, 0, 1, 7)
    assert found.schema.control_rate_hz == 5.0


def test_limits_may_be_infinite():
    message = opened()
    message.schema.dimensions[0].low, message.schema.dimensions[0].high = -math.inf, math.inf
    assert opened_of(message).schema.low[0] == -math.inf


@pytest.mark.parametrize("foretold_ms", [math.nan, math.inf, -1.0, 1e300])
def test_a_forecast_that_makes_no_sense_is_unknown(foretold_ms):
    message = opened()
    message.predicted_age_ms = message.predicted_fps = foretold_ms
    assert opened_of(message).predicted_age_s == 0.0


@pytest.mark.parametrize(
    ("limit_s", "sent_ms", "foretold_ms", "expected_ms"),
    [
        (None, 350, 70.0, 350),
        (None, 4_000_000_000, 70.0, 60_000),
        (None, 0, 70.0, 170),
        (None, 0, 0.0, 600),
        (0.2, 350, 70.0, 200),
        (math.inf, 350, 70.0, None),
    ],
    ids=[
        "the action's own",
        "the action's own, beyond reason",
        "validity and forecast",
        "forecast unknown",
        "the robot's",
        "none",
    ],
)
def test_the_age_limit_of_an_action(limit_s, sent_ms, foretold_ms, expected_ms):
    message = opened(valid_for_ms=100)
    message.predicted_age_ms = foretold_ms
    limit_ns = age_limit_ns(limit_s, sent_ms, opened_of(message))
    assert limit_ns == (None if expected_ms is None else expected_ms * 1_000_000)


@pytest.mark.parametrize(
    ("limit_s", "on_the_wire_ms"), [(None, 0), (math.inf, 0), (0.7, 700), (1e-6, 1), (1e12, (1 << 32) - 1)]
)
def test_no_limit_and_the_default_leave_the_service_its_own(limit_s, on_the_wire_ms):
    assert open_message(session_settings(max_action_age_s=limit_s), "grasp").max_action_age_ms == on_the_wire_ms


@pytest.mark.parametrize(
    "changed", [{"max_action_age_s": math.nan}, {"max_action_age_s": 0.0}, {"max_action_age_s": -1.0}]
    + [{"control_period_s": value} for value in (0.0, -1.0, math.nan, math.inf, 1e12)]
    + [{"depth": -1}, {"tolerance_bins": -1}, {"max_passes": 1 << 32}]
    + [{"cameras": (CameraSpec("wrist", -4, 3, ImageFormat.RGB8),)}, {"model": 5}],
)  # fmt: skip
def test_settings_that_cannot_be_sent_are_rejected(changed):
    with pytest.raises(InvalidArgument, match="open"):
        open_message(session_settings(**changed), "grasp")


def test_a_mode_may_be_given_by_its_name():
    assert open_message(session_settings(mode="speculative"), "grasp").mode == pb.MODE_SPECULATIVE


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"mode": "speculativ"}, "mode: must be one of serial, pipelined, .*, got 'speculativ'"),
        ({"mode": ""}, "mode: must be one of"),
        ({"mode": 2}, "mode: must be one of .*, got 2"),
        ({"cameras": ("wrist",)}, r"cameras\[0\]: must be a CameraSpec\(.*\), got 'wrist'"),
        ({"cameras": (CameraSpec("wrist", 4, 3, "png"),)}, r"cameras\[0\]: must be .* ImageFormat\.RGB8 or JPEG"),
        ({"state": ("observation.state",)}, r"state\[0\]: must be a StateSpec\(name=\.\.\., size=\.\.\.\)"),
    ],
)
def test_a_setting_of_another_kind_is_rejected_with_what_to_pass(changed, told):
    with pytest.raises(InvalidArgument, match=told):
        open_message(session_settings(**changed), "grasp")


@pytest.mark.parametrize("address", ["localhost:50051", "10.0.0.7:1", "[::1]:50051", "arm-1.lab:65535", "a_b:8"])
def test_an_address_is_a_host_and_a_port(address):
    check_address(address)


@pytest.mark.parametrize("address", ["unix:/run/edgeflow.sock", "dns:///arm-1:50051", "ipv4:10.0.0.7:50051"])
def test_an_address_may_be_one_of_grpcs_own(address):
    check_address(address)


@pytest.mark.parametrize(
    "address", ["", " ", "localhost", ":50051", "a:", "a:0", "a:65536", "a:b", "::1:50051", "http://a:50051", "a b:1",
                "a:1\n", "[::zz]:1", "dns:", None, 5]
)  # fmt: skip
def test_an_invalid_address_is_rejected(address):
    with pytest.raises(InvalidArgument, match="address"):
        check_address(address)
