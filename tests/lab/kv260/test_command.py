"""`edgeflow cosim` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.kv260.macro_file import write_macro
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.lab.kv260.checkpoint import CONFIG, write_awq_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_awq_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def cosim(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cosim", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> Exception:
    result = CliRunner().invoke(app, ["cosim", *arguments])
    assert isinstance(result.exception, (ConfigError, CheckpointError)), result.output
    return result.exception


def test_the_papers_model_is_printed_beside_the_paper():
    text = cosim("qwen2.5-0.5b")
    assert "15,952.0" in text and "8,148.0" in text and "2.80" in text and "5.10" in text
    assert "leave out the output projection" in text and "DDR streaming 383.0" in text and "activations 13.3" in text


def test_a_checkpoint_runs_from_its_macro_file(checkpoint: Path, tmp_path: Path):
    write_macro(checkpoint, tmp_path)
    asked = [str(checkpoint), "--prompt", "hello", "--tokens", "3", "--macros", str(tmp_path)]
    values = json.loads(cosim(*asked, "--json"))
    assert values["group"] == 32 and values["run"]["equal"] and len(values["run"]["tokens"]) == 3
    assert "all 3 tokens equal the W4A16 reference's" in cosim(*asked)


def test_weights_of_another_model_give_exit_code_1(checkpoint: Path, tmp_path: Path):
    """A checkpoint of the same sizes and configuration: only its tokens differ."""
    other = write_awq_checkpoint(tmp_path / "other", seed=8)
    write_macro(other, tmp_path / "macros")
    asked = [str(checkpoint), "--prompt", "hello", "--tokens", "8", "--macros", str(tmp_path / "macros")]
    result = CliRunner().invoke(app, ["cosim", *asked])
    assert result.exit_code == 1 and "tokens differ" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "neither a checkpoint directory nor one of qwen2.5-0.5b"),
        (["qwen2.5-0.5b", "--group", "48"], "must be one of 32, 64, 128, got 48"),
        (["qwen2.5-0.5b", "--prompt", "hello"], "a configuration without weights"),
        (["qwen2.5-0.5b", "--macros", "."], "give a prompt too"),
        (["CHECKPOINT", "--group", "64"], "quantised in groups of 32, got 64: leave --group out"),
        (
            ["CHECKPOINT", "--prompt", "hello", "--macros", "."],
            "no macros.json: write one with `edgeflow quantize --layout awq-macro`",
        ),
    ],
)
def test_options_that_contradict_each_other_are_rejected(checkpoint: Path, arguments: list[str], message: str):
    given = [str(checkpoint) if each == "CHECKPOINT" else each for each in arguments]
    assert message in str(refused(*given))


@pytest.mark.parametrize(
    ("width", "message"),
    [
        (168, "mlp.down_proj: inputs must be a multiple of 64, found 168: choose another --group or model"),
        (172, "mlp.gate_proj: outputs must be a multiple of 8, found 172: choose another model"),
    ],
)
def test_a_width_that_macros_cannot_hold_is_rejected(tmp_path: Path, width: int, message: str):
    values = {name: value for name, value in CONFIG.items() if name != "quantization_config"}
    (tmp_path / "config.json").write_text(json.dumps({**values, "intermediate_size": width}))
    assert str(refused(str(tmp_path))) == f"{tmp_path}: {message}"


def test_a_model_that_the_board_cannot_hold_is_rejected_before_it_runs(checkpoint: Path, tmp_path: Path):
    """No weights are there to be read. The widest linear that fits has 8192 inputs."""
    for name in ("chat_template.jinja", "tokenizer.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())

    def given(**changes: int) -> list[str]:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        return [str(tmp_path), "--prompt", "hello"]

    wide = str(refused(*given(intermediate_size=8224)))
    assert f"{tmp_path}: mlp.down_proj: expected at most 8192 inputs" in wide and "found 8224" in wide
    large = str(refused(*given(hidden_size=4096, intermediate_size=8192, num_hidden_layers=64)))
    assert f"{tmp_path}: expected at most the 4,096 MiB" in large and "choose a smaller model" in large
    cosim(given(intermediate_size=8192)[0])
