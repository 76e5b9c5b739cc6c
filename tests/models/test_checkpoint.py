"""Reading checkpoints: sharded or whole, and one line for everything that can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from edgeflow.models.checkpoint import Weights, fingerprint, read_tensors
from edgeflow.models.shape import checkpoint_shape
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.weight_files import INDEX_FILE, SINGLE_FILE, find_weights
from edgeflow_client.errors import CheckpointError, ConfigError

CPU = torch.device("cpu")
TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2), "b.weight": torch.zeros(4)}


def open_weights(directory: Path) -> Weights:
    return Weights(directory, torch.float32, CPU)


def write_shards(directory: Path) -> None:
    save_file({name: TENSORS[name] for name in ("a.weight", "b.weight")}, directory / "one.safetensors")
    save_file({"a.bias": TENSORS["a.bias"]}, directory / "two.safetensors")
    names = {"a.weight": "one.safetensors", "b.weight": "one.safetensors", "a.bias": "two.safetensors"}
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": names}))


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_by_name_and_prefix(tmp_path: Path, sharded: bool):
    write_shards(tmp_path) if sharded else save_file(TENSORS, tmp_path / SINGLE_FILE)
    weights = open_weights(tmp_path)
    assert set(weights) == set(TENSORS) and len(weights) == 3
    below = weights.under("a.")
    assert set(below) == {"weight", "bias"} and "b.weight" not in below
    assert torch.equal(below.take("weight", 2, None), TENSORS["a.weight"])
    assert torch.equal(weights["b.weight"], TENSORS["b.weight"])


def test_tensors_come_in_the_dtype_requested(tmp_path: Path):
    save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / SINGLE_FILE)
    assert Weights(tmp_path, torch.float16, CPU).take("w", 3).dtype == torch.float16
    assert read_tensors(tmp_path / SINGLE_FILE)["w"].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float8_e4m3fn])
def test_quantised_tensors_are_rejected(dtype: torch.dtype):
    weights = Weights.of({"a.weight": torch.zeros(2).to(dtype)}, torch.float32, CPU)
    with pytest.raises(CheckpointError, match=r"a\.weight has dtype torch\..*expected floats"):
        weights.take("a.weight", 2)


def test_the_weight_of_a_projection_is_float_as_it_is_stored():
    weight = Weights.of(TENSORS, torch.bfloat16, CPU).linear("a", 2, 3)
    assert (weight.format, weight.shape, weight.dtype) == ("float", (2, 3), torch.bfloat16)
    assert torch.equal(weight.floats(), TENSORS["a.weight"].bfloat16())
    with pytest.raises(CheckpointError, match=r"a\.weight has shape \[2, 3\], expected \[3, 2\]"):
        Weights.of(TENSORS, torch.float32, CPU).linear("a", 3, 2)
    with pytest.raises(CheckpointError, match=r"a\.weight has dtype torch\.int8, expected floats"):
        Weights.of({"a.weight": TENSORS["a.weight"].char()}, torch.float32, CPU).linear("a", 2, 3)


def test_missing_and_misshapen_tensors_are_named_in_full():
    weights = Weights.of(TENSORS, torch.float32, CPU).under("a.")
    with pytest.raises(CheckpointError, match=r"a\.scale is missing"):
        weights.take("scale", 2)
    with pytest.raises(CheckpointError, match=r"a\.weight has shape \[2, 3\], expected \[any, 4\]"):
        weights.take("weight", None, 4)
    with pytest.raises(CheckpointError, match=r"a\.bias has shape \[2\], expected \[2, 1\]"):
        weights.take("bias", 2, 1)


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_truncated_file_is_reported_at_once(tmp_path: Path, kept: int):
    save_file(TENSORS, tmp_path / SINGLE_FILE)
    content = (tmp_path / SINGLE_FILE).read_bytes()
    (tmp_path / SINGLE_FILE).write_bytes(content[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or not safetensors"):
        open_weights(tmp_path)


def test_a_truncated_shard_is_reported_at_once(tmp_path: Path):
    write_shards(tmp_path)
    (tmp_path / "two.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(CheckpointError, match=r"two\.safetensors is truncated"):
        open_weights(tmp_path)


@pytest.mark.parametrize("kept", ["both", "index", "broken"])
def test_a_whole_file_is_read_and_not_the_shards_beside_it(tmp_path: Path, kept: str):
    """As transformers does; an index often remains of the model that a checkpoint was made of."""
    write_shards(tmp_path)
    if kept != "both":
        (tmp_path / "one.safetensors").unlink()
        (tmp_path / "two.safetensors").write_bytes(b"cut off")
    if kept == "broken":
        (tmp_path / INDEX_FILE).write_text("{")
    assert find_weights_or_none(tmp_path) == ("" if kept == "both" else None)
    save_file({"a.weight": torch.full((2, 3), 7.0)}, tmp_path / SINGLE_FILE)
    weights = open_weights(tmp_path)
    assert set(weights) == {"a.weight"} and weights["a.weight"].unique().item() == 7
    files = find_weights(tmp_path)
    assert files.paths == (tmp_path / SINGLE_FILE,) and files.places is None
    assert files.remark == f"{tmp_path / SINGLE_FILE} is read, and {INDEX_FILE} beside it is not: remove the older one"


def find_weights_or_none(directory: Path) -> str | None:
    """The remark on a directory; None where it cannot be read."""
    try:
        return find_weights(directory).remark
    except CheckpointError:
        return None


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": ["a"]}', "{"])
def test_an_index_without_a_map_is_reported(tmp_path: Path, index: str):
    (tmp_path / INDEX_FILE).write_text(index)
    with pytest.raises(CheckpointError, match=INDEX_FILE):
        open_weights(tmp_path)


def test_an_absent_shard_is_named(tmp_path: Path):
    write_shards(tmp_path)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks two\.safetensors"):
        open_weights(tmp_path)


def test_an_index_that_promises_too_much(tmp_path: Path):
    write_shards(tmp_path)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    index["weight_map"]["c"] = "one.safetensors"
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="lacks the tensor c that the index promises"):
        open_weights(tmp_path)["c"]


def test_a_fingerprint_leaves_out_what_is_no_file(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    before = fingerprint(tmp_path)
    (tmp_path / "optimizer.pt").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder.pt").mkdir()
    assert fingerprint(tmp_path) == before
    (tmp_path / "optimizer.pt").unlink()
    (tmp_path / "optimizer.pt").write_bytes(b"weights")
    assert fingerprint(tmp_path) != before


def test_a_fingerprint_of_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError))
    with pytest.raises(CheckpointError, match=r"config\.json is unreadable: copy the checkpoint again"):
        fingerprint(tmp_path)


@pytest.mark.parametrize("config", [{"type": "act", "dim_model": 512}, {}])
def test_a_checkpoint_without_a_decoder_has_no_shape(tmp_path: Path, config: dict):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        checkpoint_shape(tmp_path, 16)
    assert str(caught.value) == (
        f"{tmp_path}: config.json has neither text_config nor hidden_size, so the model has no decoder whose operators "
        "are chosen"
    )


def test_an_index_cannot_lead_out_of_the_directory(tmp_path: Path):
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file(TENSORS, tmp_path / "outside.safetensors")
    (inside / INDEX_FILE).write_text(json.dumps({"weight_map": {"b.weight": "../outside.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"lacks outside\.safetensors"):
        open_weights(inside)


@pytest.mark.parametrize("content", [{"metadata": {}}, {"weight_map": []}])
def test_an_index_without_a_map(tmp_path: Path, content: object):
    (tmp_path / INDEX_FILE).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="no weight_map"):
        open_weights(tmp_path)


def test_only_safetensors_are_read(tmp_path: Path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match="only safetensors are supported"):
        open_weights(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b'"text"'])
def test_unreadable_json_is_reported(tmp_path: Path, content: bytes):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_absent_json(tmp_path: Path):
    assert read_json(tmp_path / "some.json", required=False) == {}
    with pytest.raises(CheckpointError, match=r"has no some\.json"):
        read_json(tmp_path / "some.json")
