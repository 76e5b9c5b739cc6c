"""The policy: what it states, frames to actions, batches, and damaged weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from edgeflow.contract import CameraNeed, Image, Observation, PolicyInputs
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.verify.offline import run_once
from edgeflow.policies.act.family import ACT
from edgeflow.policies.act.policy import ACTPolicy
from edgeflow.policies.act.resnet import map_side
from edgeflow.policies.tensors import unit_range
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument
from edgeflow_client.types import StateSpec
from tests.engine.control.recorded_batches import check_batches
from tests.policies.act.checkpoint import (
    BEFORE_STATE,
    MEAN_STD,
    change_json,
    change_tensors,
    normalised,
    restored,
    write_checkpoint,
)
from tests.policies.act.twin import ACTTwin, TwinSize

CPU = torch.device("cpu")
RATE = {"control_rate_hz": 40}
SIZE = TwinSize(environment=2)


def load(directory: Path, dtype: torch.dtype = torch.float32, **settings) -> ACTPolicy:
    published = ACT.load(directory, {**RATE, **settings}, LoadOptions())
    return published.load(Placement(dtype=dtype, device=CPU, table=built_in_table()))


def observe(policy: ACTPolicy, seed: int) -> Observation:
    make = np.random.default_rng(seed)
    images = {
        each.name: Image(
            each.height, each.width, make.integers(0, 256, each.height * each.width * 3, np.uint8).tobytes()
        )
        for each in policy.inputs.cameras
    }
    state = {each.name: tuple(make.normal(size=each.size).tolist()) for each in policy.inputs.state}
    return Observation(images=images, state=state, instruction="pick up the cube")


@torch.inference_mode()
def run(policy: ACTPolicy, observations: list[Observation]) -> torch.Tensor:
    return run_once(policy, [policy.prepare(each) for each in observations])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("act"), SIZE)


@pytest.fixture(scope="module")
def policy(checkpoint: Path) -> ACTPolicy:
    return load(checkpoint)


def test_inputs_are_those_of_the_checkpoint_in_its_order(checkpoint: Path):
    policy = load(checkpoint, state_names=list("abcde"))
    assert policy.inputs == PolicyInputs(
        cameras=(
            CameraNeed(name="observation.images.top", width=56, height=40),
            CameraNeed(name="observation.images.side", width=65, height=33),
        ),
        state=(
            StateSpec(name="observation.state", size=5, elements=tuple("abcde")),
            StateSpec(name="observation.environment_state", size=2),
        ),
    )


def test_renamed_inputs_are_requested_by_their_observed_names(tmp_path: Path):
    rename = {"observation.images.front": "observation.images.top"}
    policy = load(write_checkpoint(tmp_path, TwinSize(), rename=rename))
    assert [each.name for each in policy.inputs.cameras] == ["observation.images.front", "observation.images.side"]
    assert run(policy, [observe(policy, 0)]).shape == (1, 7, 3)


def test_an_answer_is_one_pass_of_one_row(policy: ACTPolicy):
    assert policy.program().passes == policy.program("action").passes == 1
    assert policy.fixed_rows + policy.text_rows("a long instruction") == 1


def test_the_schema_has_the_configured_names_and_step(policy: ACTPolicy, checkpoint: Path):
    schema = policy.action_schema()
    assert schema == policy.action_schema("action")
    assert (schema.names, schema.units, schema.relative) == (("a0", "a1", "a2"), ("1",) * 3, (False,) * 3)
    assert (schema.low, schema.high) == ((-math.inf,) * 3, (math.inf,) * 3)
    assert (schema.control_rate_hz, schema.horizon, schema.step_ms) == (40.0, 7, 25.0)
    assert load(checkpoint, action_names=["x", "y", "z"]).action_schema().names == ("x", "y", "z")


def test_a_single_action_has_no_step(tmp_path: Path):
    schema = load(write_checkpoint(tmp_path, n_action_steps=1)).action_schema()
    assert (schema.horizon, schema.step_ms) == (1, 0.0)


def test_another_dataset_is_rejected(policy: ACTPolicy):
    with pytest.raises(CheckpointError) as caught:
        policy.action_schema("bridge")
    assert str(caught.value) == "unnorm_key: 'bridge' is not one of action"


def test_bytes_to_actions_as_the_twin(policy: ACTPolicy, checkpoint: Path):
    observations = [observe(policy, seed) for seed in range(3)]
    statistics = load_file(checkpoint / BEFORE_STATE)
    inputs = {}
    for name in SIZE.cameras:
        frames = [np.frombuffer(each.images[name].data, np.uint8) for each in observations]
        height, width = SIZE.cameras[name]
        pixels = np.stack(frames).reshape(3, height, width, 3).transpose(0, 3, 1, 2).astype(np.float32) / 255
        inputs[name] = normalised(name, torch.from_numpy(pixels), statistics, MEAN_STD)
    for name in SIZE.vectors:
        inputs[name] = normalised(name, torch.tensor([each.state[name] for each in observations]), statistics, MEAN_STD)
    chunk = ACTTwin(SIZE).record(
        {name: inputs[name] for name in SIZE.cameras}, {name: inputs[name] for name in SIZE.vectors}
    )["out.action_chunk"]
    found = run(policy, observations)
    torch.testing.assert_close(found, chunk, rtol=0, atol=1e-5)
    actions = policy.actions(found[0].double().numpy(), "action")
    assert actions.dtype == np.float64
    np.testing.assert_allclose(actions, restored(chunk[0], statistics, MEAN_STD).numpy(), rtol=0, atol=1e-5)


@given(seeds=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_a_batch_is_its_frames_one_by_one(policy: ACTPolicy, seeds: list[int]):
    observations = [observe(policy, seed) for seed in seeds]
    singly = torch.cat([run(policy, [each]) for each in observations])
    torch.testing.assert_close(run(policy, observations), singly, rtol=0, atol=1e-5)


def test_every_input_changes_the_actions(policy: ACTPolicy):
    seen = observe(policy, 0)
    chunk = run(policy, [seen])
    for name in seen.images:
        other = observe(policy, 1).images[name]
        changed = Observation(images={**seen.images, name: other}, state=seen.state, instruction="")
        assert (run(policy, [changed]) - chunk).abs().max() > 1e-3
    for name, values in seen.state.items():
        state = {**seen.state, name: tuple(each + 1 for each in values)}
        assert (run(policy, [Observation(images=seen.images, state=state, instruction="")]) - chunk).abs().max() > 1e-3


def test_the_horizon_ends_the_answer_not_the_chunk(tmp_path: Path):
    whole, short = (load(write_checkpoint(tmp_path, TwinSize(), n_action_steps=steps)) for steps in (7, 3))
    torch.testing.assert_close(run(short, [observe(short, 0)]), run(whole, [observe(whole, 0)])[:, :3])


def test_half_precision_answers_in_float32(checkpoint: Path, policy: ACTPolicy):
    half = load(checkpoint, torch.bfloat16)
    found, exact = (run(each, [observe(policy, 0)]) for each in (half, policy))
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < 0.2


def test_pixels_of_any_buffer_are_read_and_left_alone():
    data = bytearray(range(24))
    expected = torch.tensor(list(range(24)), dtype=torch.float32).view(2, 4, 3).permute(2, 0, 1) / 255
    for buffer in (bytes(data), memoryview(bytes(data)), memoryview(data)):
        planes = unit_range(Image(2, 4, buffer), CPU)
        assert planes.is_contiguous()
        assert torch.equal(planes, expected)
        planes.zero_()
        assert bytes(buffer) == bytes(range(24))


def test_a_frame_that_does_not_fit_is_rejected(policy: ACTPolicy):
    seen = observe(policy, 0)
    wide = Image(40, 57, bytes(40 * 57 * 3))
    top = "observation.images.top"
    others = {name: image for name, image in seen.images.items() if name != top}
    for images, found in ((others, "is missing"), ({**others, top: wide}, "has 57 x 40 pixels")):
        with pytest.raises(InvalidArgument) as caught:
            policy.prepare(Observation(images=images, state=seen.state, instruction=""))
        assert str(caught.value) == f"frame.images: {top} {found}; the policy takes 56 x 40"
    for state, count in (({}, 0), ({**seen.state, "observation.state": (1.0,)}, 1)):
        with pytest.raises(InvalidArgument) as caught:
            policy.prepare(Observation(images=seen.images, state=state, instruction=""))
        assert str(caught.value) == f"frame.state: observation.state has {count} numbers; the policy takes 5"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {"model__action_head__weight": torch.zeros(4, 16)},
            "model.action_head.weight has shape [4, 16], expected [3, 16]",
        ),
        (
            {"model__encoder_robot_state_input_proj__weight": torch.zeros(16, 6)},
            "model.encoder_robot_state_input_proj.weight has shape [16, 6], expected [16, 5]",
        ),
        (
            {"model__encoder_1d_feature_pos_embed__weight": torch.zeros(2, 16)},
            "model.encoder_1d_feature_pos_embed.weight has shape [2, 16], expected [3, 16]",
        ),
        (
            {"model__backbone__layer2__0__downsample__0__weight": None},
            "model.backbone.layer2.0.downsample.0.weight is missing: download the checkpoint again",
        ),
        (
            {"model__backbone__bn1__running_var": torch.ones(5)},
            "model.backbone.bn1.running_var has shape [5], expected [4]",
        ),
        (
            {"model__decoder__norm__weight": None},
            "model.decoder.norm.weight is missing: download the checkpoint again",
        ),
    ],
)
def test_damaged_weights_are_named(entries: dict, message: str, tmp_path: Path):
    directory = write_checkpoint(tmp_path, SIZE)
    change_tensors(directory / "model.safetensors", **entries)
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert str(caught.value) == f"{directory}: {message}"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"n_encoder_layers": 1}, "model.encoder has 2 layers, but config.json.n_encoder_layers is 1"),
        ({"n_decoder_layers": 2}, "model.decoder has 1 layers, but config.json.n_decoder_layers is 2"),
    ],
)
def test_layers_that_config_json_does_not_count_are_rejected(entries: dict, message: str, tmp_path: Path):
    directory = write_checkpoint(tmp_path, SIZE)
    change_json(directory / "config.json", lambda values: values.update(entries))
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert str(caught.value) == message


def test_the_place_of_norms_is_checked(tmp_path: Path):
    directory = write_checkpoint(tmp_path, TwinSize(pre_norm=True))
    change_json(directory / "config.json", lambda values: values.update(pre_norm=False))
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert str(caught.value) == ("config.json.pre_norm is false, but model.safetensors has model.encoder.norm.weight")


def test_the_footprint_is_that_of_the_weights_that_serve(checkpoint: Path):
    tensors = load_file(checkpoint / "model.safetensors")
    training = tensors.pop("model.vae_encoder_cls_embed.weight")
    found = ACT.load(checkpoint, RATE, LoadOptions()).footprint(torch.float32)
    assert training.numel()
    assert found.other == sum(tensor.numel() for tensor in tensors.values())
    assert (found.decoder, found.slots, found.slot_bytes(16), found.positions) == (0, 0, 0, 0)
    assert found.frame_bytes == 2 * ACT.load(checkpoint, RATE, LoadOptions()).footprint(torch.bfloat16).frame_bytes > 0


@given(pixels=st.integers(1, 600))
def test_sides_of_feature_maps(pixels: int):
    side = pixels
    for _ in range(5):  # the stem, its pooling, and the first blocks of three layers
        side = (side - 1) // 2 + 1
    assert map_side(pixels) == side


def test_cropping_is_rejected(checkpoint: Path):
    with pytest.raises(ConfigError) as caught:
        ACT.load(checkpoint, RATE, LoadOptions(center_crop=True))
    assert str(caught.value) == "center_crop: policies of this family, act, take whole images; remove it"


def test_the_engine_serves_the_policy(policy: ACTPolicy):
    engine = ACT.prepare(policy, EngineOptions(sessions=2, text_rows=8, table=built_in_table()))
    assert engine.policy is policy
    assert engine.kv_bytes == 0


def test_recorded_batches_answer_as_frames_one_by_one(policy: ACTPolicy):
    check_batches(policy, [policy.prepare(observe(policy, seed)) for seed in range(5)], 0, recordings=3)
