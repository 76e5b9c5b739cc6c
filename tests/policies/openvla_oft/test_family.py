"""OpenVLA-OFT in the registry: recognised in recordings, served where it is configured, and told from OpenVLA."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from edgeflow.engine.policy import LoadOptions
from edgeflow.lab.verify.checkpoint import recorded_family
from edgeflow.models.checkpoint import fingerprint
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.registry import family_of
from edgeflow.text import checkpoint_json
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.policies.openvla_oft.tiny import HEAD, KEY, PROPRIO, TinyOFT, write_oft
from tests.tiny_checkpoint import write_checkpoint

SETTINGS = TinyOFT().settings()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_oft(tmp_path / "oft")


def test_oft_is_recognised_by_its_files_or_in_recordings(directory: Path):
    assert family_of(directory).name == recorded_family(directory).name == "openvla_oft"
    assert family_of(directory, "openvla").name == "openvla"
    for name in (HEAD, PROPRIO):
        (directory / name).unlink()
    (directory / "cases.json").write_text(json.dumps({"constants": {"NUM_ACTIONS_CHUNK": 8}}))
    assert family_of(directory).name == "openvla"
    assert recorded_family(directory).name == "openvla_oft"
    (directory / "cases.json").write_text(json.dumps({"constants": [8]}))
    assert recorded_family(directory).name == "openvla"


def test_a_head_beside_openvla_is_rejected_with_the_line_to_add(directory: Path):
    with pytest.raises(ConfigError) as caught:
        OPENVLA.check(directory, {})
    assert str(caught.value) == (
        f"policy: {directory} has {HEAD}, which is of OpenVLA-OFT: "
        'add "policy": {"family": "openvla_oft", "preset": "libero"} (or aloha, bridge)'
    )


@pytest.mark.parametrize("name", ["action_head-7.pt", PROPRIO])
def test_any_file_of_oft_beside_openvla_is_rejected(tmp_path: Path, name: str):
    directory = write_checkpoint(tmp_path / "plain")
    OPENVLA.check(directory, {})
    (directory / name).touch()
    with pytest.raises(ConfigError, match=f"has {name}, which is of OpenVLA-OFT"):
        OPENVLA.check(directory, {})


KINDS = {
    "no type": ({}, "no model_type"),
    "another one": ({"model_type": "llava"}, "model_type 'llava'"),
    "act": ({"type": "act"}, "no model_type but type 'act'"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [OPENVLA, OPENVLA_OFT], ids=lambda each: each.name)
def test_a_configured_family_that_the_checkpoint_is_not_of_is_named(directory: Path, family, kind: str):
    values, found = KINDS[kind]
    (directory / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError) as caught:
        family.check(directory, SETTINGS if family is OPENVLA_OFT else {})
    assert str(caught.value) == f"policy.family: {family.name}, but config.json has {found}"


def test_a_checkpoint_of_no_family_is_rejected_with_what_it_says(directory: Path):
    for values, found in (({}, "no model_type and no type"), ({"type": "diffusion"}, "type 'diffusion'")):
        (directory / "config.json").write_text(json.dumps(values))
        with pytest.raises(CheckpointError) as caught:
            family_of(directory)
        assert str(caught.value) == (
            f"model: config.json of {directory} has {found}; served: openvla_oft, openvla, act, smolvla, pi0, pi05"
        )


def test_a_file_is_read_at_most_twice(directory: Path, monkeypatch):
    """By OpenVLA's part and by that of OFT."""
    read: list[str] = []
    plain = checkpoint_json.read_json_value
    monkeypatch.setattr(checkpoint_json, "read_json_value", lambda path: read.append(path.name) or plain(path))
    OPENVLA_OFT.load(directory, SETTINGS, LoadOptions())
    assert max(Counter(read).values()) == 2


def test_a_checkpoint_that_can_be_served_passes_and_is_loaded(directory: Path):
    OPENVLA_OFT.check(directory, SETTINGS)
    published = OPENVLA_OFT.load(directory, SETTINGS, LoadOptions())
    assert published.unnorm_keys == (KEY,)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "tokenizer.json"])
def test_serving_needs_what_verifying_does_not(directory: Path, name: str):
    (directory / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        OPENVLA_OFT.check(directory, SETTINGS)
    assert str(caught.value) == f"model: {directory} has no {name}: fetch the checkpoint again"


def test_wrong_settings_files_and_statistics_are_found_without_weights(directory: Path):
    (directory / "model.safetensors").unlink()
    OPENVLA_OFT.check(directory, SETTINGS)
    for settings, message in (
        ({}, "policy.preset: is missing; choose the robot: libero, aloha, bridge"),
        ({**SETTINGS, "dims": 6}, "policy.dims: is 6; actions in dataset_statistics.json have 5"),
        ({**SETTINGS, "step": 7}, "policy.step: "),
    ):
        with pytest.raises(ConfigError) as caught:
            OPENVLA_OFT.check(directory, settings)
        assert str(caught.value).startswith(message)


def test_a_plain_openvla_can_be_served_as_tokens_in_one_pass(tmp_path: Path):
    directory = write_checkpoint(tmp_path / "plain")
    OPENVLA_OFT.check(directory, {"preset": "bridge", "proprio": 0})


def test_another_head_is_another_fingerprint(directory: Path):
    before = fingerprint(directory)
    (directory / HEAD).write_bytes(b"other")
    assert fingerprint(directory) != before


def test_other_settings_are_another_fingerprint(directory: Path):
    assert fingerprint(directory) == fingerprint(directory, {})
    found = [fingerprint(directory, SETTINGS | {"control_rate_hz": rate}) for rate in (5.0, 10.0)]
    assert len({*found, fingerprint(directory)}) == 3
    assert fingerprint(directory, dict(reversed(SETTINGS.items()))) == fingerprint(directory, SETTINGS)


def test_reading_the_registry_imports_no_torch():
    code = "import sys, edgeflow.policies.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
