"""Recordings of several files: runs in a folder, copies, gaps."""

from __future__ import annotations

from pathlib import Path

import foxglove
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.recording.reader import Recording, _Numbers
from edgeflow_client.recording.records import FACTS, TOPIC
from edgeflow_client.recording.runs import runs
from tests.client.recording.written import JPEG, RAW, OwnRecorder, frame, opening


def _write(directory: Path, run: str, frames: int) -> list[Path]:
    """A run with a file per frame; its files."""
    recorder = OwnRecorder(directory, run, rotate_bytes=1)
    recorder.put(opening())
    for seq in range(1, frames + 1):
        recorder.put(frame(seq))
        recorder.write()
    recorder.process.close()
    (*found, last) = next(each for each in runs(directory) if each.name == run).files
    last.unlink()  # without records
    return found


def test_a_folder_opens_its_newest_run_and_any_other_by_name(tmp_path):
    old, new = _write(tmp_path, "ffffffff", 2), _write(tmp_path, "00000000", 3)
    (tmp_path / "edgeflow-notes.mcap").touch()
    assert [(run.name, len(run.files)) for run in runs(tmp_path)] == [("ffffffff", 2), ("00000000", 3)]
    assert runs(tmp_path)[0].size_bytes == sum(path.stat().st_size for path in old)
    assert list(Recording.open(tmp_path).paths) == new
    assert list(Recording.open(tmp_path, run="ffffffff").paths) == old
    with pytest.raises(InvalidArgument, match="no recording of run 12345678"):
        Recording.open(tmp_path, run="12345678")
    with pytest.raises(InvalidArgument, match="is of another run"):
        Recording([*old, *new])


def test_a_copy_stands_in_for_its_missing_original_and_is_dropped_after_it(tmp_path):
    files = _write(tmp_path, "0123abcd", 3)
    assert [record.number for record in Recording(files).records(TOPIC)] == [0, 1, 2, 3]
    assert [record.number for record in Recording(files[1:]).records(TOPIC)] == [0, 2, 3]
    files[0].write_bytes(files[0].read_bytes()[:400])  # with its facts
    recording = Recording(files)
    assert [(record.number, record.images) for record in recording.records(TOPIC)] == [
        (0, ()),
        (2, (RAW, JPEG)),
        (3, (RAW, JPEG)),
    ]
    assert [damage.file for damage in recording.damage] == [files[0]]


def test_a_later_format_is_rejected(tmp_path):
    with foxglove.open_mcap(tmp_path / "later.mcap", context=foxglove.Context()) as writer:
        writer.write_metadata(FACTS, {"format": "2", "run": "0123abcd"})
    with pytest.raises(InvalidArgument, match="it has format '2', and this version reads '1'"):
        Recording.open(tmp_path / "later.mcap")


@given(st.lists(st.integers(0, 30)))
@settings(max_examples=200, deadline=None)
def test_numbers_are_a_set(numbers):
    found, naive = _Numbers(), set()
    for number in numbers:
        assert found.add(number) == (number not in naive)
        naive.add(number)
