"""Kept records: what each file repeats, whole at any moment."""

from __future__ import annotations

import os

import pytest

from edgeflow_client.recording import kept as module
from edgeflow_client.recording.kept import KeptRecords
from edgeflow_client.recording.ring import memory_file


@pytest.fixture
def memory():
    """The two descriptors of kept records."""
    descriptors = (memory_file(), memory_file())
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def _opened(kept: KeptRecords, number: int, session: int) -> None:
    kept.add("/topic", number, b"%d" % number, {"kind": "opened", "session": session})


def test_a_successor_has_what_was_saved_last_even_if_saving_was_cut_short(memory):
    kept = KeptRecords(memory)
    _opened(kept, 1, session=1)
    kept.save()
    kept.files = 7
    _opened(kept, 2, session=2)
    kept.save()
    assert [record.number for _, record in KeptRecords(memory)] == [1, 2]
    assert KeptRecords(memory).files == 7
    newest = memory[0]
    os.ftruncate(newest, os.fstat(newest).st_size // 2)  # killed while it wrote this one
    assert [(topic, record.number) for topic, record in KeptRecords(memory)] == [("/topic", 1)]


def test_sessions_whose_end_was_lost_do_not_add_up(memory, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    kept = KeptRecords(memory)
    for number in range(10):
        _opened(kept, number, session=number)
    assert [record.number for _, record in kept] == [7, 8, 9]
