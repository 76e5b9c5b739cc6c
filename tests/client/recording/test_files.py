"""Files: rotated, within their budget, given up when they cannot be written and tried again later."""

from __future__ import annotations

import os
import random
import resource
import shutil

import foxglove
import pytest
from foxglove.channels import LogChannel
from foxglove.messages import Log

from edgeflow_client.clock import ManualClock
from edgeflow_client.recording.files import RETRY_NS, ROOM_NS, RecordingFile, RecordingFiles
from edgeflow_client.recording.framing import Damage, read_records
from edgeflow_client.recording.recorder import RecorderSettings
from edgeflow_client.recording.supervision import RecorderNews


class _Writer:
    """Files with a clock that is set by hand, and a log to write."""

    def __init__(self, directory, **settings) -> None:
        self.directory, self.clock = directory, ManualClock()
        self.news: list[tuple[str, str]] = []
        context = foxglove.Context()
        self._channel = LogChannel("/log", context=context)
        settings = RecorderSettings(**{"directory": str(directory), "least_free_bytes": 0} | settings)
        self.files = RecordingFiles(settings, "0123abcd", context, self._hear, self.clock)
        self._count = 0

    def _hear(self, news: RecorderNews) -> None:
        self.news.append((news.kind, news.text))

    def write(self, size: int = 1000) -> bool:
        """Log something that does not compress, and flush it."""
        if self.files.due:
            self.files.begin(self._count)
            self._count += 1
        self._channel.log(Log(message=random.randbytes(size).hex()), log_time=self._count)
        return self.files.flush()

    @property
    def names(self) -> list[str]:
        return [path.name[-9:-5] for path in sorted(self.directory.iterdir())]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.news]


def test_a_new_file_begins_by_size_and_by_time_but_not_without_records(tmp_path):
    writer = _Writer(tmp_path, rotate_bytes=30_000, rotate_s=60.0)
    for _ in range(4):
        assert writer.write(10_000)
    assert writer.names == ["0000", "0001"]
    writer.clock.advance_ns(61_000_000_000)
    assert writer.files.flush()  # nothing was logged
    writer.write()
    writer.write()
    assert writer.names == ["0000", "0001", "0002"]


def test_the_oldest_files_are_deleted_and_others_stay(tmp_path):
    (tmp_path / "edgeflow-mine.mcap").write_bytes(bytes(200_000))
    for second in range(3):
        (tmp_path / f"edgeflow-20200101T00000{second}-ffffffff-0000.mcap").write_bytes(bytes(30_000))
    writer = _Writer(tmp_path, budget_bytes=80_000)
    writer.write()
    assert writer.kinds == ["deleted", "file"] and "20200101T000000" in writer.news[0][1]
    for _ in range(8):
        writer.clock.advance_ns(ROOM_NS)
        writer.write(10_000)
    assert (tmp_path / "edgeflow-mine.mcap").exists()
    size = sum(path.stat().st_size for path in tmp_path.glob("edgeflow-20*.mcap"))
    assert 40_000 < size <= 100_000
    assert "ffffffff" not in "".join(path.name for path in tmp_path.iterdir())


def test_what_another_recorder_writes_and_what_is_no_file_stays_and_is_no_obstacle(tmp_path):
    names = [f"edgeflow-20200101T00000{second}-ffffffff-0000.mcap" for second in range(4)]
    other = RecordingFile(tmp_path / names[0])
    other.write(bytes(50_000))
    other.flush()
    (tmp_path / names[1]).mkdir()
    (tmp_path / names[2]).symlink_to("/dev/zero")
    (tmp_path / names[3]).write_bytes(bytes(50_000))
    writer = _Writer(tmp_path, budget_bytes=20_000)
    assert writer.write()
    assert writer.kinds == ["deleted", "file"] and names[3] in writer.news[0][1]
    assert [name for name in names if os.path.lexists(tmp_path / name)] == names[:3]
    other.close()
    writer.clock.advance_ns(ROOM_NS)
    assert writer.write() and not (tmp_path / names[0]).exists()


def test_without_free_space_recording_ends_is_told_once_and_goes_on_when_there_is_some(tmp_path, monkeypatch):
    writer = _Writer(tmp_path, least_free_bytes=1_000_000)
    free = 2_000_000
    monkeypatch.setattr(RecordingFiles, "_free_bytes", lambda self: free)
    assert writer.write()
    free = 0
    writer.clock.advance_ns(RETRY_NS)
    writer.write()
    for _ in range(3):
        writer.clock.advance_ns(RETRY_NS)
        assert not writer.write()
    assert writer.kinds == ["file", "failing", "deleted"] and "less than 0.0 GB are free" in writer.news[1][1]
    free = 2_000_000
    writer.clock.advance_ns(RETRY_NS)
    assert writer.write()
    assert writer.kinds[3:] == ["recovered"]


def test_an_error_of_the_disk_gives_the_file_up_and_another_is_tried_after_a_while(tmp_path):
    writer = _Writer(tmp_path)
    assert writer.write()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        assert not writer.write(20_000)
        assert writer.kinds == ["file", "failing"] and "File too large" in writer.news[1][1]
        assert not writer.write()
        assert not writer.files.due
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not writer.write()  # not before its time
    writer.clock.advance_ns(RETRY_NS)
    assert writer.write(20_000)
    assert writer.kinds == ["file", "failing", "recovered"]
    assert writer.names == ["0000", "0001"]
    damage: list[Damage] = []
    assert len(list(read_records(min(tmp_path.iterdir()), damage))) == 3  # facts, a channel, a message
    assert "it has no end" in damage[0].text  # and no half of a record


def test_a_directory_that_was_removed_is_made_again(tmp_path):
    writer = _Writer(tmp_path / "recordings")
    assert writer.write()
    shutil.rmtree(tmp_path / "recordings")
    assert not writer.write()  # lost with the file
    assert writer.write()
    assert writer.kinds == ["file", "failing", "recovered"]
    assert writer.names == ["0001"]
    assert (tmp_path / "recordings").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_made_is_tried_again(tmp_path):
    writer = _Writer(tmp_path / "recordings")
    (tmp_path / "recordings").touch()
    assert not writer.write() and not writer.files.due
    (tmp_path / "recordings").unlink()
    writer.clock.advance_ns(RETRY_NS)
    assert writer.write()
    assert writer.kinds == ["failing", "recovered"]


def test_a_file_that_exists_is_never_written_over(tmp_path):
    (tmp_path / "file").write_bytes(b"first")
    with pytest.raises(FileExistsError):
        RecordingFile(tmp_path / "file")
