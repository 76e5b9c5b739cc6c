"""Which policies are quantised, with which groups, and that their scales keep the function of the whole policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.quantize.policies.served import ActionRows, ServedPolicy, action_rows, prefix_rows
from edgeflow.lab.quantize.policies.sources import is_policy, open_policy
from edgeflow.lab.quantize.search.block_search import SearchSettings, run_batches, search_block
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.lab.quantize.checkpoints import write_source as write_chat
from tests.lab.quantize.policies.cases import EMBEDDED, KINDS, checkpoint, observations
from tests.policies.flow import tiny
from tests.policies.flow.weights import Tiny

SETTINGS = SearchSettings(group=32, identity=False, clip=False)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_the_embedded_policies_have_groups_of_32(kind: str):
    found = open_policy(EMBEDDED[kind]).source.grouping
    assert (found.group, found.inner) == (32, 352)


def written(folder: Path, kind: str) -> Path:
    """A tiny policy; in SmolVLA's, every head has its own keys and values, as wide as the output projection."""
    if kind == "smolvla":
        return tiny.write_checkpoint(folder, Tiny(kind=kind, width=32, expert=24, inner=64, heads=2, head_dim=16))
    return checkpoint(kind, folder)


@torch.inference_mode()
def with_scales(source: Path, folder: Path) -> Path:
    """A copy in floats whose language model has the scales of a search in it, and nothing quantised."""
    checkpoint_of = open_policy(source)
    decoder = checkpoint_of.source.decoder
    kind = checkpoint_of.family.name
    served = ServedPolicy(source, checkpoint_of.family, observations(kind, 6))
    rows = (prefix_rows if checkpoint_of.actions is None else action_rows)(served)
    hidden, rotation = list(rows.hidden), decoder.rotation(rows.longest)
    tensors = load_file(source / "model.safetensors")
    for index, block in enumerate(decoder.blocks()):
        runs = run_batches(block, hidden, rotation)
        scaled = search_block(block, runs, rotation, SETTINGS).scaled(block)
        tensors |= {decoder.block_prefix(index) + name: each.contiguous() for name, each in scaled.tensors.items()}
        hidden = [run.hidden for run in runs]
    for path in source.rglob("*"):
        if path.is_file() and path.name != "model.safetensors":
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_with_its_scales_is_the_same_function(kind: str, tmp_path: Path):
    """Where values that the expert reads are scaled, chunks are off by 0.1; where norms are, by 0.03 and more."""
    source = written(tmp_path / "source", kind)
    scaled = with_scales(source, tmp_path / "scaled")
    family, seen = open_policy(source).family, observations(kind, 4, first=50)
    before, after = (ServedPolicy(folder, family, seen) for folder in (source, scaled))
    if kind == "openvla":
        assert list(before.tokens()) == list(after.tokens())
    else:
        wanted = before.chunks()
        assert (after.chunks() - wanted).norm() <= 1e-5 * wanted.norm()


def test_layers_that_are_not_used_are_kept(tmp_path: Path):
    source = checkpoint("smolvla", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    stem = "model.vlm_with_expert.vlm.model.text_model.layers."
    extra = {name.replace("layers.2.", "layers.3."): each for name, each in tensors.items() if f"{stem}2." in name}
    save_file(tensors | {name: each.clone() for name, each in extra.items()}, source / "model.safetensors")
    assert "text_model.layers.3." in open_policy(source).source.kept


def test_a_prefix_whose_mlp_has_no_whole_groups_is_rejected(tmp_path: Path):
    source = tiny.write_checkpoint(tmp_path, Tiny(kind="pi0", width=32, expert=24, inner=48))
    with pytest.raises(CheckpointError, match="width 48 has no whole groups of 32"):
        open_policy(source)


def test_a_quantised_policy_and_other_families_are_rejected(tmp_path: Path):
    source = checkpoint("pi05", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(CheckpointError, match="quantised already"):
        open_policy(source)
    (source / "config.json").write_text(json.dumps(config | {"type": "act"}))
    with pytest.raises(CheckpointError, match="family act are not quantised; openvla, smolvla, pi0, pi05 are"):
        open_policy(source)


def test_a_chat_model_is_no_policy(tmp_path: Path):
    assert not is_policy(write_chat(tmp_path / "chat"))
    assert is_policy(checkpoint("openvla", tmp_path / "policy"))


@pytest.mark.parametrize(("kind", "frames_of"), [("pi0", "openvla"), ("openvla", "pi0")])
def test_frames_that_a_policy_does_not_take_are_rejected(kind: str, frames_of: str, tmp_path: Path):
    source = checkpoint(kind, tmp_path)
    with pytest.raises(ConfigError, match="calibration: the recorded frames do not fit the policy"):
        ServedPolicy(source, open_policy(source).family, observations(frames_of, 2))


def test_the_rows_of_a_prefix_have_no_tokens(tmp_path: Path):
    source = checkpoint("pi0", tmp_path)
    served = ServedPolicy(source, open_policy(source).family, observations("pi0", 2))
    assert not isinstance(prefix_rows(served), ActionRows)
