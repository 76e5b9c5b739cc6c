"""Outgoing messages, back-off, images, statuses."""

import random

import grpc
import numpy as np
import pytest

from edgeflow.client.backoff import LONGEST_S, SHORTEST_S, Backoff
from edgeflow.client.images import encode_images
from edgeflow.client.outgoing import Outgoing
from edgeflow.client.wire import error_of, opened_of
from edgeflow.errors import EdgeflowError, FailedPrecondition, InvalidArgument, ResourceExhausted
from edgeflow.rpc import control_pb2 as pb
from edgeflow.types import CameraSpec, ImageFormat
from tests.client.scripted import opened

RGB = CameraSpec("wrist", 4, 3, ImageFormat.RGB8)
JPEG = CameraSpec("scene", 4, 3, ImageFormat.JPEG)
PIXELS = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)


def kinds(outgoing: Outgoing) -> list[str]:
    return [message.WhichOneof("kind") for message in outgoing]


def test_of_frames_only_the_newest_is_written():
    outgoing = Outgoing(pb.Open(model="m"))
    assert outgoing.offer(pb.Frame(seq=1)) == 0
    assert outgoing.offer(pb.Frame(seq=2)) == 1
    assert next(outgoing).open.model == "m"
    assert next(outgoing).frame.seq == 2
    assert outgoing.offer(pb.Frame(seq=3)) == 0
    outgoing.close()
    assert kinds(outgoing) == ["frame", "close"]


def test_a_reset_comes_before_the_frames_that_follow_it_and_withdraws_those_before():
    outgoing = Outgoing(pb.Open())
    outgoing.offer(pb.Frame(seq=1))
    assert outgoing.reset("place") == 1
    outgoing.offer(pb.Frame(seq=2))
    outgoing.close()
    assert kinds(outgoing) == ["open", "reset", "frame", "close"]


def test_ending_lets_a_waiting_writer_go():
    outgoing = Outgoing(pb.Open())
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
    ],
)
def test_a_wrong_image_is_refused_before_it_travels(images, cameras, told):
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
