"""`edgeflow verify` for chat models: passes on what the original implementation recorded, fails on what is off."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.contract import KVName
from edgeflow.kernels.kv.formats import CONFIGURED
from edgeflow.lab.verify.chat import check_best, verify_chat, verify_kv
from edgeflow.lab.verify.chat_bundle import read_chat_bundle
from edgeflow.lab.verify.chat_modes import ChatModes
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.lab.verify.comparison import exact_float32
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.cases import some_by_day
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.emulated_device import OTHER, other_device
from tests.oracles import oracle

BUNDLES = ["llama-tiny", "qwen2-tiny", "qwen25vl-tiny", "stories260K-hf"]
MODES = ["alone", "chunks of 1", "chunks of 5", "chunks of 64", "prefix", "prefix, copied", "packed"]
QUANTITIES = {
    "llama-tiny": {"chat text", "input ids", "logits", "first logits", "greedy tokens", "text", "last step's logits"},
    "qwen25vl-tiny": {
        "chat text", "input ids", "position ids", "rope delta", "pixel values (torchvision)", "image grids",
        "image rows", "final hidden", "best ids", "last logits", "first logits", "greedy tokens", "last step's logits",
    },
    "stories260K-hf": {"input ids", "greedy tokens", "text", "largest ids", "largest logits"},
}  # fmt: skip

KV_CASES = [
    pytest.param(*case.values, marks=[*case.marks, pytest.mark.oracle(case.values[0])], id=case.id)
    for case in some_by_day(
        product(("llama-tiny", "qwen2-tiny"), ("int8", "fp8", "int4")),
        [("llama-tiny", "int8"), ("qwen2-tiny", "fp8"), ("llama-tiny", "int4")],
    )
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("ids", "ok"),
    [([[1], [0]], True), ([[2], [0]], True), ([[0], [0]], False), ([[1]], False), ([[1], [3]], False)],
    ids=str,
)
def test_the_best_ids_are_the_largest_but_for_near_ties(ids: list[list[int]], ok: bool):
    logits = torch.tensor([[1.0, 2.0, 2.0 - 5e-5], [0.0, -1.0, -2.0]])
    assert check_best("case0", "best ids", logits, torch.tensor(ids)).ok == ok
    logits[1, 2] = torch.nan
    assert not check_best("case0", "best ids", logits, torch.tensor(ids)).ok


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.oracle(name)) for name in BUNDLES])
def test_the_original_implementation_agrees(name: str):
    results = verify_chat(oracle(name))
    assert [each for each in results if not each[1].ok] == []
    assert {result.quantity for _, result in results} == QUANTITIES.get(name, QUANTITIES["llama-tiny"])
    tokens = [(mode, result.case) for mode, result in results if result.quantity == "greedy tokens"]
    cases = {case.name for case in read_chat_bundle(oracle(name)) if case.name != "chat"}
    assert sorted(tokens) == sorted((mode, case) for mode in MODES for case in cases)


@pytest.mark.parametrize(("name", "kv"), KV_CASES)
def test_kv_of_fewer_bits_is_within_its_bounds_and_one_answer_in_every_mode(name: str, kv: KVName):
    results = verify_kv(oracle(name), CONFIGURED[kv])
    assert [each for each in results if not each[1].ok] == []
    answers = {(mode, result.case) for mode, result in results if result.quantity == "tokens, against alone"}
    cases = {case.name for case in read_chat_bundle(oracle(name)) if case.name != "chat"}
    assert answers == {(mode, case) for mode in MODES for case in cases}
    told = {result.quantity: result.deviation for mode, result in results if mode == f"{kv} KV"}
    assert 0 < told["mean logit error"] < told["largest logit error"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A bundle with answers from transformers' generation."""
    directory = tmp_path_factory.mktemp("recorded")
    theirs = write_chat_checkpoint(directory, "qwen2")
    prompt = "put the carrot on"
    ids = torch.tensor([_encode(directory, prompt)])
    with torch.inference_mode():
        logits = theirs(ids).logits[0]
        answer = theirs.generate(ids, max_new_tokens=6, eos_token_id=None, pad_token_id=0, do_sample=False)
    case = {"prompt": prompt, "input_ids": ids[0].tolist(), "greedy_ids": answer[0, ids.shape[1] :].tolist()}
    messages = [{"role": "user", "content": "hi"}]
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    chat = {"messages": messages, "rendered": rendered, "input_ids": _encode(directory, rendered)}
    (directory / "cases.json").write_text(json.dumps({"cases": [case], "chat": chat}))
    save_file({"case0.logits": logits}, directory / "expected.safetensors")
    return directory


def _encode(directory: Path, text: str) -> list[int]:
    return Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids


@pytest.fixture
def bundle(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "bundle"))


def off(bundle: Path) -> set[tuple[str, str]]:
    """Quantities that are off, by case."""
    return {(result.case, result.quantity) for _, result in verify_chat(bundle) if not result.ok}


def change_case(bundle: Path, place: str, **entries: object) -> None:
    values = json.loads((bundle / "cases.json").read_text())
    (values["chat"] if place == "chat" else values["cases"][0]).update(entries)
    (bundle / "cases.json").write_text(json.dumps(values))


def test_a_right_bundle_passes(bundle: Path):
    assert off(bundle) == set()
    done = CliRunner().invoke(app, ["verify", str(bundle), "--json"])
    rows = json.loads(done.stdout)
    assert done.exit_code == 0 and all(row["ok"] for row in rows)
    assert {row["mode"] for row in rows} == {"prompt", *MODES}


def test_modes_of_control_policies_are_rejected(bundle: Path):
    with pytest.raises(ConfigError, match="qwen2 is not a control policy"):
        verify_checkpoint(bundle, [Mode.SERIAL], lambda *_: None)


def test_a_flipped_weight_is_found(bundle: Path):
    weights = load_file(bundle / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.bias"
    weights[name][3] = -weights[name][3]
    save_file(weights, bundle / "model.safetensors", {"format": "pt"})
    assert {("case0", "logits"), ("case0", "first logits")} <= off(bundle)
    assert CliRunner().invoke(app, ["verify", str(bundle)]).exit_code == 1


@pytest.mark.parametrize("place", [0, 5])
def test_a_wrong_expected_token_is_found_in_every_mode(bundle: Path, place: int):
    tokens = json.loads((bundle / "cases.json").read_text())["cases"][0]["greedy_ids"]
    tokens[place] = (tokens[place] + 1) % 200
    change_case(bundle, "case", greedy_ids=tokens)
    wrong = [(mode, result) for mode, result in verify_chat(bundle) if not result.ok]
    assert [mode for mode, _ in wrong] == MODES and {result.quantity for _, result in wrong} == {"greedy tokens"}


@pytest.mark.parametrize(
    ("place", "entries", "quantity"),
    [
        ("case", {"input_ids": [1, 2]}, "input ids"),
        ("case", {"greedy_text": "x"}, "text"),
        ("case", {"rope_delta": [1]}, "rope delta"),
        ("chat", {"rendered": "x"}, "chat text"),
    ],
)
def test_a_wrong_expected_value_is_found(bundle: Path, place: str, entries: dict[str, object], quantity: str):
    change_case(bundle, place, **entries)
    assert off(bundle) == {("case0" if place == "case" else "chat", quantity)}


def test_a_wrong_expected_logit_is_found(bundle: Path):
    tensors = load_file(bundle / "expected.safetensors")
    tensors["case0.logits"][1, 7] += 5e-4
    save_file(tensors, bundle / "expected.safetensors")
    assert off(bundle) == {("case0", "logits")}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cases.json", None, "has neither cases.json nor oracle.json"),
        ("cases.json", "[]", "must hold a JSON object"),
        ("cases.json", '{"cases": []}', "lists no cases"),
        ("cases.json", '{"cases": [{"prompt": 5}]}', "case0.prompt must be text"),
        ("cases.json", '{"cases": [{"prompt": "x"}]}', "case0 lacks input_ids"),
        ("cases.json", '{"cases": [{"messages": ["x"], "input_ids": []}]}', "case0.messages must be a list of objects"),
        ("expected.safetensors", None, "expected.safetensors"),
    ],
)
def test_a_directory_that_is_not_a_bundle_is_reported(bundle: Path, name: str, content: str | None, message: str):
    (bundle / name).unlink()
    if content is not None:
        (bundle / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        verify_chat(bundle)


@pytest.mark.parametrize(("kv", "share"), [("int8", 144 / 384), ("fp8", 144 / 384), ("int4", 166 / 384)])
def test_the_cost_of_a_kv_format_is_reported(bundle: Path, kv: str, share: float):
    """3 layers, keys and values, 2 heads of 8 numbers; with scales or grids, and what a slot of 512 has once."""
    result = CliRunner().invoke(app, ["verify", str(bundle), "--kv", kv, "--json"])
    rows = {(row["mode"], row["quantity"]): row for row in json.loads(result.stdout)}
    told = {quantity for mode, quantity in rows if mode == f"{kv} KV"}
    memory = f"bytes per position, {384 * share:.5g} for 384"
    assert told == {"largest logit error", "mean logit error", "tokens that differ, share", memory}
    assert rows[f"{kv} KV", memory]["deviation"] == pytest.approx(share)
    assert rows[f"{kv} KV", "mean logit error"]["deviation"] > 0


def test_policies_without_slots_have_no_kv_format(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"type": "act"}')
    with pytest.raises(ConfigError, match="kv: policies of the family act keep no tokens in KV slots"):
        verify_checkpoint(tmp_path, [], lambda *_: None, kv="int8")


def test_every_tensor_is_on_the_device_that_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    """On an emulated device, where an operation over tensors of two devices fails as it does on CUDA."""
    every = ChatModes.all
    monkeypatch.setattr(
        ChatModes, "all", lambda ways: {name: every(ways)[name] for name in ("alone", "prefix, copied")}
    )
    with other_device() as device, exact_float32(OTHER):
        results = verify_chat(bundle, device=OTHER)
    assert {mode for mode, _ in results} == {"prompt", "alone", "prefix, copied"} and len(device.computed) > 100
    assert [result for _, result in results if not result.ok] == []
