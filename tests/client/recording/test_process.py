"""The recorder's steps: what is released is written, each file can be read alone, hostile records harm nobody."""

from __future__ import annotations

import msgspec
import pytest

from edgeflow_client.recording.reader import Recording
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
    recorded,
)


def _kinds(path, topic=TOPIC):
    return [(record.number, msgspec.json.decode(record.data)["kind"]) for record in Recording([path]).records(topic)]


def test_a_recorder_killed_before_it_released_what_it_wrote_leaves_no_duplicates(tmp_path):
    recorder = OwnRecorder(tmp_path)
    recorder.put(opening())
    recorder.write()
    records = [frame(1), frame(2)]
    for record in records:
        recorder.put(record)
    recorder.process.step()
    recorder.process.step()
    recorder.process._files.flush()  # and no release
    recorder.kill()
    recorder.put(last := frame(3))
    recorder.close()
    assert [kind for _, kind in _kinds(sorted(tmp_path.iterdir())[1])] == ["opened", "frame", "frame", "frame"]
    assert recorded(tmp_path)[1:] == [(record, (RAW, JPEG)) for record in (*records, last)]


def test_each_file_begins_with_the_open_sessions_and_the_newest_engine(tmp_path):
    recorder = OwnRecorder(tmp_path, rotate_s=0.0)
    recorder.process.flush()
    passes = recorder.rings[PASSES]
    for record in (opening(1), opening(2)):
        recorder.put(record)
    for fields in ({"kind": "engine"}, {"kind": "opened", "session": 1}, {"kind": "engine", "number": 99}):
        passes.put(ENCODER.encode({**fields, "time_ns": now_ns()}))
    recorder.write()
    recorder.put(closing(1))
    recorder.write()
    recorder.put(frame(1, session=2))
    recorder.close()
    first, second, third, *_ = sorted(tmp_path.iterdir())
    assert _kinds(first) == [(0, "opened"), (1, "opened")]
    assert _kinds(second) == [(0, "opened"), (1, "opened"), (2, "closed")]
    assert _kinds(third) == [(1, "opened"), (3, "frame")]
    assert _kinds(third, PASSES) == [(2, "engine")]
    assert list(Recording([third]).sessions())[1][1] == (RAW, JPEG)
    assert [record.number for record in Recording.open(tmp_path).records(TOPIC)] == [0, 1, 2, 3]


def test_what_cannot_be_written_is_lost_counted_and_not_in_the_way(tmp_path):
    recorder = OwnRecorder(tmp_path / "recordings")
    (tmp_path / "recordings").touch()
    recorder.put(opening())
    recorder.put(frame(1))
    recorder.write()
    assert recorder.process._lost == 2 and recorder.rings[TOPIC].waiting_bytes == 0
    (tmp_path / "recordings").unlink()
    recorder.process._files._retry_ns = 0
    recorder.process.flush()
    recorder.put(frame(2))
    recorder.close()
    assert recorder.process._lost == 2
    found = recorded(tmp_path / "recordings")
    assert [record.__struct_config__.tag for record, _ in found] == ["opened", "frame"]  # the opening is repeated
    assert [record.number for record in Recording.open(tmp_path / "recordings").records(TOPIC)] == [0, 2]


def test_many_sessions_begin_another_file_before_its_channels_run_out(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeflow_client.recording.process.MOST_CHANNELS", 20)
    recorder = OwnRecorder(tmp_path)
    records = [each for session in range(1, 13) for each in (opening(session), frame(1, session), closing(session))]
    for record in records:
        recorder.put(record)
        recorder.write()
    recorder.close()
    assert len(list(tmp_path.iterdir())) == 3
    found = recorded(tmp_path)
    assert [record for record, _ in found] == records
    assert all(images == (RAW, JPEG) for _, images in found[1::3])


def test_records_between_two_files_are_in_the_second(tmp_path):
    recorder = OwnRecorder(tmp_path, rotate_bytes=1, buffer_bytes=1 << 16)
    recorder.put(opening())
    for seq in range(1, 400):
        assert recorder.put(frame(seq))
        if seq % 100 == 0:
            recorder.write()
    recorder.close()
    assert len(list(tmp_path.iterdir())) > 4
    assert [record.number for record in Recording.open(tmp_path).records(TOPIC)] == list(range(400))


def test_hostile_names_texts_and_images_are_recorded_as_they_are(tmp_path):
    recorder = OwnRecorder(tmp_path)
    names = ("../../etc", "a\n\x00b", "a__b", "a  b", "", "é" * 300)
    cameras = [CameraSpec(name, 4, 2, ImageFormat.RGB8) for name in names]
    images = [bytes([index]) * 24 for index in range(len(names))]
    recorder.put(opening(cameras=cameras))
    recorder.put(msgspec.structs.replace(frame(1, images=images), instruction="\x00" * 65_536), images)
    recorder.put(frame(2, images=images), [b"other bytes than it says"])
    recorder.put(msgspec.structs.replace(frame(3), state=(float("nan"), float("inf"))), images)
    recorder.put(frame(4, session=99), (RAW, JPEG))  # of nobody
    recorder.rings[TOPIC].put(b"\xc1 no record")
    recorder.rings[TOPIC].put(ENCODER.encode([1]))
    recorder.rings[TOPIC].put(ENCODER.encode({"kind": "frame"}))
    recorder.put(msgspec.structs.replace(answer(5), time_ns=1 << 63))  # beyond Foxglove's times
    recorder.close()
    assert recorder.process._lost == 3
    found = recorded(tmp_path)
    assert found[0][0].cameras == tuple(cameras)
    assert [record.seq for record, _ in found[1:]] == [1, 2, 3, 4, 5]
    assert [shown for _, shown in found] == [(), tuple(images), (), (), (), ()]
    assert str(found[3][0].state) == "(nan, nan)"


@pytest.mark.parametrize(("cameras", "shown"), [("none", ()), ("thumbnails", ()), ("all", (RAW, JPEG))])
def test_images_are_recorded_as_asked_for(tmp_path, cameras, shown):
    recorder = OwnRecorder(tmp_path, cameras=cameras)
    recorder.put(opening())
    recorder.put(frame(1))
    recorder.close()
    (_, (record, images)) = recorded(tmp_path)
    assert (record.seq, images) == (1, shown)
    assert Recording.open(tmp_path).facts["cameras"] == cameras
