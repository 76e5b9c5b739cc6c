"""The recorder's steps: what is released is written, each file can be read alone, hostile records harm nobody."""

from __future__ import annotations

import msgspec
import pytest

from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.recorder import RecorderSettings
from edgeflow_client.recording.records import ENCODER, TOPIC
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.client.recording.written import (
    JPEG,
    PASSES,
    RAW,
    OwnRecorder,
    answer,
    closing,
    frame,
    now_ns,
    opening,
    put,
    recorded,
)


@pytest.fixture
def own(tmp_path):
    """own(...) is a recorder of the test's own."""
    return lambda **settings: OwnRecorder(
        RecorderSettings(**{"directory": str(tmp_path), "buffer_bytes": 1 << 20, "least_free_bytes": 0} | settings)
    )


def _kinds(path, topic=TOPIC):
    return [(record.number, msgspec.json.decode(record.data)["kind"]) for record in Recording([path]).records(topic)]


def test_a_recorder_killed_before_it_released_what_it_wrote_leaves_no_duplicates(own, tmp_path):
    recorder = own()
    process = recorder.process()
    put(recorder.sessions, opening())
    recorder.write(process)
    records = [frame(1), frame(2)]
    for record in records:
        put(recorder.sessions, record)
    process.step()
    process.step()
    process._files.flush()  # and no release
    successor = recorder.process()
    put(recorder.sessions, last := frame(3))
    recorder.write(successor)
    successor.close()
    assert [kind for _, kind in _kinds(sorted(tmp_path.iterdir())[1])] == ["opened", "frame", "frame", "frame"]
    assert recorded(tmp_path)[1:] == [(record, (RAW, JPEG)) for record in (*records, last)]


def test_each_file_begins_with_the_open_sessions_and_the_newest_engine(own, tmp_path):
    recorder = own(rotate_s=0.0)
    process = recorder.process()
    process.flush()
    passes = recorder.rings[PASSES]
    for record in (opening(1), opening(2)):
        put(recorder.sessions, record)
    for fields in ({"kind": "engine"}, {"kind": "opened", "session": 1}, {"kind": "engine", "number": 99}):
        passes.put(ENCODER.encode({**fields, "time_ns": now_ns()}))
    recorder.write(process)
    put(recorder.sessions, closing(1))
    recorder.write(process)
    put(recorder.sessions, frame(1, session=2))
    recorder.write(process)
    process.close()
    first, second, third, *_ = sorted(tmp_path.iterdir())
    assert _kinds(first) == [(0, "opened"), (1, "opened")]
    assert _kinds(second) == [(0, "opened"), (1, "opened"), (2, "closed")]
    assert _kinds(third) == [(1, "opened"), (3, "frame")]
    assert _kinds(third, PASSES) == [(2, "engine")]
    assert list(Recording([third]).sessions())[1][1] == (RAW, JPEG)
    assert [record.number for record in Recording.open(tmp_path).records(TOPIC)] == [0, 1, 2, 3]


def test_what_cannot_be_written_is_lost_counted_and_not_in_the_way(own, tmp_path):
    recorder = own(directory=str(tmp_path / "recordings"))
    (tmp_path / "recordings").touch()
    process = recorder.process()
    put(recorder.sessions, opening())
    put(recorder.sessions, frame(1))
    recorder.write(process)
    assert process._lost == 2 and recorder.sessions.waiting_bytes == 0
    (tmp_path / "recordings").unlink()
    process._files._retry_ns = 0
    process.flush()
    put(recorder.sessions, frame(2))
    recorder.write(process)
    process.close()
    assert process._lost == 2
    found = recorded(tmp_path / "recordings")
    assert [record.__struct_config__.tag for record, _ in found] == ["opened", "frame"]  # the opening is repeated
    assert [record.number for record in Recording.open(tmp_path / "recordings").records(TOPIC)] == [0, 2]


def test_records_between_two_files_are_in_the_second(own, tmp_path):
    recorder = own(rotate_bytes=1, buffer_bytes=1 << 16)
    process = recorder.process()
    put(recorder.sessions, opening())
    for seq in range(1, 400):
        assert put(recorder.sessions, frame(seq))
        if seq % 100 == 0:
            recorder.write(process)
    recorder.write(process)
    process.close()
    assert len(list(tmp_path.iterdir())) > 4
    assert [record.number for record in Recording.open(tmp_path).records(TOPIC)] == list(range(400))


def test_hostile_names_texts_and_images_are_recorded_as_they_are(own, tmp_path):
    recorder = own()
    process = recorder.process()
    names = ("../../etc", "a\n\x00b", "a__b", "a  b", "", "é" * 300)
    cameras = [CameraSpec(name, 4, 2, ImageFormat.RGB8) for name in names]
    images = [bytes([index]) * 24 for index in range(len(names))]
    put(recorder.sessions, opening(cameras=cameras))
    put(recorder.sessions, msgspec.structs.replace(frame(1, images=images), instruction="\x00" * 65_536), images)
    put(recorder.sessions, frame(2, images=images), [b"other bytes than it says"])
    put(recorder.sessions, msgspec.structs.replace(frame(3), state=(float("nan"), float("inf"))), images)
    put(recorder.sessions, frame(4, session=99), (RAW, JPEG))  # of nobody
    recorder.sessions.put(b"\xc1 no record")
    recorder.sessions.put(ENCODER.encode([1]))
    recorder.sessions.put(ENCODER.encode({"kind": "frame"}))
    put(recorder.sessions, msgspec.structs.replace(answer(5), time_ns=1 << 63))  # beyond Foxglove's times
    recorder.write(process)
    process.close()
    assert process._lost == 3
    found = recorded(tmp_path)
    assert found[0][0].cameras == tuple(cameras)
    assert [record.seq for record, _ in found[1:]] == [1, 2, 3, 4, 5]
    assert [shown for _, shown in found] == [(), tuple(images), (), (), (), ()]
    assert str(found[3][0].state) == "(nan, nan)"


@pytest.mark.parametrize(("cameras", "shown"), [("none", ()), ("thumbnails", ()), ("all", (RAW, JPEG))])
def test_images_are_recorded_as_asked_for(own, tmp_path, cameras, shown):
    recorder = own(cameras=cameras)
    process = recorder.process()
    put(recorder.sessions, opening())
    put(recorder.sessions, frame(1))
    recorder.write(process)
    process.close()
    (_, (record, images)) = recorded(tmp_path)
    assert (record.seq, images) == (1, shown)
    assert Recording.open(tmp_path).facts["cameras"] == cameras
