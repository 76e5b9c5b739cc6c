"""`edgeflow verify` for bundles of memory gates: passes on what was recorded, fails on what is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.shared_passes import run_pass
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.lab.verify.gate import run_at_once, verify_served, verify_twins
from edgeflow.lab.verify.gate_bundle import BASE, GateCase, GateRun, check_cases, read_gate_bundle
from edgeflow.models.chat import load_chat_model
from edgeflow.models.memory_gate import gate_header
from edgeflow.models.published import read_published
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.oracles import ORACLES

BUNDLES = ["edgeinfinite-tiny/llama", "edgeinfinite-tiny/qwen2"]
LLAMA = ORACLES / BUNDLES[0]
CPU = torch.device("cpu")
WAYS = ("chunks of 1", "chunks of 5", "chunks of 64", "prefix, copied", "packed")


def bundles(by_day: str) -> list[Any]:
    """Both bundles; the other one runs at night."""
    marks = {name: [pytest.mark.oracle(name), *([pytest.mark.night] if name != by_day else [])] for name in BUNDLES}
    return [pytest.param(name, marks=marks[name]) for name in BUNDLES]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", bundles(by_day=BUNDLES[0]))
def test_every_recorded_value_agrees_with_the_twins(name: str):
    results = verify_twins(ORACLES / name)
    assert [each for each in results if not each[1].ok] == []
    stored = {tuple(key.split(".", 1)) for key in load_file(ORACLES / name / "expected.safetensors")}
    names = {"logits of the prompt": "logits", "hidden states": "hidden", "logits of every step": "step_logits"}
    names["logits of the last step"] = "step_logits_last"
    checked = {(result.case, names.get(result.quantity, result.quantity)) for way, result in results if "str" in way}
    assert stored <= checked
    cases = json.loads((ORACLES / name / "cases.json").read_text())["cases"]
    tokens = [(way, result.case) for way, result in results if result.quantity == "greedy tokens"]
    recompute = [case["name"] for case in cases if case["options"]["fold"] == "recompute"]
    wanted = [("as streamed", case["name"]) for case in cases] + [("at once", case) for case in recompute]
    assert sorted(tokens) == sorted(wanted)


@pytest.mark.parametrize("name", bundles(by_day=BUNDLES[1]))
def test_the_executor_gives_every_recorded_token_in_every_way(name: str):
    results = verify_served(ORACLES / name)
    assert [each for each in results if not each[1].ok] == []
    cases = [case["name"] for case in json.loads((ORACLES / name / "cases.json").read_text())["cases"]]
    for quantity in ("greedy tokens", "logits of the prompt", "folds after the prompt"):
        found = [(way, result.case) for way, result in results if result.quantity == quantity]
        assert sorted(found) == sorted((way, case) for way in WAYS for case in cases)


@pytest.mark.parametrize("name", bundles(by_day=BUNDLES[1]))
def test_a_model_in_bfloat16_is_as_near_as_its_roundings_allow(name: str):
    """Every step of a case with folds, behind the recorded tokens: what is known decides, not how it came."""
    path, dtype = ORACLES / name, torch.bfloat16
    model, text = load_chat_model(path / BASE, dtype, CPU), read_published(path / BASE).text
    gate = gate_header(path, text).read(text, dtype, CPU)
    entries = json.loads((path / "cases.json").read_text())["cases"]
    (case,) = [case for case in entries if case["name"] == "residual_max"]
    wanted = load_file(path / "expected.safetensors")["residual_max.step_logits"]
    kv = model.decoder.kv_slots(1, gate.rules.threshold, memory_format(gate, 200))
    engine = ChatEngine(model, kv, folding=folding_of(gate.rules), keep_logits=True)
    found = []
    for step in range(len(wanted)):
        ids = [*case["input_ids"], *case["greedy_ids"][:step]]
        asked = Generation(engine, model.prompt(ids), SamplingParams(max_tokens=1), ignore_stop=True)
        while asked.finish is None:
            (taken,) = run_pass(engine, [asked], 64)
        found.append(taken.logits[-1].float())
    off = (torch.stack(found) - wanted).abs().max().item()
    same = (torch.stack(found).argmax(1) == wanted.argmax(1)).sum().item()
    assert kv.layer(0).matrices.dtype is torch.float32
    assert off < 0.23 and same >= 22, (off, same)


def edited_bundle(folder: Path, edit: Callable[[dict[str, Any]], object], cases: Sequence[str]) -> Path:
    """A copy of some cases of the llama bundle. edit: of each case's entry."""
    target = folder / "bundle"
    shutil.copytree(LLAMA, target, ignore=shutil.ignore_patterns("cases.json"))
    values = json.loads((LLAMA / "cases.json").read_text())
    values["cases"] = [case for case in values["cases"] if case["name"] in cases]
    for case in values["cases"]:
        edit(case)
    (target / "cases.json").write_text(json.dumps(values))
    return target


def off(folder: Path) -> set[str]:
    return {result.quantity for _, result in verify_twins(folder) if not result.ok}


@pytest.mark.oracle(BUNDLES[0])
@pytest.mark.parametrize(
    "key, quantity",
    [
        ("residual_max.step_logits", "logits of every step"),
        ("residual_max.M", "M"),
        ("residual_max.z", "z"),
        ("residual_max.a_mem.0", "a_mem.0"),
        ("residual_max.hidden", "hidden states"),
    ],
)
def test_a_changed_tensor_is_found(tmp_path: Path, key: str, quantity: str):
    folder = edited_bundle(tmp_path, lambda case: None, ["residual_max"])
    tensors = load_file(folder / "expected.safetensors")
    changed = tensors[key].clone()
    changed.view(-1)[0] += 5e-4 * max(1.0, changed.abs().max().item())
    save_file(tensors | {key: changed}, folder / "expected.safetensors")
    assert quantity in off(folder)


@pytest.mark.oracle(BUNDLES[0])
def test_an_unknown_tensor_is_found(tmp_path: Path):
    folder = edited_bundle(tmp_path, lambda case: None, ["threshold"])
    tensors = load_file(folder / "expected.safetensors")
    save_file(tensors | {"threshold.entropy": torch.ones(1)}, folder / "expected.safetensors")
    assert off(folder) == {"entropy"}


@pytest.mark.oracle(BUNDLES[0])
@pytest.mark.parametrize(
    "edit, quantity",
    [
        (lambda case: case["decode_folds_at"].pop(), "folds after the prompt"),
        (lambda case: case.update(route="short"), "route"),
        (lambda case: case.update(segments_at_end=9), "segments at the end"),
        (lambda case: case.update(segments_after_prefill=2), "segments after the prompt"),
        (lambda case: case.update(residual_after_prefill=1), "residual after the prompt"),
        (lambda case: case.update(min_margin=0.5), "least margin of a token"),
        (lambda case: case["greedy_ids"].__setitem__(-1, 7), "greedy tokens"),
        (lambda case: case["options"].update(memory_content="sink_and_segment"), "M"),
        (lambda case: case["without_memory"].update(max_logit_change=1.0), "without memory: logits of the prompt"),
        (lambda case: case["without_memory"].update(tokens_changed=1), "without memory: tokens changed"),
    ],
)
def test_a_changed_entry_is_found(tmp_path: Path, edit: Callable[[dict[str, Any]], object], quantity: str):
    assert quantity in off(edited_bundle(tmp_path, edit, ["residual_max"]))


@pytest.mark.oracle(BUNDLES[0])
@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda case: case.update(gate_file="../gate.safetensors"), "gate_file must be a file beside cases.json"),
        (lambda case: case.update(gate_file="other.safetensors"), "got 'other.safetensors'"),
        (lambda case: case["options"].update(l_window=0), r"options: window \(l_window\) .* got 0"),
        (lambda case: case["options"].update(fold="never"), "fold must be recompute or cached, got 'never'"),
        (lambda case: case.update(route="middle"), "route must be short or long, got 'middle'"),
        (lambda case: case.update(input_ids=[2176]), "ids from 0 to 2175"),
        (lambda case: case.update(greedy_ids=[]), "ids from 0 to 2175"),
        (lambda case: case["options"].update(fold_at=3), "options: unknown 'fold_at', known are l_sink, l_window"),
        (lambda case: case.update(segments_at_end="3"), "segments_at_end must be an integer"),
        (lambda case: case.update(residual_after_prefill=0.5), "residual_after_prefill must be an integer"),
        (lambda case: case.update(without_memory=3), "without_memory must be an object"),
    ],
)
def test_a_case_that_cannot_be_read_is_rejected(tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str):
    with pytest.raises(CheckpointError, match=message):
        verify_twins(edited_bundle(tmp_path, edit, ["threshold"]))


@pytest.mark.oracle(BUNDLES[0])
def test_another_runner_is_compared_with_what_it_knows():
    gate, cases = read_gate_bundle(LLAMA, read_published(LLAMA / BASE).text, CPU)
    base = PlainBase.read(LLAMA / BASE, torch.float32, CPU)
    cases = [case for case in cases if case.name in ("two_segments", "alt_fold_cached")]

    def run(cases: Sequence[GateCase]) -> list[GateRun]:
        return [run_at_once(case, base) for case in cases]

    with torch.inference_mode():
        results = check_cases("mine", run, cases)
    assert [each for each in results if not each[1].ok] == []
    assert {way for way, _ in results} == {"mine"}
    assert {result.case for _, result in results if result.quantity == "greedy tokens"} == {"two_segments"}
    assert gate.rules == cases[0].gate.rules


@pytest.mark.oracle(BUNDLES[0])
def test_the_command_knows_the_bundle(tmp_path: Path):
    folder = edited_bundle(tmp_path, lambda case: None, ["threshold", "alt_mlp_per_head"])
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert {row["mode"] for row in rows} == {"as streamed", "at once", *WAYS} and all(row["ok"] for row in rows)
    assert {row["case"] for row in rows} == {"threshold", "alt_mlp_per_head"}
    for quantity, edit in (("logits of the prompt", {}), ("greedy tokens", {"greedy_ids": [7] * 24})):
        tensors = load_file(folder / "expected.safetensors")
        save_file(tensors | {"threshold.logits": tensors["threshold.logits"] + 5e-4}, folder / "expected.safetensors")
        values = json.loads((folder / "cases.json").read_text())
        values["cases"][0].update(edit)
        (folder / "cases.json").write_text(json.dumps(values))
        result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
        off = {row["mode"] for row in json.loads(result.stdout) if not row["ok"] and row["quantity"] == quantity}
        assert result.exit_code == 1 and off == {"as streamed", "at once", *WAYS}
    for options in ({"kv": "int8"}, {"weights": "fp8"}):
        with pytest.raises(ConfigError, match="memory gate"):
            verify_checkpoint(LLAMA, [], lambda *_: None, **options)
    with pytest.raises(ConfigError, match="memory gate"):
        verify_checkpoint(LLAMA, [Mode.SERIAL], lambda *_: None)
