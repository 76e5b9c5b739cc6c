"""`edgeflow quantize` of a policy, as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.quantize.policies.frames import write_frames
from edgeflow_client.errors import ConfigError
from tests.lab.quantize.policies.cases import checkpoint, recorded


def test_a_policy_becomes_a_checkpoint_with_a_report(tmp_path: Path):
    source, out, frames = checkpoint("pi05", tmp_path / "source"), tmp_path / "out", tmp_path / "frames"
    write_frames(frames, recorded("pi05", 16, 2))
    options = ["--out", str(out), "--calibration", str(frames), "--scales", "x", "--no-clip", "--json"]
    result = CliRunner().invoke(app, ["quantize", str(source), *options])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads((out / "quantization_report.json").read_text())
    assert printed["group_size"] == 32 and printed["awq"]["frames"] == 2
    assert not (out / ".quantize").exists()


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        ("demo-chat", ["--loss", "actions"], "loss: is only for policies"),
        ("demo-chat", ["--keep-frames", "FILE"], "keep_frames: is only for policies"),
        ("demo", ["--questions", "3"], "questions: are only for demo-chat"),
        ("demo", ["--layout", "awq-macro"], "layout: the accelerator only runs chat models"),
        ("demo-flow", ["--loss", "actions"], "loss: actions counts the rows that give action tokens"),
    ],
)
def test_options_of_another_kind_of_model_are_rejected(model: str, options: list[str], named: str, tmp_path: Path):
    result = CliRunner().invoke(app, ["quantize", model, "--out", str(tmp_path / "out"), *options])
    assert isinstance(result.exception, ConfigError) and str(result.exception).startswith(named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--out", "file"], "out: .*file is not a folder"),
        (["--out", "."], "out: .* is not empty"),
        (["--out", "out", "--keep-frames", "absent/frames"], "keep_frames: absent/frames must be a file in a folder"),
        (["--out", "empty", "--keep-frames", "empty/frames"], "keep_frames: empty/frames is inside the folder"),
    ],
)
def test_places_are_checked_before_frames_are_recorded(
    options: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"")
    Path("empty").mkdir()
    absent = ["--calibration", "absent.safetensors"]  # refused as soon as frames are read
    result = CliRunner().invoke(app, ["quantize", "demo", *absent, *options])
    assert isinstance(result.exception, ConfigError) and re.match(named, str(result.exception))
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "empty"}
