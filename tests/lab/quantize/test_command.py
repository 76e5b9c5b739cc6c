"""`edgeflow quantize` as a user types it, on a small random model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.kv260.macro_file import open_macro
from edgeflow.lab.quantize.search.block import LINEARS
from edgeflow.models.chat import load_chat_model
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.lab.quantize.cases import CPU
from tests.lab.quantize.checkpoints import CONFIG, INNER, write_source

ONE_LAYER = replace(CONFIG, num_hidden_layers=1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of enough text for a tokenizer of bytes."""
    file = tmp_path / "text.txt"
    file.write_text(
        "\n\n".join(f"The robot {number} puts cup {7 * number} on shelf {number % 4}. " * 8 for number in range(40))
    )
    return file


def run(*arguments: object) -> str:
    torch.set_num_threads(1)
    result = CliRunner().invoke(app, ["quantize", *map(str, arguments)])
    if isinstance(result.exception, ConfigError | CheckpointError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_model_becomes_a_checkpoint_with_a_report(tmp_path: Path, text: Path):
    folder, out = write_source(tmp_path / "floats", ONE_LAYER), tmp_path / "out"
    printed = json.loads(run(folder, "--out", out, "--calibration", text, "--no-identity", "--json"))
    assert printed == json.loads((out / "quantization_report.json").read_text())
    assert printed["group_size"] == 64
    assert printed["intermediate_size"] == {"stored": 100, "quantised": INNER}
    assert printed["awq"]["linear_error"] < printed["nearest"]["linear_error"]
    assert printed["bytes"]["after"] == (out / "model.safetensors").stat().st_size < printed["bytes"]["before"]
    assert [len(group["losses"]) for group in printed["scale_groups"]] == [20] * 4
    assert not (out / ".quantize").exists()
    assert load_chat_model(out, torch.float32, CPU).config.intermediate_size == INNER


def test_the_choices_are_printed(tmp_path: Path, text: Path):
    folder = write_source(tmp_path / "floats", ONE_LAYER)
    printed = run(
        folder, "--out", tmp_path / "out", "--calibration", text, "--scales", "x", "--no-clip", "--layout", "awq-macro"
    )
    assert open_macro(tmp_path / "out").plan.linears.keys() == {f"model.layers.0.{linear}" for linear in LINEARS}
    assert "groups of 64" in printed
    assert f"width 100 is padded with zeros to {INNER}" in printed
    assert "MiB before" in printed


def test_an_unknown_model_is_rejected_with_those_that_are_embedded(tmp_path: Path):
    told = r"^model: nope is not a directory: .* demo, demo-flow, demo-chat or demo-logs$"
    with pytest.raises(CheckpointError, match=told):
        run(Path("nope"), "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group", 48), "must be one of 32, 64, 128, got 48"),
        (("--calibration", "absent.txt"), "cannot read absent.txt: No such file"),
        (("--questions", 3), "questions: are only for demo-chat; .* is another chat model"),
        (("--group", 128), "64 are not multiples of a group of 128"),
    ],
)
def test_options_that_do_not_fit_are_rejected(tmp_path: Path, arguments: tuple[object, ...], message: str):
    with pytest.raises((ConfigError, CheckpointError), match=message):
        run(write_source(tmp_path / "floats"), "--out", tmp_path / "out", *arguments)


def test_a_file_in_place_of_the_folder_is_rejected_before_the_calibration(tmp_path: Path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"out: .* is not a folder"):
        run(write_source(tmp_path / "floats"), "--out", tmp_path / "out", "--calibration", "absent.txt")
