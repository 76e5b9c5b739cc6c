"""The recorder as its users have it: rings here, files by a process that may be killed, and so may its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

from edgeflow_client.errors import ConfigError
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.recorder import Recorder, RecorderSettings, wall_clock
from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.recording.supervision import RecorderNews
from tests.client.recording.written import JPEG, RAW, SCHEMAS, answer, closing, frame, opening, put, recorded

ROOT = Path(__file__).parents[3]


@pytest.fixture
def record(tmp_path):
    """record(...) is a running recorder and the list of its news; all are stopped with the test."""
    recorders = []

    def start(**settings) -> tuple[Recorder, list[RecorderNews]]:
        news: list[RecorderNews] = []
        recorder = Recorder(
            RecorderSettings(**{"directory": str(tmp_path / "recordings")} | settings), SCHEMAS, news.append
        )
        recorders.append(recorder)
        recorder.start()
        return recorder, news

    yield start
    for recorder in recorders:
        recorder.stop()


def _pid(recorder: Recorder) -> int:
    assert recorder._process is not None
    return recorder._process.pid


def _told(news: list[RecorderNews], kind: str) -> bool:
    return any(each.kind == kind for each in news)


def test_what_is_put_is_in_the_file_bit_for_bit(record, tmp_path, eventually):
    recorder, news = record()
    ring = recorder.ring(TOPIC)
    records = [opening(), frame(1), answer(1), frame(2), closing()]
    for each in records:
        assert put(ring, each)
    recorder.stop()  # at once: everything that was put is written

    assert [record for record, _ in recorded(tmp_path / "recordings")] == records
    assert [images for _, images in recorded(tmp_path / "recordings")] == [(), (RAW, JPEG), (), (RAW, JPEG), ()]
    (file,) = (tmp_path / "recordings").iterdir()
    recording = Recording([file])
    assert recording.facts["source"] == "service" and recording.damage == []
    assert [stored.number for stored in recording.records(TOPIC)] == [0, 1, 2, 3, 4]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [each.kind for each in news] == ["file"] and recorder.lost == 0


def test_nothing_is_lost_when_the_recorder_is_killed(record, tmp_path, eventually):
    recorder, news = record()
    ring = recorder.ring(TOPIC)
    eventually(lambda: _told(news, "file"))
    put(ring, opening())
    for seq in range(1, 200):
        put(ring, frame(seq))
        if seq == 100:
            first = _pid(recorder)
            eventually(lambda: ring.waiting_bytes == 0)  # written; the others are read by it, or not
        if seq == 150:
            os.kill(first, signal.SIGKILL)
    eventually(lambda: _told(news, "restarted"))
    recorder.stop()
    found = recorded(tmp_path / "recordings")
    assert [record.seq for record, _ in found[1:]] == list(range(1, 200))
    assert all(images == (RAW, JPEG) for _, images in found[1:])
    files = sorted((tmp_path / "recordings").iterdir())
    assert len(files) == 2
    assert next(Recording(files[1:]).sessions())[0] == found[0][0]  # it can be read alone


PRODUCER = """
import os, sys, time
from tests.client.recording.written import SCHEMAS, frame, opening, put
from edgeflow_client.recording.recorder import Recorder, RecorderSettings
from edgeflow_client.recording.records import TOPIC
recorder = Recorder(RecorderSettings(directory=sys.argv[1]), SCHEMAS, lambda news: None)
recorder.start()
put(recorder.ring(TOPIC), opening())
for seq in range(1, 1_000_000):
    put(recorder.ring(TOPIC), frame(seq))
    print(seq, recorder._process.pid if recorder._process else 0, flush=True)
    time.sleep(0.01)
"""


def _produce(directory: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PRODUCER, str(directory)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_the_recorder_writes_everything_and_closes_the_file_when_its_parent_is_killed(tmp_path, eventually):
    with _produce(tmp_path) as producer:
        for line in producer.stdout:
            if line.endswith("\n"):
                last = int(line.split()[0])
            if any(tmp_path.iterdir()):
                producer.kill()  # and read what it still said

    def whole() -> bool:
        recording = Recording.open(tmp_path)
        return len(list(recording.sessions())) >= 1 + last and not recording.damage

    eventually(whole)
    assert [record.seq for record, _ in recorded(tmp_path)[1:]][:last] == list(range(1, last + 1))


def test_at_most_a_second_is_lost_when_all_are_killed(tmp_path):
    with _produce(tmp_path) as producer:
        for line in producer.stdout:
            recorder = int(line.split()[1])
            if recorder and any(path.stat().st_size > 3000 for path in tmp_path.iterdir()):  # more than its first chunk
                break
        os.kill(recorder, signal.SIGKILL)
        producer.kill()
        killed_ns = time.time_ns()
    recording = Recording.open(tmp_path)
    (*_, (last, _)) = recording.sessions()
    assert killed_ns - last.time_ns < 1_000_000_000
    (damage,) = recording.damage
    assert "its recorder was killed" in damage.text


def test_a_stalled_recorder_costs_records_and_delays_no_producer(record, tmp_path, eventually):
    recorder, news = record(buffer_bytes=1 << 16)
    ring = recorder.ring(TOPIC)
    eventually(lambda: _told(news, "file"))
    os.kill(_pid(recorder), signal.SIGSTOP)
    put(ring, opening())
    kept = sum(put(ring, frame(seq)) for seq in range(1, 1000))
    assert recorder.lost == 999 - kept > 0
    eventually(lambda: _told(news, "lost"))
    os.kill(_pid(recorder), signal.SIGCONT)
    recorder.stop()
    assert [record.seq for record, _ in recorded(tmp_path / "recordings")[1:]] == list(range(1, kept + 1))


def test_what_a_recorder_that_hangs_leaves_unwritten_is_told(record, eventually):
    recorder, news = record()
    eventually(lambda: _told(news, "file"))
    os.kill(_pid(recorder), signal.SIGSTOP)
    put(recorder.ring(TOPIC), opening())
    recorder.stop(0.1)
    assert "were not written in time" in news[-1].text and recorder._process.returncode == -signal.SIGKILL


def test_what_is_recorded_is_live_on_the_loopback_interface(record, eventually):
    recorder, news = record(directory="", live_port=0)
    eventually(lambda: _told(news, "live"))
    put(recorder.ring(TOPIC), opening())
    put(recorder.ring(TOPIC), frame(1))
    with connect(news[0].path, subprotocols=["foxglove.sdk.v1"]) as viewer:
        missing = {TOPIC, "/session-1/images/wrist", "/session-1/images/top", "/session-1/state"}
        while missing:
            message = json.loads(viewer.recv(timeout=30))
            missing -= {channel["topic"] for channel in message.get("channels", ())}


def test_a_viewer_that_does_not_read_holds_nothing_up(record, eventually):
    recorder, news = record(live_port=0)
    eventually(lambda: _told(news, "live"))
    ring, large = recorder.ring(TOPIC), bytes(500_000)
    put(ring, opening())
    put(ring, frame(1, images=(RAW, large)), (RAW, large))
    (address,) = (each.path for each in news if each.kind == "live")
    with connect(address, subprotocols=["foxglove.sdk.v1"], max_queue=1, close_timeout=0.1) as viewer:
        subscriptions = [{"id": number, "channelId": number} for number in range(1, 20)]
        viewer.send(json.dumps({"op": "subscribe", "subscriptions": subscriptions}))
        for seq in range(2, 80):
            put(ring, frame(seq, images=(RAW, large)), (RAW, large))
            while seq == 2 and isinstance(viewer.recv(timeout=30), str):  # until it is subscribed
                pass
        recorder.stop()
        assert recorder._process.returncode == 0 and recorder.lost == 0


def test_a_port_in_use_is_told_and_recording_goes_on(record, tmp_path, eventually):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        recorder, news = record(live_port=taken.getsockname()[1])
        eventually(lambda: _told(news, "live") and _told(news, "file"))
    assert [each.path for each in news if "Address already in use" in each.text] == [""]
    put(recorder.ring(TOPIC), opening())
    recorder.stop()
    assert len(recorded(tmp_path / "recordings")) == 1


def test_the_recovery_is_reported_whichever_process_it_is_of(record, tmp_path, eventually):
    recorder, news = record()
    eventually(lambda: _told(news, "file"))
    (tmp_path / "recordings").rename(tmp_path / "moved")
    (tmp_path / "recordings").touch()
    eventually(lambda: _told(news, "failing"))
    os.kill(_pid(recorder), signal.SIGKILL)
    (tmp_path / "recordings").unlink()
    eventually(lambda: _told(news, "recovered"))
    assert [each.kind for each in news] == ["file", "failing", "restarted", "recovered"]
    assert "was ended by signal 9" in news[2].text


def test_a_directory_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot record to .*file/below.*Not a directory"):
        Recorder(RecorderSettings(directory=str(tmp_path / "file" / "below")), SCHEMAS, print)
    with pytest.raises(ConfigError, match="one of none, thumbnails, all"):
        Recorder(RecorderSettings(directory=str(tmp_path), cameras="some"), SCHEMAS, print)
    with pytest.raises(ConfigError, match="a directory or a port"):
        Recorder(RecorderSettings(), SCHEMAS, print)


def test_wall_clock_increases_whatever_the_clocks_say(monkeypatch):
    ring = RecordRing.make(1)
    wall_ns = wall_clock(ring)
    times = [wall_ns(moment) for moment in (10**18, 10**18, 5, 2 * 10**18)]
    assert times == sorted(set(times))
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # the system's clock is set before another process writes
    assert abs(wall_clock(RecordRing(ring.descriptor))(time.monotonic_ns()) - now_ns) < 1_000_000_000
