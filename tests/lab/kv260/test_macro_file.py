"""Macro files: written from a checkpoint, read back exactly, and rejected if damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.kv260.file_plan import ALIGNMENT, BINARY, DESCRIPTION
from edgeflow.lab.kv260.macro import CHANNELS
from edgeflow.lab.kv260.macro_file import macro_weights, open_macro, write_macro
from edgeflow_client.errors import CheckpointError
from tests.lab.kv260.checkpoint import decoder_of, write_awq_checkpoint

LINEAR = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_awq_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def written(checkpoint: Path, tmp_path: Path) -> Path:
    write_macro(checkpoint, tmp_path / "macros")
    return tmp_path / "macros"


def test_every_tensor_comes_back_bit_for_bit(checkpoint: Path, written: Path):
    file, stored = open_macro(written), load_file(checkpoint / "model.safetensors")
    for name in file.plan.linears:
        gemm = file.gemm(name)
        for part in ("qweight", "qzeros", "scales"):
            assert getattr(gemm, part).tobytes() == stored.pop(f"{name}.{part}").numpy().tobytes()
    for name in file.plan.tensors:
        assert np.array(file.half(name)).tobytes() == stored.pop(name).numpy().tobytes()
    assert not stored


def test_the_description_says_where_everything_is(written: Path):
    """Read as a program on the board would: JSON, offsets and bytes."""
    described, data = json.loads((written / DESCRIPTION).read_text()), (written / BINARY).read_bytes()
    assert described["binary"]["sha256"] == hashlib.sha256(data).hexdigest()
    linear = next(each for each in described["linears"] if each["name"] == LINEAR)
    assert (linear["outputs"], linear["inputs"], linear["group"]) == (64, 64, 32)
    assert [each["bytes"] for each in linear["channels"]] == [2 * 2 * 10 * 16] * CHANNELS  # blocks, macros, strips
    first = linear["channels"][1]["offset"]  # block 1: outputs 8 to 15
    assert first % ALIGNMENT == 0
    scales = np.frombuffer(data, "<f2", 8, first)
    assert np.array_equal(scales, open_macro(written).gemm(LINEAR).scales[0, 8:16])
    norm = next(each for each in described["tensors"] if each["name"] == "model.norm.weight")
    assert len(np.frombuffer(data, "<f2", 64, norm["offset"])) == 64 and norm["bytes"] == 128


def test_writing_reports_every_part(checkpoint: Path, tmp_path: Path):
    told: list[tuple[str, int, int]] = []
    plan = write_macro(checkpoint, tmp_path, lambda *what: told.append(what))
    parts = [*plan.linears, *plan.tensors]
    assert told == [(name, index, len(parts)) for index, name in enumerate(parts)]


def test_a_decoder_reads_its_weights_from_it(written: Path, checkpoint: Path):
    weights = macro_weights(open_macro(written), decoder_of(), torch.float32)
    stored = load_file(checkpoint / "model.safetensors")
    assert weights.linear(LINEAR, 64, 64).gemm()[0].equal(stored[f"{LINEAR}.qweight"])
    assert weights.take("model.embed_tokens.weight", None, 64).equal(stored["model.embed_tokens.weight"].float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 128}, r"model\.embed_tokens\.weight: expected shape \[272, 128\], found \[272, 64\]"),
        ({"intermediate_size": 128}, r"mlp\.gate_proj\.weight: expected shape \[128, 64\], found \[96, 64\]"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\..*: expected shape \[64, 64\], found none"),
        ({"num_hidden_layers": 1}, r"model\.layers\.1\..*: expected none, found shape"),
        ({"tie_word_embeddings": False}, r"lm_head\.weight: expected shape \[272, 64\], found none"),
        ({"rope_theta": 5e5}, r"config rope_theta: expected 500000\.0, found 10000\.0"),
        ({"rms_norm_eps": 1e-5}, r"config rms_norm_eps: expected 1e-05, found 1e-06"),
    ],
)
def test_a_file_of_another_model_is_rejected_by_name(written: Path, change: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        macro_weights(open_macro(written), decoder_of(**change), torch.float32)


def test_a_truncated_file_is_rejected(written: Path):
    data = (written / BINARY).read_bytes()
    (written / BINARY).write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=rf"{BINARY}: expected {len(data)} bytes, found {len(data) - 1}"):
        open_macro(written)


def test_a_changed_byte_is_rejected(written: Path):
    data = bytearray((written / BINARY).read_bytes())
    data[1000] ^= 1
    (written / BINARY).write_bytes(data)
    with pytest.raises(CheckpointError, match="expected SHA-256"):
        open_macro(written)


def test_a_missing_part_is_named(written: Path):
    (written / BINARY).unlink()
    with pytest.raises(CheckpointError, match=f"{BINARY} is missing"):
        open_macro(written)
    (written / DESCRIPTION).unlink()
    with pytest.raises(CheckpointError, match=f"no {DESCRIPTION}"):
        open_macro(written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(version=2), "version: expected 1, found 2"),
        (lambda values: values.update(format="gguf"), "format: expected 'edgeflow awq-macro', found 'gguf'"),
        (lambda values: values["linears"][0].update(inputs=-96), "lacks a name or a size"),
        (lambda values: values["linears"][0].update(inputs=90), "inputs must be a multiple of 32, found 90"),
        (lambda values: values["linears"][0].pop("group"), "lacks a name or a size"),
        (lambda values: values["linears"][0]["channels"][1].update(offset=1 << 40), "linears: expected .* found"),
        (lambda values: values["linears"].append(values["linears"][0]), "linears has a name twice"),
        (lambda values: values["tensors"][0].update(shape=[1 << 19, 1 << 19]), "tensors: expected .* found"),
        (lambda values: values["tensors"].pop(), "binary.bytes must be"),
        (lambda values: values.update(tensors=7), "lacks a name or a size"),
        (lambda values: values.update(config=None), "config must be an object"),
        (lambda values: values["binary"].update(sha256="0"), "expected SHA-256 0"),
    ],
)
def test_a_description_that_is_wrong_is_rejected(written: Path, change: Callable[[dict[str, Any]], Any], message: str):
    values = json.loads((written / DESCRIPTION).read_text())
    change(values)
    (written / DESCRIPTION).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        open_macro(written)


def rewritten(checkpoint: Path, out: Path, **tensors: torch.Tensor | None) -> Path:
    """A copy of the checkpoint with tensors replaced, or left out where None."""
    stored = load_file(checkpoint / "model.safetensors")
    changed = {name: tensor for name, tensor in {**stored, **tensors}.items() if tensor is not None}
    out.mkdir()
    (out / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    save_file(changed, out / "model.safetensors")
    return out


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{LINEAR}.scales": None}, rf"{LINEAR}\.scales is missing"),
        (
            {f"{LINEAR}.qzeros": torch.zeros(1, 8, dtype=torch.int32)},
            rf"{LINEAR}\.qzeros .*\[1, 8\], expected \[2, 8\]",
        ),
        ({f"{LINEAR}.scales": torch.zeros(3, 64).half()}, rf"{LINEAR}\.scales has shape \[3, 64\]"),
        ({"model.norm.weight": torch.full((64,), 1e6)}, r"model\.norm\.weight has numbers that FP16 cannot hold"),
    ],
)
def test_a_checkpoint_that_macros_cannot_hold_is_rejected(
    checkpoint: Path, tmp_path: Path, tensors: dict[str, torch.Tensor | None], message: str
):
    with pytest.raises(CheckpointError, match=message):
        write_macro(rewritten(checkpoint, tmp_path / "changed", **tensors), tmp_path / "out")
    assert not any((tmp_path / "out").glob("*"))


def test_a_float_checkpoint_is_rejected(tmp_path: Path):
    save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no linear in 4 bits"):
        write_macro(tmp_path, tmp_path / "out")
