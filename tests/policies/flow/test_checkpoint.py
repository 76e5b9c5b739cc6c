"""Checkpoints and settings that cannot be served are refused by name, before weights are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgeflow.engine.flow.program import FlowState
from edgeflow.engine.policy import LoadOptions
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.policies.flow.tiny import (
    AFTER,
    BEFORE,
    KINDS,
    STATISTICS,
    TOP,
    WRIST,
    change_json,
    change_tensors,
    write_checkpoint,
)
from tests.policies.flow.tiny_policies import RATE, loaded
from tests.policies.flow.weights import NAMES, Tiny

SMOL, PI0, PI05 = (Tiny(kind=kind) for kind in KINDS)
STATELESS = {TOP: {"type": "VISUAL", "shape": [3, 8, 8]}}


def check(directory: Path, **settings: Any) -> None:
    family_of(directory).check(directory, {**RATE, **settings})


@pytest.mark.parametrize(
    ("tiny", "changes", "message"),
    [
        (SMOL, {"n_obs_steps": 2}, "config.json.n_obs_steps is 2; served: 1"),
        (SMOL, {"add_image_special_tokens": True}, "tokenizer.json lacks <fake_token_around_image>"),
        (SMOL, {"add_image_special_tokens": True, "empty_cameras": 17}, "empty_cameras is 17; served: to 16"),
        (SMOL, {"chunk_size": 1 << 15}, "a horizon of 32768 is too long"),
        (SMOL, {"n_action_steps": 7}, "n_action_steps is 7; served: at most chunk_size, 6"),
        (SMOL, {"num_steps": 101}, "num_steps is 101; served: 1 to 100"),
        (SMOL, {"num_steps": 0}, "num_steps has 0; served: 1 to 65536"),
        (SMOL, {"resize_imgs_with_padding": [16, 32]}, "is 16 x 32; served: squares of at most 1024"),
        (SMOL, {"resize_imgs_with_padding": [4096, 4096]}, "is 4096 x 4096; served: squares of at most 1024"),
        (SMOL, {"resize_imgs_with_padding": [12, 12]}, "image size does not fit the other sizes"),
        (SMOL, {"num_vlm_layers": 9}, "num_vlm_layers is 9; served: to 4"),
        (SMOL, {"num_expert_layers": 1}, "num_expert_layers is 1; served: num_vlm_layers, 3"),
        (SMOL, {"attention_mode": "none"}, "attention_mode is 'none'; served: cross_attn, self_attn"),
        (SMOL, {"vlm_model_name": "other/model"}, "vlm_model_name is 'other/model', which is not a folder"),
        (SMOL, {"vlm_model_name": "../vlm"}, "vlm_model_name is '../vlm', which is not a folder"),
        (SMOL, {"vlm_model_name": "v" * 300}, "which is not a folder"),
        (SMOL, {"vlm_model_name": "vlm\0"}, "which is not a folder"),
        (
            SMOL,
            {"expert_width_multiplier": 1e308},
            "expert_width_multiplier is 1e+308; served: an expert of at most 65536",
        ),
        (SMOL, {"max_state_dim": 2}, "observation.state has 3 numbers; served: at most its padded 2"),
        (SMOL, {"max_action_dim": 1 << 14}, "max_action_dim is 16384; served: 1 to 1024"),
        (SMOL, {"min_period": 5.0}, "min_period is 5.0; served: at most max_period, 4.0"),
        (SMOL, {"tokenizer_max_length": 4096}, "tokenizer_max_length is 4096; served: 1 to 1024"),
        (PI0, {"use_relative_actions": True}, "use_relative_actions is True; served: False"),
        (PI0, {"paligemma_variant": "gemma_9b"}, "is 'gemma_9b'; served: gemma_2b, gemma_300m"),
        (PI0, {"image_resolution": [18, 18]}, "image_resolution is 18 with"),
        (SMOL, {"input_features": STATELESS}, "input_features lacks observation.state; served: with a state"),
        (PI0, {"input_features": STATELESS}, "input_features lacks observation.state; served: with a state"),
        (PI0, {"input_features": {}}, "input_features has 0 cameras; served: 1 to 16"),
        (
            PI05,
            {"rtc_training_max_delay": -1},
            "rtc_training_max_delay is -1; served: integers from 0 to chunk_size, 6",
        ),
        (PI05, {"use_visual_memory": True}, "use_visual_memory is True; served: False"),
    ],
)
def test_configurations_that_are_not_served(tmp_path: Path, tiny: Tiny, changes: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=re.escape(message)):
        check(write_checkpoint(tmp_path, tiny, **changes))


def test_cameras_that_the_training_did_not_have_are_no_inputs(tmp_path: Path):
    camera = {"type": "VISUAL", "shape": [3, 8, 8]}
    features = {TOP: camera, "observation.images.empty_camera_0": camera}
    features["observation.state"] = {"type": "STATE", "shape": [3]}
    policy = loaded(write_checkpoint(tmp_path, PI0, input_features=features, empty_cameras=1))
    assert [each.name for each in policy.inputs.cameras] == [TOP]


def _step(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        change(next(step for step in content["steps"] if step["registry_name"] == name))

    return apply


def _moved(name: str, to: int) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        step = next(step for step in content["steps"] if step["registry_name"] == name)
        content["steps"].remove(step)
        content["steps"].insert(to, step)

    return apply


def _set(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda step: step["config"].update(values)


WRITER = "pi05_prepare_state_tokenizer_processor_step"
TOKENIZER, NORMALISE = "tokenizer_processor", "normalizer_processor"
RELATIVE, OLDER = "relative_actions_processor", "delta_actions_processor"
ABSOLUTE = "absolute_actions_processor"
IMAGES = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (BEFORE, _step(RELATIVE, _set(enabled=True)), f"the step {RELATIVE} is enabled; served: disabled"),
        (BEFORE, _step(RELATIVE, _set(enabled=1)), "config.enabled is 1; served: true and false"),
        (AFTER, _step(ABSOLUTE, _set(enabled=True)), f"the step {ABSOLUTE} is enabled; served: disabled"),
        (BEFORE, _step(TOKENIZER, _set(padding_side="left")), "padding_side is 'left'; served: 'right'"),
        (BEFORE, _step(TOKENIZER, _set(max_length=5000)), "max_length is 5000; served: 1 to 1024"),
        (BEFORE, _step(TOKENIZER, _set(tokenizer_name="/etc")), "put that tokenizer into"),
        (BEFORE, _step(TOKENIZER, _set(tokenizer_name="t" * 300)), "put that tokenizer into"),
        (BEFORE, _step("device_processor", _set(float_dtype="bfloat16")), "float_dtype is 'bfloat16'"),
        (BEFORE, _moved(NORMALISE, 6), f"{NORMALISE} comes after {WRITER}; served: before it"),
        (BEFORE, _moved(WRITER, 6), f"{WRITER} comes after {TOKENIZER}; served: before it"),
        (BEFORE, lambda content: content["steps"].pop(4), f"has 0 steps {WRITER}; served: one"),
        (BEFORE, lambda content: content["steps"].append({"class": "module.Step"}), "the step module.Step is not"),
        (BEFORE, _step(NORMALISE, _set(norm_map=IMAGES)), "lacks observation.images.top.mean"),
        (BEFORE, _step(NORMALISE, lambda step: step.pop("state_file")), "no statistics for observation.state"),
    ],
)
def test_pipelines_that_are_not_served(tmp_path: Path, file: str, change: Callable[[Any], None], message: str):
    directory = write_checkpoint(tmp_path, PI05)
    if "tokenizer" in message:
        (directory / "tokenizer" / "tokenizer.json").unlink()
    change_json(directory / f"{file}.json", change)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        check(directory)


@pytest.mark.parametrize("tiny", [PI0, PI05], ids=lambda tiny: tiny.kind)
@pytest.mark.parametrize("name", [RELATIVE, OLDER])
def test_the_step_of_relative_actions_has_two_names(tmp_path: Path, tiny: Tiny, name: str):
    directory = write_checkpoint(tmp_path, tiny)
    change_json(directory / f"{BEFORE}.json", _step(RELATIVE, lambda step: step.update(registry_name=name)))
    check(directory)
    change_json(directory / f"{BEFORE}.json", _step(name, _set(enabled=True)))
    with pytest.raises(CheckpointError, match=f"the step {name} is enabled; served: disabled"):
        check(directory)
    change_json(directory / f"{BEFORE}.json", _step(name, lambda step: step.update(config={})))
    check(directory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "policy.steps: 0 must be 1 to 100"),
        ({"steps": 101}, "policy.steps: 101 must be 1 to 100"),
        ({"candidates": 17}, "policy.candidates: 17 must be 1 to 16"),
        ({"control_rate_hz": 0.0}, "policy.control_rate_hz: 0.0 must be above 0 and at most 1000"),
        ({"noise_seed": -1}, "policy.noise_seed: -1"),
        (
            {"rtc": {"schedule": "COSINE"}},
            "policy.rtc.schedule: \"COSINE\" should be 'ZEROS', 'ONES', 'LINEAR' or 'EXP'",
        ),
        ({"rtc": {"max_guidance_weight": 101.0}}, "policy.rtc.max_guidance_weight: 101.0 must be 0 to 100"),
        ({"rtc": {"execution_horizon": 7}}, "policy.rtc.execution_horizon: 7 must be 1 to 6"),
        ({"rtc": {"mode": "trained", "execution_horizon": 2}}, "policy.rtc.mode: this checkpoint does not say"),
        ({"rtc": {"trained_max_delay": 2}}, 'policy.rtc.trained_max_delay: is for "mode": "trained"'),
        ({"rtc": {"mode": "trained", "trained_max_delay": 7}}, "policy.rtc.trained_max_delay: 7 must be 1 to 6"),
        ({"absent_cameras": ["front"]}, "policy.absent_cameras: 'front' is not one of"),
        ({"absent_cameras": [TOP, WRIST]}, "policy.absent_cameras: names all cameras"),
        ({"action_names": ["a", "b"]}, "policy.action_names: 2 entries, but action has 3 numbers"),
        ({"action_names": ["a", "b", "a"]}, "policy.action_names: 'a' is there twice"),
        ({"action_low": [0.0] * 3, "action_high": [1.0, 0.0, 1.0]}, "policy.action_high: 0.0 is not above action_low"),
        ({"state_units": ["m"]}, "policy.state_units: 1 entries, but observation.state has 3 numbers"),
        ({"colour": "red"}, "policy.colour: this family, pi0, has no such setting"),
    ],
)
def test_settings_that_are_not_served(tmp_path: Path, settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(write_checkpoint(tmp_path, PI0), **settings)


def test_the_rate_must_be_configured(tmp_path: Path):
    directory = write_checkpoint(tmp_path, SMOL)
    with pytest.raises(
        ConfigError, match=re.escape("policy.control_rate_hz: is missing; the checkpoint does not state it")
    ):
        family_of(directory).check(directory, {})
    with pytest.raises(ConfigError, match="center_crop: policies of this family, smolvla, take whole images"):
        family_of(directory).load(directory, RATE, LoadOptions(center_crop=True))


@pytest.mark.parametrize("name", ["model.safetensors", f"{BEFORE}.json", STATISTICS, "vlm/tokenizer.json"])
def test_files_that_are_missing(tmp_path: Path, name: str):
    directory = write_checkpoint(tmp_path, SMOL)
    (directory / name).unlink()
    with pytest.raises(CheckpointError, match=re.escape(Path(name).name)):
        check(directory)


DAMAGED = {
    "smolvla": [
        "state_proj.bias",
        f"{NAMES['smolvla']['expert']}layers.1.self_attn.k_proj.weight",
    ],
    "pi0": ["action_out_proj.bias", "state_proj.weight", f"{NAMES['pi0']['vision']}post_layernorm.weight"],
    "pi05": [
        "time_mlp_out.weight",
        f"{NAMES['pi05']['expert']}norm.dense.bias",
        f"{NAMES['pi05']['embedding']}.weight",
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in DAMAGED.items() for name in names])
def test_tensors_that_are_missing_or_misshapen(tmp_path: Path, kind: str, name: str):
    directory = write_checkpoint(tmp_path, Tiny(kind=kind))
    tensors = load_file(directory / "model.safetensors")
    own = tensors.pop(f"model.{name}")
    change_tensors(directory / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=re.escape(name.rpartition(".")[0].split(".")[-1])):
        loaded(directory)
    change_tensors(directory / "model.safetensors", {**tensors, f"model.{name}": own.repeat(*[2] * own.dim())})
    with pytest.raises(CheckpointError, match=r"has shape \[.*\], expected"):
        loaded(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_the_footprint_counts_what_is_loaded(tmp_path: Path, kind: str):
    """All tensors but dead heads and layers, split between the stacks, which may change precision, and the rest."""
    tiny = Tiny(kind=kind)
    directory = write_checkpoint(tmp_path, tiny)
    tensors = load_file(directory / "model.safetensors")
    dead = {"smolvla": "vlm_with_expert.vlm.lm_head.weight"}.get(
        kind, "paligemma_with_expert.gemma_expert.lm_head.weight"
    )
    unused = {f"model.{dead}": torch.zeros(999, 7)}
    if kind == "smolvla":
        unused["model.vlm_with_expert.vlm.model.text_model.layers.11.mlp.up_proj.weight"] = torch.zeros(999, 7)
    change_tensors(directory / "model.safetensors", {**tensors, **unused})
    found = family_of(directory).load(directory, {**RATE, "candidates": 2}, LoadOptions()).footprint(torch.float32)
    times = (tiny.steps + 1) * tiny.expert * (3 * (2 * tiny.layers + 1) if kind == "pi05" else 1)
    everything = times + sum(each.numel() for name, each in tensors.items() if "norm.dense" not in name)
    stacks = [name for name in tensors if ".layers." in name and "encoder" not in name]
    projections = sum(tensors[name].numel() for name in stacks if "_proj" in name)
    assert found.decoder + found.other == everything
    assert 0 <= found.decoder - projections <= sum(tensors[name].numel() for name in stacks) - projections
    assert (found.slots, found.positions) == (4, loaded(directory).fixed_rows + 2 * (6 + (kind == "pi0")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_footprint_has_the_state_of_slots(tmp_path: Path, kind: str):
    directory = write_checkpoint(tmp_path, Tiny(kind=kind))

    def frame_bytes(candidates: int) -> int:
        published = family_of(directory).load(directory, {**RATE, "candidates": candidates}, LoadOptions())
        return published.footprint(torch.float32).frame_bytes

    def state_bytes(candidates: int) -> int:
        sizes = loaded(directory, candidates=candidates).sizes
        return FlowState(sizes.steps + 1, sizes, torch.device("cpu"))._lines.nbytes

    assert frame_bytes(9) - frame_bytes(1) == state_bytes(9) - state_bytes(1) > 0
