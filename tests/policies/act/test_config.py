"""config.json and the settings of ACT: what is served, and the message for each option that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.engine.policy import LoadOptions
from edgeflow.policies.act.config import load_config, read_settings
from edgeflow.policies.act.family import ACT
from edgeflow.policies.family import CheckpointFiles
from edgeflow.policies.lerobot import ImageInput
from edgeflow.text import checkpoint_json
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.policies.act.checkpoint import change_json, write_checkpoint, write_json
from tests.policies.act.twin import TwinSize

RATE = {"control_rate_hz": 50}
FILES = ("config.json", "policy_preprocessor.json", "policy_postprocessor.json")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path)


def test_every_size_is_read(tmp_path: Path):
    size = TwinSize(environment=4, pre_norm=True, activation="gelu", backbone="resnet34")
    config = load_config(write_checkpoint(tmp_path, size, n_action_steps=5))
    assert config.cameras == tuple(ImageInput(name=name, height=h, width=w) for name, (h, w) in size.cameras.items())
    assert config.vectors == {"observation.state": 5, "observation.environment_state": 4}
    assert (config.action, config.width, config.heads, config.mlp) == (3, 16, 4, 24)
    assert (config.encoder_layers, config.decoder_layers, config.latent) == (2, 1, 6)
    assert (config.backbone, config.activation, config.pre_norm) == ("resnet34", "gelu", True)
    assert (config.chunk, config.horizon) == (7, 5)


def test_defaults_are_those_of_the_format(tmp_path: Path):
    features = {"observation.environment_state": {"type": "ENV", "shape": [2]}}
    values = {
        "type": "act",
        "input_features": features,
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
    }
    write_json(tmp_path / "config.json", values)
    config = load_config(tmp_path)
    assert (config.chunk, config.horizon, config.width, config.heads, config.mlp) == (100, 100, 512, 8, 3200)
    assert (config.encoder_layers, config.decoder_layers, config.latent) == (4, 1, 32)
    assert (config.backbone, config.activation, config.pre_norm) == ("resnet18", "relu", False)


def test_an_answer_that_is_ensembled_has_the_whole_chunk(tmp_path: Path):
    config = load_config(write_checkpoint(tmp_path, n_action_steps=1, temporal_ensemble_coeff=0.01))
    assert config.horizon == 7


def test_inputs_that_the_network_does_not_read_are_left_out(checkpoint: Path):
    extra = {"observation.velocity": {"type": "STATE", "shape": [9]}, "task": {"type": "LANGUAGE", "shape": [1]}}
    change_json(checkpoint / "config.json", lambda values: values["input_features"].update(extra))
    assert list(load_config(checkpoint).vectors) == ["observation.state"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"type": "diffusion"}, "policy.family: act, but config.json has type 'diffusion'"),
        ({"type": ["act"]}, "policy.family: act, but config.json has type ['act']"),
        ({"n_obs_steps": 2}, "config.json.n_obs_steps is 2; served: 1"),
        (
            {"vision_backbone": "resnext50_32x4d"},
            "config.json.vision_backbone is 'resnext50_32x4d'; "
            "served: resnet18, resnet34, resnet50, resnet101, resnet152",
        ),
        (
            {"replace_final_stride_with_dilation": True},
            "config.json.replace_final_stride_with_dilation is True; served: False",
        ),
        ({"feedforward_activation": "glu"}, "config.json.feedforward_activation is 'glu'; served: relu, gelu"),
        ({"n_heads": 3}, "config.json.dim_model is 16 with n_heads 3; served: multiples of n_heads and of 4"),
        (
            {"dim_model": 18, "n_heads": 9},
            "config.json.dim_model is 18 with n_heads 9; served: multiples of n_heads and of 4",
        ),
        ({"chunk_size": 0}, "config.json.chunk_size has 0; served: 1 to 65536"),
        ({"chunk_size": True}, "config.json.chunk_size has True; served: 1 to 65536"),
        ({"dim_feedforward": 1 << 17}, "config.json.dim_feedforward has 131072; served: 1 to 65536"),
        ({"n_decoder_layers": "1"}, "config.json.n_decoder_layers has '1'; served: 1 to 65536"),
        (
            {"chunk_size": 1001, "n_action_steps": None},
            "config.json.chunk_size is 1001: a horizon of 1001 is too long; with 3 dimensions it must be 1 to 1000",
        ),
        (
            {"chunk_size": 2000, "n_action_steps": 1200},
            "config.json.n_action_steps is 1200: a horizon of 1200 is too long; with 3 dimensions it must be 1 to 1000",
        ),
        ({"n_action_steps": 8}, "config.json.n_action_steps is 8; served: at most chunk_size, 7"),
        ({"pre_norm": 1}, "config.json.pre_norm is 1; served: true and false"),
        ({"input_features": []}, "config.json.input_features must be an object: copy the checkpoint again"),
        (
            {"input_features": None},
            "config.json lacks input_features: the file is incomplete, or of another kind of model",
        ),
        (
            {"input_features": {"observation.state": {"type": "STATE", "shape": [5]}}},
            "config.json.input_features has neither images nor observation.environment_state; "
            "served: at least one of them",
        ),
        (
            {"input_features": {"observation.images.depth": {"type": "VISUAL", "shape": [1, 40, 56]}}},
            "config.json.input_features.observation.images.depth.shape has 1 channels; served: 3",
        ),
        (
            {"input_features": {"observation.images.top": {"type": "VISUAL", "shape": [3, 40, 4097]}}},
            "config.json.input_features.observation.images.top.shape has 4097 x 40 pixels; served: sides to 4096",
        ),
        (
            {"input_features": {"observation.images.top": {"type": "VISUAL", "shape": [3, 40]}}},
            "config.json.input_features.observation.images.top.shape is [3, 40]; served: a list of 3 sizes",
        ),
        (
            {"input_features": {"observation.images.top": {"type": "PICTURE", "shape": [3, 40, 56]}}},
            "config.json.input_features.observation.images.top.type is 'PICTURE'; "
            "served: VISUAL, STATE, ENV, ACTION, REWARD, LANGUAGE",
        ),
        (
            {"input_features": {"observation.environment_state": {"type": "STATE", "shape": [3]}}},
            "config.json.input_features.observation.environment_state.type is 'STATE'; served: ENV",
        ),
        (
            {"output_features": {}},
            "config.json.output_features lacks action: the file is incomplete, or of another kind of model",
        ),
    ],
)
def test_an_option_that_is_not_served_is_named(entries: dict, message: str, tmp_path: Path):
    with pytest.raises(CheckpointError) as caught:
        load_config(write_checkpoint(tmp_path, **entries))
    assert str(caught.value) == message


def test_a_checkpoint_without_a_type_names_the_family(checkpoint: Path):
    write_json(checkpoint / "config.json", {"model_type": "openvla"})
    with pytest.raises(CheckpointError) as caught:
        ACT.check(checkpoint, RATE)
    assert str(caught.value) == "policy.family: act, but config.json has no type but model_type 'openvla'"


def test_a_file_is_read_once(checkpoint: Path, monkeypatch):
    read: list[str] = []
    plain = checkpoint_json.read_json_value
    monkeypatch.setattr(checkpoint_json, "read_json_value", lambda path: read.append(path.name) or plain(path))
    ACT.load(checkpoint, RATE, LoadOptions())
    assert sorted(read) == sorted(FILES)


def test_a_checkpoint_is_recognised_by_its_type():
    assert ACT.detect(CheckpointFiles({"type": "act"}))
    assert not ACT.detect(CheckpointFiles({"type": "diffusion"}))
    assert not ACT.detect(CheckpointFiles({"model_type": "openvla"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {},
            "policy.control_rate_hz: is missing; the checkpoint does not state it: "
            "set the rate of the training's data, such as --set policy.control_rate_hz=50",
        ),
        (
            {**RATE, "preset": "aloha"},
            "policy.preset: this family, act, has no such setting; it has control_rate_hz, action_names, state_names",
        ),
        ({"control_rate_hz": 0}, "policy.control_rate_hz: 0 should be greater than 0"),
        ({"control_rate_hz": "50"}, 'policy.control_rate_hz: "50" should be a valid number'),
        ({"control_rate_hz": True}, "policy.control_rate_hz: true should be a valid number"),
        ({"control_rate_hz": float("inf")}, "policy.control_rate_hz: Infinity should be a finite number"),
        ({**RATE, "action_names": ["a"]}, "policy.action_names: 1 names, but action has 3 numbers"),
        ({**RATE, "action_names": ["a", "b", "a"]}, "policy.action_names: 'a' is there twice"),
        ({**RATE, "state_names": ["a", "b"]}, "policy.state_names: 2 names, but observation.state has 5 numbers"),
        ({**RATE, "state_names": [1]}, "policy.state_names.0: 1 should be a valid string"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict, message: str, checkpoint: Path):
    with pytest.raises(ConfigError) as caught:
        ACT.check(checkpoint, settings)
    assert str(caught.value) == message


def test_settings_are_read(checkpoint: Path):
    given = {**RATE, "action_names": ["x", "y", "z"], "state_names": list("abcde")}
    settings = read_settings(given, load_config(checkpoint))
    assert settings.model_dump() == {**given, "control_rate_hz": 50.0}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def places(values: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    keys = list(values) if isinstance(values, dict) else list(range(len(values)))
    inner = [each for key in keys if isinstance(values[key], dict | list) for each in places(values[key])]
    return [(values, key) for key in keys] + inner


@pytest.fixture(scope="module")
def intact(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("intact"), rename={"observation.joints": "observation.state"})


@given(data=st.data(), file=st.sampled_from(FILES), value=JSON)
def test_any_value_anywhere_is_served_or_rejected_by_name(intact: Path, data: st.DataObject, file: str, value: Any):
    text = (intact / file).read_text()
    values = json.loads(text)
    container, key = data.draw(st.sampled_from(places(values)))
    container[key] = value
    try:
        write_json(intact / file, values)
        ACT.check(intact, RATE)
    except CheckpointError as error:
        assert any(name in str(error) for name in (*FILES, ".safetensors", "statistics"))
    except ConfigError as error:
        assert str(error).startswith("policy.")
    finally:
        (intact / file).write_text(text)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(file: str, checkpoint: Path):
    (checkpoint / file).unlink()
    with pytest.raises(CheckpointError, match=rf"^{checkpoint} has no {file}: "):
        ACT.check(checkpoint, RATE)


def test_missing_weights_are_named(checkpoint: Path):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=rf"^{checkpoint} has neither model\.safetensors nor "):
        ACT.check(checkpoint, RATE)


def test_a_check_needs_no_torch(checkpoint: Path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom edgeflow.policies.act.family import ACT\n"
        f"ACT.check(Path({str(checkpoint)!r}), {RATE!r})\n"
        "sys.exit('torch is loaded' if 'torch' in sys.modules else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
