"""`edgeflow train-gate` from a checkpoint and files of texts to a gate, and its rejections."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.training import run as learning
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.run import KEPT_BYTES, kept_bytes
from edgeflow.lab.training.gate.trainer import GateTrainer
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules, base_fingerprint, gate_header
from edgeflow.models.published import read_published
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.chat_checkpoint import write_chat_checkpoint

CPU = torch.device("cpu")
SIZES = ["--sink", "2", "--window", "4", "--segment", "16"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_chat_checkpoint(folder, request.param, tie_word_embeddings=request.param == "qwen2")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "some.jsonl"
    texts = [{"text": f"{number} {'again ' * (5 + number)}"} for number in range(6)]
    asked = {"role": "user", "content": "What was the first word of this long text?"}
    answers = [{"messages": [asked, {"role": "assistant", "content": f"{number}"}]} for number in range(6)]
    path.write_text("".join(json.dumps(each) + "\n" for each in (*texts, *answers, {"text": "short"})))
    return path


def command(model: Path, data: Path, out: Path, *options: str) -> list[str]:
    files = ["--data", str(data), "--out", str(out)]
    return ["train-gate", str(model), *files, "--device", "cpu", "--json", *SIZES, *options]


def run(model: Path, data: Path, out: Path, *options: str) -> dict[str, float]:
    result = CliRunner().invoke(app, command(model, data, out, *options), catch_exceptions=False)
    assert result.exit_code == 0
    outcome: dict[str, float] = json.loads(result.stdout)
    return outcome


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_gate_is_trained_and_the_base_is_not(model: Path, data: Path, tmp_path: Path):
    files, before = digests(model), PlainBase.read(model, torch.float32, CPU)
    outcome = run(model, data, tmp_path / "gate", "--steps", "3", "--batch-tokens", "200")
    assert digests(model) == files
    after = PlainBase.read(model, torch.float32, CPU)
    assert all(mine.equal(own) for mine, own in zip(after.tensors(), before.tensors(), strict=True))
    config = read_published(model).text
    header = gate_header(tmp_path / "gate", config, base_fingerprint=base_fingerprint(model))
    gate = header.read(config, torch.float32, CPU)
    assert gate.rules == GateRules(sink=2, window=4, segment=16) and gate.mlp_hidden == 4 * config.head_dim
    stored = sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    assert (outcome["gate"], outcome["weights"]) == (gate.parameters, stored)
    assert outcome["share"] == pytest.approx(gate.parameters / (stored + gate.parameters))
    assert (outcome["lines"], outcome["short"], outcome["steps"]) == (12, 1, 3) and outcome["loss"] > 0


def test_a_resumed_run_ends_like_an_uninterrupted_one(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = ("--epochs", "2", "--batch-tokens", "200", "--positions", "local", "--seed", "3")
    outcome = run(model, data, tmp_path / "one", *options)
    step = GateTrainer.step

    def interrupted(trainer: GateTrainer) -> tuple[float, str]:
        if trainer.learner.done_steps == 3:
            raise KeyboardInterrupt
        return step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(learning, "_SAVE_EVERY", -1.0)
        patch.setattr(GateTrainer, "step", interrupted)
        assert CliRunner().invoke(app, command(model, data, tmp_path / "two", *options)).exit_code != 0
    assert not (tmp_path / "two" / "gate.safetensors").exists()
    assert run(model, data, tmp_path / "two", *options)["loss"] == outcome["loss"]
    whole, parted = (load_file(tmp_path / name / "gate.safetensors") for name in ("one", "two"))
    assert outcome["steps"] > 4 and all(tensor.equal(whole[name]) for name, tensor in parted.items())


def test_a_run_that_is_done_goes_no_further_unless_started_again(model: Path, data: Path, tmp_path: Path):
    options = ("--steps", "2", "--batch-tokens", "200")
    run(model, data, tmp_path, *options)
    once = load_file(tmp_path / "gate.safetensors")
    assert run(model, data, tmp_path, *options)["loss"] is None
    assert run(model, data, tmp_path, *options, "--no-resume")["loss"] is not None
    again = load_file(tmp_path / "gate.safetensors")
    assert all(tensor.equal(once[name]) for name, tensor in again.items())


def test_a_gate_beside_its_base_leaves_the_fingerprint(model: Path, data: Path, tmp_path: Path):
    both = shutil.copytree(model, tmp_path / "both")
    run(both, data, both, "--steps", "1")
    config = read_published(both).text
    gate_header(both, config, base_fingerprint=base_fingerprint(both)).read(config, torch.float32, CPU)


def test_a_gate_that_cannot_be_written_is_reported_and_its_training_is_kept(model: Path, data: Path, tmp_path: Path):
    (tmp_path / "gate.json").mkdir()
    files = [str(model), "--data", str(data), "--out", str(tmp_path), "--device", "cpu", "--steps", "1", *SIZES]
    error = refused(*files)
    assert isinstance(error, ConfigError) and f"out: {tmp_path} cannot be written: Is a directory" in error.text
    (tmp_path / "gate.json").rmdir()
    assert run(model, data, tmp_path, "--steps", "1")["loss"] is None


def refused(*arguments: str) -> BaseException:
    result = CliRunner().invoke(app, ["train-gate", *arguments])
    assert result.exit_code != 0 and result.exception is not None
    return result.exception


@pytest.mark.parametrize(
    "options, kind, message",
    [
        (["--steps", "1", "--epochs", "1"], ConfigError, "epochs and steps: give one of them, got 1 and 1"),
        (["--lr", "0"], ConfigError, "lr: must be above 0 and at most 1, got 0.0"),
        (["--lr", "nan"], ConfigError, "at most 1, got nan"),
        (["--lr", "1e300"], ConfigError, "at most 1, got 1e+300"),
        (["--segment", "16777217"], ConfigError, "segment (l_seg) must be an integer from 1 to 16777216"),
        (["--segment", "4000"], ConfigError, "a gate needs prompts of at least 4006 tokens"),
        (["--window", "0"], SystemExit, "2"),
        (["--seed", "99999999999999999999999"], SystemExit, "2"),
    ],
)
def test_options_that_do_not_fit_are_rejected(
    model: Path, data: Path, tmp_path: Path, options: list[str], kind: type[BaseException], message: str
):
    error = refused(str(model), "--data", str(data), "--out", str(tmp_path / "out"), *SIZES, *options)
    assert type(error) is kind and message in str(error)
    assert not (tmp_path / "out").exists()


def test_a_state_of_other_data_is_rejected(model: Path, data: Path, tmp_path: Path):
    run(model, data, tmp_path / "gate", "--steps", "1")
    other = tmp_path / "other.jsonl"
    other.write_text(data.read_text() * 2)
    error = refused(str(model), "--data", str(other), "--out", str(tmp_path / "gate"), *SIZES)
    assert isinstance(error, ConfigError) and "data is not what it was" in str(error)


def test_a_state_of_other_options_is_rejected_by_their_names(model: Path, data: Path, tmp_path: Path):
    files = ["--data", str(data), "--out", str(tmp_path)]
    run(model, data, tmp_path, "--steps", "1")
    error = refused(str(model), *files, *SIZES, "--segment", "15", "--batch-tokens", "99", "--steps", "2")
    assert "segment is 15, was 16; batch-tokens is 99, was 8192; steps is 2, was 1" in str(error)
    assert "--no-resume starts again, or choose another --out" in str(error)
    done = CliRunner().invoke(app, ["train-gate", str(model), *files, *SIZES, "--steps", "1"])
    assert "after 1 step: already finished, --no-resume starts again" in done.stdout


def test_a_folder_that_cannot_be_written_to_is_rejected_before_the_data_is_read(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "gate"):
        error = refused("no model", "--data", "no data", "--out", str(out))
        assert isinstance(error, ConfigError) and str(error) == f"out: {file} is not a folder that can be written to"


def test_a_folder_that_is_no_chat_model_is_rejected(data: Path, tmp_path: Path):
    error = refused(str(tmp_path), "--data", str(data), "--out", str(tmp_path / "out"))
    assert isinstance(error, CheckpointError) and "config.json" in str(error)


def test_a_model_that_a_gate_cannot_serve_is_rejected_before_training(data: Path, tmp_path: Path):
    write_chat_checkpoint(tmp_path / "model", "qwen2_5_vl")
    error = refused(str(tmp_path / "model"), "--data", str(data), "--out", str(tmp_path / "out"), *SIZES)
    assert isinstance(error, CheckpointError) and "its positions have 3 parts, those of a gate's base one" in str(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ((9, 8), "2 texts, 1 step"),
        ((9, 1), "1 text, 1 step; 1 text is too short for a gate and left out"),
        ((9, 1, 1), "1 text, 1 step; 2 texts are too short for a gate and left out"),
    ],
)
def test_texts_are_counted_in_words(lengths: tuple[int, ...], told: str, tmp_path: Path):
    model, data = tmp_path / "model", tmp_path / "data.jsonl"
    write_chat_checkpoint(model, "llama")
    data.write_text("".join(json.dumps({"text": "again " * length}) + "\n" for length in lengths))
    result = CliRunner().invoke(app, command(model, data, tmp_path / "out", "--steps", "1"))
    assert told in result.stderr.splitlines()


def test_texts_beyond_the_trained_positions_are_announced(data: Path, tmp_path: Path):
    model = tmp_path / "model"
    write_chat_checkpoint(model, "llama", max_position_embeddings=50)
    for positions, announced in (("absolute", True), ("local", False)):
        options = ("--steps", "1", "--positions", positions)
        result = CliRunner().invoke(app, command(model, data, tmp_path / positions, *options))
        assert ("leave the 50 positions that the base was trained for" in result.stderr) is announced


def test_layers_are_computed_twice_where_memory_would_not_do():
    small = LlamaConfig(
        hidden_size=192, intermediate_size=448, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=6
    )
    half_a_billion = LlamaConfig(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2
    )
    assert kept_bytes(small, 8192) < KEPT_BYTES < kept_bytes(half_a_billion, 8192)
