"""Files of a memory gate: what is written is read again, and what does not fit the base is refused with both values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.training.gate.gate_files import write_gate
from edgeflow.models import memory_gate
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import (
    MAX_HIDDEN,
    SAMPLE_BYTES,
    SAMPLES,
    GateRules,
    MemoryGate,
    base_fingerprint,
    gate_header,
)
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.oracles import ORACLES
from tests.random_gates import SIZE, random_gate

CPU = torch.device("cpu")
CONFIG = LlamaConfig(**SIZE)
RULES = GateRules(sink=2, window=3, segment=4, positions="local", eps=1e-5, activation="relu")
NAME = "model.layers.1.self_attn.memory_gate."


def read(path: Path, config: LlamaConfig = CONFIG, **options: Any) -> MemoryGate:
    return gate_header(path, config, **options).read(config, torch.float32, CPU)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_gate(tmp_path, replace(random_gate(CONFIG, RULES), base_fingerprint="abc"))
    return tmp_path


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("shared_g", [False, True])
def test_a_gate_is_read_as_it_was_written(tmp_path: Path, per_head: bool, shared_g: bool):
    gate = replace(random_gate(CONFIG, RULES, per_head=per_head, shared_g=shared_g), base_fingerprint="abc")
    write_gate(tmp_path / "new", gate)
    for path in (tmp_path / "new", tmp_path / "new" / "gate.json"):
        found = read(path, base_fingerprint="abc")
        assert (found.rules, found.mlp_hidden, found.base_fingerprint) == (RULES, 12, "abc")
        assert len(found.layers) == len(gate.layers) and found.parameters == gate.parameters
        for mine, own in zip(found.layers, gate.layers, strict=True):
            assert all(tensor.equal(own.tensors()[name]) for name, tensor in mine.tensors().items())
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["gate.json", "gate.safetensors"]
    half = gate_header(tmp_path / "new", CONFIG).read(CONFIG, torch.bfloat16, CPU)
    assert {tensor.dtype for tensor in half.layers[0].tensors().values()} == {torch.bfloat16}


@pytest.mark.oracle("edgeinfinite-tiny/qwen2")
def test_options_that_a_file_does_not_name_have_their_defaults(tmp_path: Path):
    stated = json.loads((ORACLES / "edgeinfinite-tiny/qwen2/gate.json").read_text())
    assert GateRules.of_json(stated).to_json().items() <= stated.items()
    sizes = {name: stated[name] for name in ("l_sink", "l_window", "l_seg")}
    assert GateRules.of_json(sizes) == GateRules.of_json(stated) == GateRules(sink=5, window=4, segment=12)


def test_segments_of_a_text():
    rules = GateRules(sink=4, window=6, segment=10)
    assert rules.threshold == 20
    assert [rules.segments(known) for known in (0, 9, 19, 20, 29, 30, 138)] == [0, 0, 0, 1, 1, 2, 12]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"window": 0}, r"window \(l_window\) must be an integer from 1 to 16777216, got 0"),
        ({"segment": 0}, r"segment \(l_seg\) .* from 1 .* got 0"),
        ({"sink": -1}, r"sink \(l_sink\) .* from 0 .* got -1"),
        ({"window": 3.0}, r"window \(l_window\) .* got 3\.0"),
        ({"sink": True}, "got True"),
        ({"segment": 1 << 25}, "got 33554432"),
        ({"fold": "cached"}, "positions 'local' does not go with fold 'cached'"),
        ({"positions": "relative"}, "positions must be absolute or local, got 'relative'"),
        ({"first_segment": ["zero"]}, r"first_segment must be bypass or zero, got \['zero'\]"),
        ({"memory_content": "sink"}, "memory_content must be segment or sink_and_segment, got 'sink'"),
        ({"activation": "softplus"}, "activation must be elu_plus_one or relu, got 'softplus'"),
        ({"eps": 0}, "eps must be a number from 1.2e-38 to 1, got 0"),
        ({"eps": 1e-60}, "got 1e-60"),  # 0 in float32
        ({"eps": 1e39}, "got 1e\\+39"),
        ({"eps": 10**400}, "got 1000000"),  # no float
        ({"eps": float("nan")}, "got nan"),
    ],
)
def test_rules_that_cannot_be_kept_are_rejected(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        replace(RULES, **changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format": "edgeinfinite"}, "format must be 'edgeinfinite-gate', got 'edgeinfinite'"),
        ({"version": 2}, "version must be 1, got 2"),
        ({"mlp_activation": "gelu"}, "mlp_activation must be 'relu', got 'gelu'"),
        ({"mlp_hidden": 13}, "mlp_hidden is 13, but the tensors have h = 12"),
        ({"mlp_hidden": None}, "mlp_hidden is None"),
        ({"l_window": 0}, r"window \(l_window\) .* got 0"),
        ({"l_seg": None}, r"segment \(l_seg\) .* got None"),
        ({"fold": "cached"}, "'local' does not go with fold 'cached'"),
        ({"gate_file": "../gate.safetensors"}, "gate_file must be a file beside gate.json, got '../gate.safetensors'"),
        ({"gate_file": "none.safetensors"}, "got 'none.safetensors'"),
        ({"gate_file": 5}, "got 5"),
        ({"base_fingerprint": 5}, "base_fingerprint must be a text, got 5"),
    ],
)
def test_a_file_that_is_not_of_the_format_is_rejected(folder: Path, changes: dict[str, Any], message: str):
    values = json.loads((folder / "gate.json").read_text())
    (folder / "gate.json").write_text(json.dumps(values | changes))
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_a_gate_of_another_base_is_rejected_with_both_fingerprints(folder: Path):
    with pytest.raises(CheckpointError, match="base_fingerprint abc belongs to another base: this one has def"):
        read(folder, base_fingerprint="def")
    assert read(folder).base_fingerprint == "abc"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_hidden_layers": 3}, r"layers\.2\..* is missing: 10 tensors, the base needs 15"),
        ({"num_hidden_layers": 1}, r"layers\.1\..* belongs to no layer of a base of 1 layers"),
        ({"head_dim": 16}, r"w1 has shape \[1, 12, 8\], but a base of 4 heads of width 16 needs \[1 or 4, 12, 16\]"),
        ({"num_attention_heads": 8}, r"g has shape \[4, 8\], but a base of 8 heads of width 8 needs \[1 or 8, 8\]"),
    ],
)
def test_tensors_of_another_shape_of_base_are_rejected(folder: Path, changes: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        read(folder, replace(CONFIG, **changes))


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda t: t.pop(f"{NAME}b2"), r"layers\.1\.self_attn\.memory_gate\.b2 is missing"),
        (lambda t: t.update({f"{NAME}b3": torch.ones(1)}), "b3 belongs to no layer"),
        (lambda t: t.update({f"{NAME}b1": torch.ones(1, 13)}), r"b1 has shape \[1, 13\]"),
        (lambda t: t.update({f"{NAME}b1": torch.ones(12)}), r"b1 has shape \[12\]"),
        (lambda t: t.update({f"{NAME}w2": torch.ones(4, 8, 12)}), r"w2 has shape \[4, 8, 12\], .* \[1 or 4, 8, 12"),
        (lambda t: t.update({f"{NAME}g": torch.ones(2, 8)}), r"g has shape \[2, 8\]"),
        (lambda t: t.update({f"{NAME}g": torch.ones(0, 8)}), r"g has shape \[0, 8\]"),
        (lambda t: t[f"{NAME}w1"].view(-1)[5:6].fill_(torch.nan), "w1 holds a number that is not finite"),
        (lambda t: t[f"{NAME}g"].view(-1)[5:6].fill_(torch.inf), "g holds a number that is not finite"),
        (lambda t: t.update({f"{NAME}g": torch.ones(4, 8, dtype=torch.int8)}), "g has dtype torch.int8"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_rejected(
    folder: Path, edit: Callable[[dict[str, torch.Tensor]], object], message: str
):
    tensors = load_file(folder / "gate.safetensors")
    edit(tensors)
    save_file(tensors, folder / "gate.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_a_number_that_a_dtype_cannot_hold_is_rejected(folder: Path):
    tensors = load_file(folder / "gate.safetensors")
    tensors[f"{NAME}b1"][0, 0] = 1e5
    save_file(tensors, folder / "gate.safetensors")
    stated = json.loads((folder / "gate.json").read_text())
    (folder / "gate.json").write_text(json.dumps({**stated, "gate_sha256": ""}))
    assert read(folder).layers[1].b1[0, 0] == 1e5
    with pytest.raises(CheckpointError, match=r"b1 holds a number that is not finite in torch\.float16"):
        gate_header(folder, CONFIG).read(CONFIG, torch.float16, CPU)


@pytest.fixture
def no_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_gate, "read_tensors", lambda path: pytest.fail("a tensor was read"))


@pytest.mark.usefixtures("no_tensor_is_read")
@pytest.mark.parametrize("per_head", [False, True])
def test_the_headers_of_a_gate_say_what_it_is(tmp_path: Path, per_head: bool):
    gate = replace(random_gate(CONFIG, RULES, per_head=per_head), base_fingerprint="abc")
    write_gate(tmp_path, gate)
    found = gate_header(tmp_path, CONFIG, base_fingerprint="abc")
    assert (found.rules, found.mlp_hidden, found.base_fingerprint) == (RULES, 12, "abc")
    assert (found.path, found.parameters) == (tmp_path / "gate.safetensors", gate.parameters)


@pytest.mark.usefixtures("no_tensor_is_read")
def test_bad_headers_are_rejected_before_a_tensor_is_read(folder: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match="this one has def"):
        read(folder, base_fingerprint="def")
    write_gate(tmp_path / "wide", random_gate(CONFIG, RULES, hidden=MAX_HIDDEN + 1))
    with pytest.raises(CheckpointError, match=f"MLP of h = {MAX_HIDDEN + 1} is wider than {MAX_HIDDEN}"):
        read(tmp_path / "wide")
    values = json.loads((folder / "gate.json").read_text())
    (folder / "gate.json").write_text(json.dumps(values | {"mlp_hidden": 13}))
    with pytest.raises(CheckpointError, match="mlp_hidden is 13, but the tensors have h = 12"):
        read(folder)


def test_a_truncated_or_missing_file_is_rejected(folder: Path):
    (folder / "gate.safetensors").write_bytes((folder / "gate.safetensors").read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="truncated"):
        read(folder)
    (folder / "gate.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no gate\.json"):
        read(folder / "gate.json")


def test_the_fingerprint_covers_only_weights(tmp_path: Path):
    count = SAMPLES * SAMPLE_BYTES  # four times what a small file may have to count whole
    values = torch.arange(count, dtype=torch.float32)
    save_file({"a": values}, tmp_path / "model.safetensors")
    before = base_fingerprint(tmp_path)
    write_gate(tmp_path, random_gate(CONFIG, RULES))
    (tmp_path / "config.json").write_text("{}")
    assert base_fingerprint(tmp_path) == before
    save_file({"a": values + 0.25}, tmp_path / "model.safetensors")  # as if trained further
    assert base_fingerprint(tmp_path) != before
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        base_fingerprint(tmp_path)


def test_every_byte_of_a_small_base_counts(tmp_path: Path):
    values = torch.zeros(1000)
    prints = set()
    for place in (0, 500, 999):
        save_file({"a": values.index_fill(0, torch.tensor(place), 1.0)}, tmp_path / "model.safetensors")
        prints.add(base_fingerprint(tmp_path))
    assert len(prints) == 3


def test_tensors_under_the_rules_of_others_are_rejected(tmp_path: Path, folder: Path):
    """As after a writer that was killed between the two files, and after a byte that changed."""
    kept = (folder / "gate.json").read_text()
    write_gate(folder, replace(random_gate(CONFIG, RULES, per_head=True), base_fingerprint="abc"))
    (folder / "gate.json").write_text(kept)
    with pytest.raises(
        CheckpointError, match=r"gate\.safetensors is not the file that gate\.json names by gate_sha256"
    ):
        read(folder)
    older = {name: value for name, value in json.loads(kept).items() if name != "gate_sha256"}
    (folder / "gate.json").write_text(json.dumps(older))
    assert read(folder).layers, "a gate of others states no digest"
    (folder / "gate.json").write_text(json.dumps({**older, "gate_sha256": 5}))
    with pytest.raises(CheckpointError, match="gate_sha256 must be a text, got 5"):
        read(folder)
