"""`edgeflow recording export` reads the files of the real recorder."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.recording.recorder import Recorder, RecorderSettings
from edgeflow_client.recording.records import ENCODER, TOPIC, AnySessionRecord
from tests.lab.recordings.export.made_up import steady

SCHEMA = msgspec.json.encode(msgspec.json.schema(AnySessionRecord))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of nine frames."""
    recorder = Recorder(RecorderSettings(directory=str(tmp_path / "recordings")), {TOPIC: SCHEMA}, lambda _: None)
    for record, images in steady(range(1, 10)).records:
        assert recorder.ring(TOPIC).put(ENCODER.encode(record), images)
    recorder.start()
    recorder.stop(30.0)
    return tmp_path / "recordings"


def test_a_recording_becomes_a_dataset(folder: Path, tmp_path: Path):
    out = tmp_path / "set"
    shown = CliRunner().invoke(app, ["recording", "export", str(folder), str(out), "--fps", "5", "--json"])
    assert shown.exit_code == 0, shown.output
    made = json.loads(shown.stdout)
    assert (made["fps"], made["episodes"], made["frames"], made["damage"]) == (5, 1, 4, [])
    assert pq.read_table(out / "data")["action"].to_pylist() == [[10 * seq + 1, -1] for seq in (2, 4, 6, 8)]

    again = CliRunner().invoke(app, ["recording", "export", str(folder), str(tmp_path / "other"), "--video"])
    assert "wrote" in again.output and "8 frames at 10 per second, av1 videos" in " ".join(again.output.split())
