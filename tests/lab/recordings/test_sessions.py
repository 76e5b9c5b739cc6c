"""Records become sessions with epochs, and frames with their images and answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simplejpeg

from edgeflow.lab.recordings.sessions import MOST_PENDING, choose_sessions, decode_images, read_frames, read_sessions
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.lab.recordings.made_up import MadeUp

LARGEST = (1 << 63) - 1


def seen(made: MadeUp, label: str = "1") -> list[tuple[int, bool]]:
    """Of each frame its number, and whether it has an answer."""
    return [(each.observation.seq, each.answer is not None) for each in read_frames(made, label)]


def test_frames_meet_their_answers_in_order():
    made = MadeUp().opened().frame(1).frame(2).frame(3).answer(3).superseded(2).answer(1)
    made.frame(9, epoch=2).answer(8, epoch=2).answer(9, epoch=2)
    assert seen(made) == [(1, True), (2, False), (3, True), (9, True)]
    (session,) = read_sessions(made).values()
    assert (session.frames, session.answers, session.unknown_answers) == (4, 3, 1)
    assert [(each.number, each.frames, each.answers) for each in session.epochs] == [(1, 3, 2), (2, 1, 1)]
    assert session.outcomes == {"superseded": 1} and session.reasons == {"SUPERSEDED": 1}


def test_sessions_side_by_side_and_streams_of_one_robot_are_apart():
    made = MadeUp().of(0).opened().of(7).opened()
    made.of(0).frame(1).of(7).frame(1).answer(1).of(0).answer(1).closed().opened().frame(2)
    sessions = read_sessions(made)
    assert [(label, each.frames, each.answers) for label, each in sessions.items()] == [
        ("0", 1, 1),
        ("7", 1, 1),
        ("0.1", 1, 0),
    ]
    assert seen(made, "0.1") == [(2, False)] and seen(made, "0") == [(1, True)]
    assert [each.label for each in choose_sessions(made, ("0",))] == ["0", "0.1"]
    with pytest.raises(InvalidArgument, match=r"session: 3 is not one of 0, 7, 0\.1"):
        choose_sessions(made, ("3",))


def test_hostile_numbers_cost_nothing():
    made = MadeUp().answer(5).opened().superseded(0, LARGEST)
    for index in range(3 * MOST_PENDING):  # never answered, numbers go down
        made.frame(LARGEST - index, stamp_ns=1 << 63)
    made.answer(LARGEST).superseded(1, LARGEST).hold(0, "SILENT")
    assert [seq for seq, _ in seen(made)] == [LARGEST - index for index in range(3 * MOST_PENDING)]
    (session,) = read_sessions(made).values()
    assert session.unknown_answers == 1 and session.holds == {"HOLD SILENT": 1} and len(session.epochs) == 1
    assert session.outcomes == {"superseded": 3 * MOST_PENDING - 1}


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (MadeUp(), InvalidArgument, "has no sessions"),
        (MadeUp().opened(), InvalidArgument, "has no frames"),
        (MadeUp().frame(1).answer(1), FailedPrecondition, "the record of its opening was lost"),
        (MadeUp(facts={"cameras": "none"}).opened().frame(1, image=b""), FailedPrecondition, "without images"),
        (MadeUp(facts={"cameras": "thumbnails"}).opened().frame(1), FailedPrecondition, "with thumbnails only"),
        (MadeUp().opened().frame(1, image=b""), FailedPrecondition, "its frames need"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_is_missing_is_named(made: MadeUp, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        choose_sessions(made, ())


def test_images_are_decoded_if_they_are_of_their_cameras():
    camera = CameraSpec("top", 4, 2, ImageFormat.RGB8)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    jpeg, image = replace(camera, format=ImageFormat.JPEG), simplejpeg.encode_jpeg(pixels, colorspace="RGB")
    raw, decoded = decode_images((pixels.tobytes(), image), (camera, jpeg)) or ()
    assert np.array_equal(raw, pixels) and np.array_equal(decoded, simplejpeg.decode_jpeg(image))
    assert decode_images((), (camera,)) is None
    for wrong, each in (
        (pixels.tobytes()[:-1], camera),
        (b"\xff\xd8\xff", jpeg),
        (image, replace(jpeg, width=2, height=4)),
    ):
        assert decode_images((wrong,), (each,)) is None
