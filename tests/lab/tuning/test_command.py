"""`edgeflow ops` and `edgeflow tune`, through the command line, on this machine's CPU."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.errors import ConfigError

RUNNER = CliRunner()


@pytest.fixture
def checkpoint(tmp_path):
    config = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_ops_shows_each_choice_and_the_reason():
    lines = json.loads(run("ops", "--model", "openvla-7b", "--hardware", "cuda_sm75", "--json"))
    norm = next(line for line in lines if line["op_name"] == "rms_norm")
    assert (norm["impl_id"], norm["why"]) == ("fused", "built in: everywhere")
    assert norm["passed_over"] == ["triton: needs sm_80"]
    stages = {line["stage"] for line in lines if line["op_name"] == "packed_attention"}
    assert stages == {"", "prefill", "decode", "packed"}


def test_ops_shows_a_table():
    assert "slots_in_place" in run("ops", "--hardware", "cpu")


def test_ops_lists_unused_entries_of_an_overlay(tmp_path):
    """The example row of EdgeFM's table 1, and rows that no call of the model is meant by."""
    row = {"model_name": "qwen2_5", "hw_profile": "cuda_sm80", "op_kind": "linear", "layer_role": "fused_qkv"}
    row |= {"stage": "decode", "shape_sig": "m=1|in_features=1536|...", "impl_id": "cublasLt"}
    others = [{"model_name": "gpt2"}, {"shape_sig": "in_features=999"}, {"hw_profile": "cuda_sm90"}]
    others = [row | {"impl_id": "gemm"} | other for other in others]
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps({"entries": [row, *others, row | {"impl_id": "gemm", "stage": "prefill", "shape_sig": ""}]})
    )
    ops = ("ops", "--model", "qwen2.5-1.5b", "--hardware", "cuda_sm80", "--overlay", str(path))
    told = " ".join(run(*ops).split())
    assert (
        "mine.json names an implementation that is absent here, cublasLt (edgeflow has no binding of cuBLASLt)" in told
    )
    assert told.count("mine.json: matches no call above: any operator (") == 3
    assert all(part in told for part in ("model_name=gpt2", "shape_sig=e=999", "hw_profile=cuda_sm90"))
    calls = [line for line in json.loads(run(*ops, "--json")) if line["op_name"] == "linear" and line["shape_sig"]]
    mine = {(line["stage"], line["impl_id"]) for line in calls if line["why"].startswith("mine.json")}
    over = {(line["layer_role"], line["stage"]) for line in calls if line["passed_over"]}
    assert mine == {("prefill", "gemm")} and over == {("qkv", "decode")}


def test_ops_lists_no_entries_that_are_used(tmp_path):
    """Entries of the vision towers, and of the last layer over a prompt's last row."""
    single = {"stage": "prefill", "shape_sig": "m=1"}
    entries = [
        {"op_name": "add_layer_norm", "impl_id": "fused"},
        {"op_name": "varlen_attention", "impl_id": "sdpa"},
        *({"op_name": "linear", "layer_role": role, "impl_id": "gemm"} | single for role in ("output", "down", "head")),
        {"op_name": "swiglu", "impl_id": "fused"} | single,
        {"op_name": "packed_attention", "impl_id": "masked", "stage": "decode", "shape_sig": "m=1|t=512"},
    ]
    path = tmp_path / "mine.json"
    ops = ("ops", "--model", "openvla-7b", "--hardware", "cpu", "--overlay", str(path))
    path.write_text(json.dumps({"entries": entries}))
    assert "matches no call" not in run(*ops)
    path.write_text(
        json.dumps({"entries": [*entries, {"op_name": "linear", "layer_role": "qkv", "impl_id": "gemm"} | single]})
    )
    assert "layer_role=qkv" in " ".join(run(*ops).split())


def test_tune_writes_an_overlay_resumes_and_is_served(checkpoint, tmp_path):
    out = tmp_path / "tuned.json"
    arguments = ("tune", "--model", str(checkpoint), "--rows", "6", "--samples", "1", "--device", "cpu")
    first = json.loads(run(*arguments, "--out", str(out), "--json"))
    assert first["stamp"]["hw_profile"] == "cpu" and first["stamp"]["threads"] == torch.get_num_threads() == 1
    assert first["model"]["hidden"] == 64
    names = "op_name", "layer_role", "stage", "kv", "shape_sig"
    keys = [tuple(entry[name] for name in names) for entry in first["entries"]]
    assert len(keys) == len(set(keys)) >= 10 and all(entry["us"] > 0 for entry in first["entries"])

    cut_off = first | {"entries": first["entries"][:3]}
    out.write_text(json.dumps(cut_off))
    again = json.loads(run(*arguments, "--out", str(out), "--json"))
    assert again["entries"][:3] == first["entries"][:3], "what was measured is measured again"
    assert [tuple(entry[name] for name in names) for entry in again["entries"]] == keys

    shown = ("ops", "--model", str(checkpoint), "--rows", "6", "--hardware", "cpu", "--overlay", str(out), "--json")
    told = [line for line in json.loads(run(*shown)) if line["shape_sig"]]
    assert all(line["why"].startswith("tuned.json: model_name=llama, hw_profile=cpu") for line in told)


@pytest.mark.usefixtures("one_thread_around")
def test_a_file_without_the_format_of_weights_is_not_measured_again_and_can_be_checked(checkpoint, tmp_path):
    """As it was written before there was this dimension. The check computes with the threads of the file."""
    out = tmp_path / "tuned.json"
    arguments = ("--model", str(checkpoint), "--rows", "6", "--samples", "1", "--device", "cpu", "--out", str(out))
    tuned = json.loads(run("tune", *arguments, "--threads", "2", "--json"))
    assert tuned["stamp"]["threads"] == torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert {entry["weight"] for entry in tuned["entries"] if entry["op_name"] == "linear"} == {"float"}
    for entry in tuned["entries"]:
        del entry["weight"]
    out.write_text(json.dumps(tuned))
    again = json.loads(run("tune", *arguments, "--threads", "2", "--json"))
    torch.set_num_threads(1)
    assert len(again["entries"]) == len(tuned["entries"])
    verdicts = json.loads(RUNNER.invoke(app, ["tune", "--regress", *arguments, "--json"]).stdout)
    assert not [each for each in verdicts if each["complaint"].startswith("no problem")]
    assert torch.get_num_threads() == 2


def test_tune_rejects_the_file_of_another_model(checkpoint, tmp_path):
    out = tmp_path / "tuned.json"
    run("tune", "--model", str(checkpoint), "--rows", "2", "--samples", "1", "--device", "cpu", "--out", str(out))
    tune = ("tune", "--model", str(checkpoint), "--samples", "1", "--device", "cpu", "--out", str(out))
    for options, named in (
        (("--rows", "3"), "rows 2, here 3"),
        (("--rows", "2", "--head", "int8"), "head float, here int8"),
        (("--rows", "2", "--threads", "2"), "threads 1, here 2"),
        (("--rows", "3", "--dtype", "bfloat16"), "dtype float32, here bfloat16; rows 2, here 3"),
    ):
        with pytest.raises(ConfigError, match=rf"holds results with {named}: name another file with --out, or remove"):
            run(*tune, *options)
    with pytest.raises(ConfigError, match=r"holds results with .*hidden 64, here 192.* products qkv "):
        run(*tune, "--rows", "2", "--model", "demo-chat")


def test_tune_rejects_a_file_that_it_did_not_write(checkpoint, tmp_path):
    out = tmp_path / "mine.json"
    out.write_text("{}")
    with pytest.raises(ConfigError, match=r"was not written by `edgeflow tune`: name another file with --out"):
        run("tune", "--model", str(checkpoint), "--rows", "2", "--device", "cpu", "--out", str(out))


def test_regress_reports_a_slower_choice(checkpoint, tmp_path):
    out = tmp_path / "tuned.json"
    arguments = ("--model", str(checkpoint), "--rows", "60", "--samples", "3", "--device", "cpu", "--out", str(out))
    overlay = json.loads(run("tune", *arguments, "--json"))
    chosen = next(
        each for each in overlay["entries"] if each["op_name"] == "rope_write_kv" and "m=64" in each["shape_sig"]
    )
    overlay["entries"] = [chosen | {"impl_id": "reference"}]
    out.write_text(json.dumps(overlay))
    result = RUNNER.invoke(app, ["tune", "--regress", *arguments, "--json"], catch_exceptions=False)
    (verdict,) = json.loads(result.stdout)
    assert result.exit_code == 1 and verdict["complaint"].startswith("slower than the default")


def test_regress_rejects_what_was_not_tuned(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="was not written by `edgeflow tune`"):
        run("tune", "--regress", "--device", "cpu", "--out", str(path))


def test_an_unknown_model_is_reported():
    with pytest.raises(
        ConfigError, match=r"not a directory or one of openvla-7b, .*, demo, demo-flow, demo-chat, nor a"
    ):
        run("ops", "--model", "gpt-9")


def test_the_embedded_chat_model_is_known():
    lines = json.loads(run("ops", "--model", "demo-chat", "--hardware", "cpu", "--head", "int8", "--json"))
    heads = [line for line in lines if line["layer_role"] == "head"]
    assert heads and {(line["weight"], line["shape_sig"].partition("|")[2]) for line in heads} == {
        ("int8", "n=1024|e=192")
    }


@pytest.mark.parametrize("model", ["openvla-7b", "demo"])
def test_the_head_of_a_policy_stays_in_floats(model):
    with pytest.raises(ConfigError, match=rf"^head: int8: is for chat models, and {model} is .* policy"):
        run("ops", "--model", model, "--head", "int8", "--hardware", "cpu")


def test_a_head_that_nothing_serves_on_a_device_is_rejected(checkpoint, tmp_path, monkeypatch):
    ops = ("ops", "--model", "qwen2.5-0.5b", "--head", "int8", "--hardware")
    run(*ops, "cpu")
    told = r"^head: int8: no operator serves such a head on cuda; use float"
    with pytest.raises(ConfigError, match=told):
        run(*ops, "cuda_sm90")
    monkeypatch.setattr("edgeflow.lab.tuning.command.choose_device", lambda _: torch.device("cuda"))
    out = tmp_path / "tuned.json"
    with pytest.raises(ConfigError, match=told):
        run("tune", "--model", str(checkpoint), "--head", "int8", "--out", str(out))
    assert not out.exists()
