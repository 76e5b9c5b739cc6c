"""Checkpoints to chunks, frames packed into each other's passes, against the networks written out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeflow_client.types import Mode
from tests.policies.flow.tiny import CHARACTERS, KINDS, TOP, WRIST, change_tensors, write_checkpoint
from tests.policies.flow.tiny_policies import answers, loaded, observation
from tests.policies.flow.twin import FlowPolicyTwin
from tests.policies.flow.weights import NAMES, Tiny, weights_of

FRAMES = (observation(1), observation(2, WRIST, instruction="put_it there\n"), observation(3, TOP), observation(4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [Mode.SERIAL, Mode.PIPELINED])
def test_chunks_equal_the_written_out_networks(tmp_path: Path, kind: str, mode: Mode):
    tiny = Tiny(kind=kind, seed=2)
    policy = loaded(write_checkpoint(tmp_path, tiny), candidates=2)
    frames = [policy.prepare(each) for each in FRAMES]
    twin = FlowPolicyTwin(tiny, weights_of(tiny, len(CHARACTERS)))
    assert [len(frame.pixel_values) for frame in frames] == [2, 1, 1, 2]
    for frame, found in zip(frames, answers(policy, frames, mode), strict=True):
        wanted = torch.stack([twin.chunk(frame, candidate) for candidate in range(2)])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{"side": 20, "scale": 1}, {"head_dim": 4, "layers": 2, "patch": 2}])
def test_other_sizes_of_smolvla(tmp_path: Path, changes: dict[str, int]):
    tiny = Tiny(kind="smolvla", **changes)
    policy = loaded(write_checkpoint(tmp_path, tiny))
    frame = policy.prepare(FRAMES[0])
    assert policy.fixed_rows == 2 * tiny.image_rows + 1
    wanted = FlowPolicyTwin(tiny, weights_of(tiny, len(CHARACTERS))).chunk(frame)
    torch.testing.assert_close(answers(policy, [frame], Mode.SERIAL)[0][0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_the_prefix_of_lerobot(tmp_path: Path, kind: str):
    tiny = Tiny(kind=kind)
    both = [loaded(write_checkpoint(tmp_path / (name or "bare"), tiny, prefix=name)) for name in ("", "model.")]
    chunks = [answers(policy, [policy.prepare(FRAMES[0])], Mode.SERIAL)[0] for policy in both]
    assert torch.equal(*chunks)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_a_tower_under_its_newer_name(tmp_path: Path, kind: str):
    """transformers 5 dropped `vision_model.` from the names of the tower, which LeRobot's files follow."""
    tiny = Tiny(kind=kind)
    older, newer = (write_checkpoint(tmp_path / name, tiny) for name in ("older", "newer"))
    tensors = load_file(newer / "model.safetensors")
    renamed = {name.replace("vision_tower.vision_model.", "vision_tower."): each for name, each in tensors.items()}
    assert renamed.keys() != tensors.keys()
    change_tensors(newer / "model.safetensors", renamed)
    chunks = [answers(policy, [policy.prepare(FRAMES[0])], Mode.SERIAL)[0] for policy in map(loaded, (older, newer))]
    assert torch.equal(*chunks)


def test_the_embedding_counts_where_the_head_is_another(tmp_path: Path):
    """Files saved from tied weights have the head alone; later ones both, and the head is not used then."""
    tiny = Tiny(kind="pi05")
    tied, untied = (write_checkpoint(tmp_path / name, tiny) for name in ("tied", "untied"))
    head = f"model.{NAMES['pi05']['embedding']}.weight"
    tensors = load_file(untied / "model.safetensors")
    tensors[f"model.{NAMES['pi05']['text']}embed_tokens.weight"] = tensors[head].clone()
    tensors[head] = torch.randn_like(tensors[head])
    change_tensors(untied / "model.safetensors", tensors)
    first, second = (loaded(each) for each in (tied, untied))
    chunks = [answers(each, [each.prepare(FRAMES[0])], Mode.SERIAL)[0] for each in (first, second)]
    assert torch.equal(*chunks)


@pytest.mark.parametrize(
    ("kind", "old", "new"), [("pi05", "time_mlp", "action_time_mlp"), ("pi0", "action_time_mlp", "time_mlp")]
)
def test_the_time_mlp_under_the_other_policy_s_name(tmp_path: Path, kind: str, old: str, new: str):
    tiny = Tiny(kind=kind)
    plain, renamed = (write_checkpoint(tmp_path / name, tiny) for name in ("plain", "renamed"))
    tensors = load_file(renamed / "model.safetensors")
    change_tensors(
        renamed / "model.safetensors",
        {name.replace(f"model.{old}", f"model.{new}"): tensor for name, tensor in tensors.items()},
    )
    first, second = (loaded(each) for each in (plain, renamed))
    chunks = [answers(each, [each.prepare(FRAMES[0])], Mode.SERIAL)[0] for each in (first, second)]
    assert torch.equal(*chunks)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_near_float32(tmp_path: Path, kind: str):
    """Norms and projections stay in float32; 8 bits of the rest move a chunk by a few hundredths."""
    directory = write_checkpoint(tmp_path, Tiny(kind=kind))
    exact, rough = (loaded(directory, dtype) for dtype in (torch.float32, torch.bfloat16))
    frames = [exact.prepare(each) for each in FRAMES]
    assert rough.dtype == torch.bfloat16
    pairs = zip(answers(exact, frames, Mode.SERIAL), answers(rough, frames, Mode.PIPELINED), strict=True)
    off = max((a - b).abs().max().item() for a, b in pairs)
    assert 1e-4 < off < 0.25
