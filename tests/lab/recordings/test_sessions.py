"""Records become sessions with epochs, and frames with their images and answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import simplejpeg

from edgeflow.lab.recordings.sessions import (
    MOST_PENDING,
    check_images,
    chosen_sessions,
    epochs_of,
    pixels_of,
    read_frames,
    read_sessions,
)
from edgeflow_client.errors import FailedPrecondition, InvalidArgument
from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedHold,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
)
from edgeflow_client.types import CameraSpec, Command, Disposition, ImageFormat

CAMERA = CameraSpec("top", 4, 2, ImageFormat.RGB8)
LARGEST = (1 << 63) - 1


class Listed:
    """Records in memory."""

    def __init__(self, *records: AnySessionRecord | tuple[AnySessionRecord, tuple[bytes, ...]], **facts: str) -> None:
        self.facts, self._records = facts, records

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        for each in self._records:
            yield each if isinstance(each, tuple) else (each, ())


_times = count(1_000)


def opened(session: int = 1, **fields: Any) -> RecordedOpening:
    return RecordedOpening(session=session, time_ns=next(_times), source="service", cameras=(CAMERA,), **fields)


def frame(seq: int, epoch: int = 1, session: int = 1, image: bytes = b"") -> Any:
    record = RecordedObservation(session=session, time_ns=next(_times), seq=seq, epoch=epoch, stamp_ns=seq)
    return (record, (image,)) if image else record


def answer(seq: int, epoch: int = 1, session: int = 1) -> RecordedAnswer:
    return RecordedAnswer(session=session, time_ns=next(_times), seq=seq, epoch=epoch, values=(float(seq % 100),))


def outcome(seq: int, last: int = 0, session: int = 1) -> RecordedOutcome:
    kind, time_ns = Disposition.SUPERSEDED, next(_times)
    return RecordedOutcome(
        session=session, time_ns=time_ns, seq=seq, last_seq=last, disposition=kind, reason="SUPERSEDED"
    )


def seen(source: Listed, label: str = "1") -> list[tuple[int, bool, bool]]:
    """Of each frame its number, and whether it has an answer and another outcome."""
    found = read_frames(source, label)
    return [(each.observation.seq, each.answer is not None, each.outcome is not None) for each in found]


def test_frames_meet_their_answers_in_order():
    source = Listed(
        *(opened(), frame(1), frame(2), frame(3), answer(3), outcome(2), answer(1)),
        *(frame(9, epoch=2), answer(8, epoch=2), answer(9, epoch=2)),
    )
    assert seen(source) == [(1, True, False), (2, False, True), (3, True, False), (9, True, False)]
    (session,) = read_sessions(source).values()
    assert (session.frames, session.answers, session.unknown_answers) == (4, 3, 1)
    assert [(each.number, each.frames, each.answers) for each in session.epochs] == [(1, 3, 2), (2, 1, 1)]
    assert session.outcomes == {"superseded": 1} and session.reasons == {"SUPERSEDED": 1}
    assert [number for number, _ in epochs_of(read_frames(source, "1"))] == [1, 2]


def test_sessions_side_by_side_and_streams_of_one_robot_are_apart():
    source = Listed(
        opened(0),
        opened(7),
        *(frame(1, session=0), frame(1, session=7), answer(1, session=7), answer(1, session=0)),
        RecordedClosing(session=0, time_ns=next(_times)),
        *(opened(0), frame(2, session=0)),
    )
    sessions = read_sessions(source)
    assert [(label, each.frames, each.answers) for label, each in sessions.items()] == [
        ("0", 1, 1),
        ("7", 1, 1),
        ("0.1", 1, 0),
    ]
    assert seen(source, "0.1") == [(2, False, False)] and seen(source, "0") == [(1, True, False)]
    assert [each.label for each in chosen_sessions(sessions, ("0",))] == ["0", "0.1"]
    with pytest.raises(InvalidArgument, match=r"session: 3 is not one of 0, 7, 0\.1"):
        chosen_sessions(sessions, ("3",))


def test_hostile_numbers_cost_nothing():
    frames = [frame(LARGEST - index) for index in range(3 * MOST_PENDING)]  # never answered, numbers go down
    source = Listed(
        *(answer(5), opened(), outcome(0, LARGEST), *frames, answer(LARGEST), outcome(1, LARGEST)),
        RecordedHold(session=1, time_ns=next(_times), epoch=LARGEST, command=Command.HOLD, reason="SILENT"),
    )
    found = seen(source)
    assert [seq for seq, *_ in found] == [LARGEST - index for index in range(3 * MOST_PENDING)]
    (session,) = read_sessions(source).values()
    assert session.unknown_answers == 1 and session.holds == {"HOLD SILENT": 1} and len(session.epochs) == 1
    assert session.outcomes == {"superseded": 3 * MOST_PENDING - 1}


def test_what_is_missing_is_named():
    with pytest.raises(InvalidArgument, match="has no sessions"):
        chosen_sessions(read_sessions(Listed()), ())
    with pytest.raises(InvalidArgument, match="has no frames"):
        chosen_sessions(read_sessions(Listed(opened())), ())
    without = read_sessions(Listed(frame(1), answer(1)))["1"]
    with pytest.raises(FailedPrecondition, match="the record of its opening was lost"):
        without.contract  # noqa: B018
    for kept, said in (("none", "without images"), ("thumbnails", "with thumbnails only"), ("all", "its frames need")):
        source = Listed(opened(), frame(1, image=b"small" if kept == "thumbnails" else b""), cameras=kept)
        with pytest.raises(FailedPrecondition, match=said):
            check_images(source, list(read_sessions(source).values()))
    source = Listed(opened(), frame(1, image=b"pixels"), cameras="all")
    check_images(source, list(read_sessions(source).values()))


def test_images_are_decoded_or_rejected():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(pixels_of(pixels.tobytes(), CAMERA, 1), pixels)
    camera = CameraSpec("top", 4, 2, ImageFormat.JPEG)
    image = simplejpeg.encode_jpeg(pixels, colorspace="RGB")
    assert np.array_equal(pixels_of(image, camera, 1), simplejpeg.decode_jpeg(image))
    for given, each, said in (
        (pixels.tobytes()[:-1], CAMERA, "frame 3: the image of 'top' is 23 bytes"),
        (b"\xff\xd8\xff", camera, "not a JPEG image"),
        (image, CameraSpec("top", 2, 4, ImageFormat.JPEG), "is 4x2; it was opened with 2x4 jpeg"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            pixels_of(given, each, 3)
