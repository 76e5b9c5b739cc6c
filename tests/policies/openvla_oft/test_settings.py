"""Settings and files of OpenVLA-OFT: presets, what overrides them, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeflow.policies.openvla_oft.config import OFTSettings, find_files
from edgeflow_client.errors import CheckpointError, ConfigError

PLAIN = {"chunk": 4, "dims": 3, "proprio": 0, "images": 1, "bounds": "q99", "control_rate_hz": 10}
MISSING = "is missing; give it, or policy.preset: libero, aloha, bridge"


def test_presets_are_the_published_constants():
    keys = ("chunk", "dims", "proprio", "images", "bounds", "control_rate_hz")
    found = {name: OFTSettings.of({"preset": name}) for name in ("libero", "aloha", "bridge")}
    assert {name: tuple(getattr(each, key) for key in keys) for name, each in found.items()} == {
        "libero": (8, 7, 8, 2, "q99", 20.0),
        "aloha": (25, 14, 14, 3, "min_max", 25.0),
        "bridge": (5, 7, 7, 1, "q99", 5.0),
    }
    assert {name: each.cameras for name, each in found.items()} == {
        "libero": ("full_image", "wrist_image"),
        "aloha": ("full_image", "left_wrist_image", "right_wrist_image"),
        "bridge": ("full_image",),
    }


def test_keys_override_the_preset():
    settings = OFTSettings.of({"preset": "libero", "images": 1, "proprio": 0, "control_rate_hz": 10})
    assert (settings.images, settings.proprio, settings.control_rate_hz, settings.chunk) == (1, 0, 10.0, 8)
    assert settings.cameras == ("full_image",)


WRONG = [
    ({}, "policy.preset: is missing; choose the robot: libero, aloha, bridge"),
    ({"images": 1}, f"policy.chunk: {MISSING}; policy.dims: {MISSING}; policy.proprio: {MISSING}"),
    ({key: value for key, value in PLAIN.items() if key != "control_rate_hz"},
     f"policy.control_rate_hz: {MISSING}"),
    ({"preset": "franka"}, "policy.preset: \"franka\" should be 'libero', 'aloha' or 'bridge'"),
    ({**PLAIN, "chunk": "4"}, 'policy.chunk: "4" should be a valid integer'),
    ({**PLAIN, "chunk": 0}, "policy.chunk: 0 should be greater than or equal to 1"),
    ({**PLAIN, "chunk": 1001}, "policy.chunk: 1001 should be less than or equal to 1000"),
    ({**PLAIN, "chunk": 200, "dims": 164},
     "policy.chunk: a horizon of 200 is too long; with 164 dimensions it must be 1 to 199"),
    ({**PLAIN, "dims": 300}, "policy.dims: 300 should be less than or equal to 256"),
    ({**PLAIN, "bounds": "normal"}, "policy.bounds: \"normal\" should be 'q99' or 'min_max'"),
    ({**PLAIN, "control_rate_hz": 0}, "policy.control_rate_hz: 0 should be greater than 0"),
    ({**PLAIN, "action_head": 1}, "policy.action_head: 1 should be a valid boolean"),
    ({**PLAIN, "camera_names": ["a", "b"]}, "policy.camera_names: has 2 entries; policy.images is 1"),
    ({**PLAIN, "images": 2, "camera_names": ["a", "a"]}, "policy.camera_names: a name is repeated"),
    ({**PLAIN, "images": 4}, "policy.camera_names: is missing; 4 cameras have no customary names"),
    ({**PLAIN, "state_names": ["a"]}, "policy.state_names: has 1 entries; policy.proprio is 0"),
    ({**PLAIN, "action_names": ["a"]}, "policy.action_names: has 1 entries; policy.dims is 3"),
    ({**PLAIN, "action_names": ["a", "b", "a"]}, "policy.action_names: a name is repeated"),
    ({**PLAIN, "relative": [True]}, "policy.relative: has 1 entries; policy.dims is 3"),
    ({**PLAIN, "relative": [True, 1, 0]}, "policy.relative.1: 1 should be a valid boolean"),
    ({**PLAIN, "images": 2, "camera_names": ["a", ""]},
     'policy.camera_names.1: "" String should have at least 1 character'),
]  # fmt: skip


@pytest.mark.parametrize("step", ["newest", "../x", -1, True, [1], 0.5])
def test_a_wrong_step_is_reported_once(step: object):
    with pytest.raises(ConfigError) as caught:
        OFTSettings.of({**PLAIN, "step": step})
    assert str(caught.value) == f'policy.step: {json.dumps(step)} should be a training step, or "latest"'


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[wrong[1][:60] for wrong in WRONG])
def test_wrong_settings_are_rejected(given: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        OFTSettings.of(given)
    assert str(caught.value).startswith(message)


def test_an_unknown_key_is_rejected_with_those_that_are_known():
    with pytest.raises(ConfigError) as caught:
        OFTSettings.of({**PLAIN, "chunks": 4})
    assert str(caught.value) == (
        f"policy.chunks: this family, openvla_oft, has no such setting; it has {', '.join(OFTSettings.model_fields)}"
    )


def touch(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).touch()
    return directory


def test_files_are_found_by_the_settings(tmp_path: Path):
    head, proprio = "action_head--9_checkpoint.pt", "proprio_projector--latest_checkpoint.pt"
    touch(tmp_path, head, proprio)
    found = find_files(tmp_path, OFTSettings.of({**PLAIN, "proprio": 2}))
    assert found.head == tmp_path / head and found.proprio == tmp_path / proprio
    found = find_files(tmp_path, OFTSettings.of({**PLAIN, "action_head": False}))
    assert found.head is None and found.proprio is None


def test_without_a_head_there_are_tokens(tmp_path: Path):
    assert find_files(tmp_path, OFTSettings.of(PLAIN)).head is None
    with pytest.raises(CheckpointError) as caught:
        find_files(tmp_path, OFTSettings.of({**PLAIN, "action_head": True}))
    assert str(caught.value) == (
        f"model: {tmp_path} has no action_head--*_checkpoint.pt, but policy.action_head is true: "
        "fetch the checkpoint again"
    )


def test_a_state_needs_its_projector(tmp_path: Path):
    with pytest.raises(CheckpointError) as caught:
        find_files(tmp_path, OFTSettings.of({**PLAIN, "proprio": 2}))
    assert "has no proprio_projector--*_checkpoint.pt, but policy.proprio is 2" in str(caught.value)


def test_one_of_several_steps_must_be_chosen(tmp_path: Path):
    touch(tmp_path, "action_head--50_checkpoint.pt", "action_head--100_checkpoint.pt")
    with pytest.raises(ConfigError) as caught:
        find_files(tmp_path, OFTSettings.of(PLAIN))
    assert str(caught.value) == (
        "policy.step: choose the training step of one of action_head--50_checkpoint.pt, action_head--100_checkpoint.pt"
    )
    found = find_files(tmp_path, OFTSettings.of({**PLAIN, "step": 50}))
    assert found.head == tmp_path / "action_head--50_checkpoint.pt"
    with pytest.raises(ConfigError) as caught:
        find_files(tmp_path, OFTSettings.of({**PLAIN, "step": 70}))
    assert str(caught.value) == f"policy.step: {tmp_path} has no action_head--70_checkpoint.pt"


def test_the_latest_step_is_the_newest(tmp_path: Path):
    latest = OFTSettings.of({**PLAIN, "proprio": 2, "step": "latest"})
    heads = [f"action_head--{step}_checkpoint.pt" for step in (50, 100)]
    touch(tmp_path, *heads, "proprio_projector--50_checkpoint.pt")
    with pytest.raises(ConfigError) as caught:
        find_files(tmp_path, latest)
    assert str(caught.value) == (
        f"policy.step: the newest are {heads[1]} and proprio_projector--50_checkpoint.pt: give the step of both"
    )
    touch(tmp_path, "proprio_projector--100_checkpoint.pt")
    assert find_files(tmp_path, latest).head == tmp_path / heads[1]
    touch(tmp_path, *(f"{stem}--latest_checkpoint.pt" for stem in ("action_head", "proprio_projector")))
    assert find_files(tmp_path, latest).head == tmp_path / "action_head--latest_checkpoint.pt"


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("action_head--best.pt", {"action_head": False}),
        ("action_head.pt", {"action_head": False}),
        ("action_head--new_checkpoint.pt", {"action_head": False}),
        ("proprio_projector-50_checkpoint.pt", {"proprio": 0}),
    ],
)
def test_a_file_of_another_name_is_rejected(tmp_path: Path, name: str, off: dict):
    touch(tmp_path, "proprio_projector--50_checkpoint.pt", name)
    with pytest.raises(CheckpointError) as caught:
        find_files(tmp_path, OFTSettings.of({**PLAIN, "proprio": 2}))
    assert str(caught.value).startswith(f"model: {tmp_path} has {name}, whose name is not ")
    find_files(tmp_path, OFTSettings.of({**PLAIN, "proprio": 2, **off}))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("vision_backbone--5_checkpoint.pt", "FiLM"),
        ("vision_backbone.pt", "FiLM"),
        ("noisy_action_projector--5_checkpoint.pt", "the diffusion head"),
    ],
)
def test_other_variants_are_rejected(tmp_path: Path, name: str, what: str):
    with pytest.raises(CheckpointError) as caught:
        find_files(touch(tmp_path, name), OFTSettings.of(PLAIN))
    assert str(caught.value) == f"model: {tmp_path} has {name}: {what} is not supported"
