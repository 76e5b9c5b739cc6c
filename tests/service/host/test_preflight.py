"""What a configuration names is looked at before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.config.devices import PROFILE_NAMES
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.control.profile import load_profile
from edgeflow.service.host import preflight
from edgeflow.service.host.preflight import check_configured
from edgeflow_client.errors import StartError

ABSENT = "/absent/folder"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": ABSENT}, f"model: {ABSENT} is not a directory"),
        ({"policy": {"family": "gpt"}}, "policy.family: 'gpt' is not served; served: "),
        ({"chat": {"model": ABSENT}}, f"chat.model: {ABSENT} is not a directory"),
        ({"chat": {"decode_model": ABSENT}}, f"chat.decode_model: {ABSENT} is not a directory"),
        ({"chat": {"draft": "eagle3", "eagle3": {"model": ABSENT}}}, f"chat.eagle3.model: {ABSENT} is not a directory"),
        ({"profile": "rtx4090"}, "profile: cannot read 'rtx4090': No such file"),
        ({"profile": "/dev/zero"}, "profile: cannot read '/dev/zero': Is not a regular file"),
        ({"operators": ABSENT}, f"operators: cannot read '{ABSENT}': No such file"),
        ({"tokens_file": ABSENT}, f"tokens_file: cannot read {ABSENT}: No such file"),
        ({"tls": {"cert": "/dev/zero", "key": ABSENT}}, "tls.cert: cannot read /dev/zero: Is not a regular file"),
        ({"device": "cuda"}, "device: cuda is not available here"),
    ],
)
def test_missing_files_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, object], message: str
):
    monkeypatch.setattr(preflight, "DEV", tmp_path)
    file = tmp_path / "c.json"
    file.write_text(json.dumps(values))
    with pytest.raises(StartError) as caught:
        check_configured(ServiceConfig.model_validate(values))
    assert message in caught.value.text
    checked = CliRunner().invoke(app, ["config", "check", str(file)])
    assert isinstance(checked.exception, StartError) and message in checked.exception.text


def test_a_gpu_s_driver_is_enough_to_ask_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "DEV", tmp_path)
    (tmp_path / "nvmap").touch()
    check_configured(ServiceConfig.model_validate({"device": "cuda"}))


def test_defaults_and_hub_ids_pass_and_chat_that_is_off_is_not_looked_at():
    for values in ({}, {"model": "owner/name"}, {"chat": {"enabled": False, "model": ABSENT}}):
        check_configured(ServiceConfig.model_validate(values))


def test_the_profiles_that_are_known_are_those_that_can_be_loaded():
    known = ", ".join(PROFILE_NAMES)
    with pytest.raises(StartError, match=f"use {known} or a JSON file"):
        load_profile(ABSENT)
    assert {getattr(load_profile(name), "name", "none") for name in PROFILE_NAMES} == set(PROFILE_NAMES)


def test_a_lack_of_descriptors_is_not_taken_for_a_broken_checkpoint(tmp_path: Path):
    """Nor is anything else that the system says of a file."""
    (tmp_path / "config.json").symlink_to("/proc/self/mem")
    with pytest.raises(StartError, match=r"^model: cannot read .*config\.json: "):
        check_configured(ServiceConfig.model_validate({"model": str(tmp_path)}))


@pytest.mark.parametrize("below", ["pretrained_model", "last/pretrained_model", "checkpoints/last/pretrained_model"])
def test_the_folder_of_a_training_says_where_its_checkpoint_is(tmp_path: Path, below: str):
    (tmp_path / below).mkdir(parents=True)
    (tmp_path / below / "config.json").write_text("{}")
    with pytest.raises(StartError, match=f"has no config.json: give {tmp_path / below}"):
        check_configured(ServiceConfig.model_validate({"model": str(tmp_path)}))


def test_a_config_with_only_a_type_is_incomplete(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"type": "act"}')
    with pytest.raises(StartError, match="lacks input_features: the file is incomplete, or of another kind of model"):
        check_configured(ServiceConfig.model_validate({"model": str(tmp_path)}))
