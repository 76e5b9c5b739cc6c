"""Checkpoints as control reads them without torch, and errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TOP, WRIST, write_checkpoint
from edgeflow_lerobot.family import LEROBOT, read_checkpoint
from robots import LeRobotBench, observation
from safetensors.numpy import load_file, save_file

from edgeflow.contract import Image, Observation
from edgeflow.policies.registry import detected, family_of
from edgeflow_client.errors import CheckpointError, ConfigError, EdgeflowError, InvalidArgument

RATE = {"control_rate_hz": 10.0}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "diffusion", "diffusion")


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_control_reads_it_without_torch(directory: Path):
    assert family_of(directory).name == detected(directory).name == LEROBOT.name
    code = (
        "import sys\nfrom pathlib import Path\nfrom edgeflow.config.sections import PolicyConfig\n"
        "from edgeflow.service.host.preflight import check_model_directory\n"
        f"check_model_directory(Path({str(directory)!r}), PolicyConfig(control_rate_hz=10.0))\n"
        "sys.exit(any(each in sys.modules for each in ('torch', 'lerobot')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_built_in_families_come_first(tmp_path: Path):
    directory = write_checkpoint(tmp_path / "act", "act")
    assert (family_of(directory).name, family_of(directory, "lerobot").name) == ("act", "lerobot")


def test_rate_and_names_come_from_files_beside_the_checkpoint(directory: Path):
    with pytest.raises(
        ConfigError, match=r"policy\.control_rate_hz: is missing; .*copy the data set's meta/info\.json"
    ):
        read_checkpoint(directory, {})
    (directory / "train_config.json").write_text('{"env": {"type": "pusht", "fps": 12}}')
    assert read_checkpoint(directory, {}).settings.control_rate_hz == 12
    (directory / "meta").mkdir()
    names = {"motors": ["a", "b", "c", "d"]}
    info = {"fps": 20, "features": {"action": {"names": names}, "observation.state": {"names": ["too", "few"]}}}
    (directory / "meta/info.json").write_text(json.dumps(info))
    read = read_checkpoint(directory, {"action_units": ["rad"] * 4}).settings
    assert (read.control_rate_hz, read.action_names, read.state_names) == (20, ["a", "b", "c", "d"], [])
    assert read_checkpoint(directory, RATE).settings.control_rate_hz == 10


def test_the_robot_sends_what_the_preprocessor_renames(directory: Path):
    rename = {TOP.replace("images.top", "images.front"): TOP}
    edit(
        directory / "policy_preprocessor.json",
        lambda pipeline: pipeline["steps"][0]["config"].update(rename_map=rename),
    )
    policy = LeRobotBench(directory).policy
    assert [each.name for each in policy.inputs.cameras] == ["observation.images.front", WRIST]
    assert (policy.inputs.history, policy.inputs.history_step_ms, policy.action_schema().horizon) == (2, 100.0, 4)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.json", lambda it: it.update(use_peft=True), r"config\.json\.use_peft is True; served: False"),
        ("config.json", lambda it: it.update(n_obs_steps=17), r"config\.json\.n_obs_steps is 17; served: at most 16"),
        ("config.json", lambda it: it.update(input_features={}), "neither images nor vectors"),
        ("config.json", lambda it: it.update(n_action_steps=60000), r"config\.json\.n_action_steps is 60000"),
        ("config.json", lambda it: it.update(output_features={}), "output_features lacks action"),
        (
            "policy_preprocessor.json",
            lambda it: it["steps"].append({"class": "os.path.Anything"}),
            r"steps\[4\]: the step os\.path\.Anything is not served; served: steps that LeRobot registers by name",
        ),
    ],
)
def test_control_rejects(directory: Path, file: str, change: Callable[[dict[str, Any]], object], said: str):
    edit(directory / file, change)
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(directory, RATE)


def test_control_rejects_missing_files_and_wrong_settings(directory: Path):
    for key, value, said in (
        ("speed", 1, r"policy\.speed: this family, lerobot, has no such setting"),
        ("action_names", ["x"], r"policy\.action_names: 1 entries, but action has 4 numbers"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_checkpoint(directory, {**RATE, key: value})
    for name in ("model.safetensors", "policy_postprocessor.json"):
        (directory / name).unlink()
        with pytest.raises(CheckpointError, match=f"has no {name}"):
            read_checkpoint(directory, RATE)


def lacks_a_tensor(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    weights.pop(next(name for name in weights if name.endswith("final_conv.1.weight")))
    save_file(weights, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda it: edit(it / "config.json", lambda each: each.update(type="dance")),
            "LeRobot cannot load the dance of",
        ),
        (lacks_a_tensor, r"RuntimeError: .*final_conv\.1\.weight"),
        (
            lambda it: edit(it / "config.json", lambda each: each.update(crop_shape=[400, 400])),
            r"ValueError: .*crop_shape",
        ),
    ],
)
def test_the_worker_says_in_one_line_what_lerobot_rejects(directory: Path, spoil: Callable[[Path], None], said: str):
    spoil(directory)
    with pytest.raises(CheckpointError, match=said) as caught:
        LeRobotBench(directory)
    assert "\n" not in caught.value.text


@pytest.mark.parametrize(("file", "key"), [("config.json", "vlm_model_name"), ("tokenizer.json", "tokenizer_name")])
def test_nothing_is_fetched(tmp_path: Path, file: str, key: str):
    """A model that config.json or the preprocessor names lies in the checkpoint, or in Hugging Face's cache."""
    directory = write_checkpoint(tmp_path / "smolvla", "smolvla")
    edit(directory / "config.json", lambda it: it.update(vlm_model_name="someone/vlm"))
    edit(directory / "policy_preprocessor.json", named_elsewhere)
    (directory / "vlm" / file).unlink()
    said = rf"{key} of .* is 'someone/vlm', and neither .* has {file} of that: .* run `hf download someone/vlm` first$"
    with pytest.raises(CheckpointError, match=said):
        LeRobotBench(directory)


def named_elsewhere(pipeline: dict[str, Any]) -> None:
    for step in pipeline["steps"]:
        if step["registry_name"] == "tokenizer_processor":
            step["config"]["tokenizer_name"] = "someone/vlm"


def test_frames_of_another_size_are_rejected(directory: Path):
    policy = LeRobotBench(directory).policy
    images, state, _ = observation(1, 1)
    images = {name: Image(*each.shape[:2], each.tobytes()) for name, each in images.items()}
    small = Image(8, 8, np.zeros(192, np.uint8).tobytes())
    for seen, vector, said in (
        ({**images, WRIST: small}, state, f"{WRIST} has 8 x 8 pixels; the policy takes 64 x 48"),
        ({TOP: images[TOP]}, state, f"{WRIST} is missing"),
        (images, state[:3], "observation.state has 3 numbers; the policy takes 5"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            policy.prepare(Observation(images=seen, state={"observation.state": tuple(vector)}, instruction=""))


def test_one_robot_only(tmp_path: Path):
    directory = write_checkpoint(tmp_path / "tdmpc", "tdmpc")
    with pytest.raises(
        EdgeflowError, match=r"max_sessions: is 2; this policy, of the family lerobot, serves at most 1"
    ):
        LeRobotBench(directory, 2)
