"""`edgeflow pull` and `edgeflow serve --model ID` with a hub on the loopback interface (tests/local_hub.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from typer.testing import CliRunner

import edgeflow
from edgeflow.cli import app
from edgeflow.commands.options import overrides_of
from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.hub import cached
from edgeflow.service.host.preflight import check_configured, fetch_configured
from edgeflow_client.errors import CheckpointError, ConfigError, StartError
from tests.local_hub import REVISION, TOKEN, LocalHub
from tests.oracles import RECORDED
from tests.policies.flow.tiny import change_json, tokenizer, write_checkpoint
from tests.policies.flow.weights import Tiny
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft
from tests.stub_policy import stub_checkpoint

MODEL, VLM, LLAMA = "someone/smolvla", "someone/vlm", "someone/llama"
CLOSED = "http://127.0.0.1:1"


@pytest.fixture
def hub(local_hub: LocalHub, tmp_path: Path) -> LocalHub:
    """A SmolVLA whose tokenizer is in another repository."""
    folder = write_checkpoint(tmp_path / "smolvla", Tiny(kind="smolvla"))
    (folder / "vlm" / "tokenizer.json").unlink()
    steps = folder / "policy_preprocessor.json"
    change_json(steps, lambda content: content["steps"][4]["config"].update(tokenizer_name=VLM))
    local_hub.add(MODEL, folder)
    tokenizer(bos=False).save(str(tmp_path / "tokenizer.json"))
    local_hub.repositories[VLM] = {
        "config.json": b"{}",
        "tokenizer.json": (tmp_path / "tokenizer.json").read_bytes(),
        "model.safetensors": b"not wanted",
        "code.py": b"not wanted",
    }
    return local_hub


def pulled(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["pull", *arguments, "--json"])
    if result.exception is not None:
        raise result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_pulled_policy_is_served_with_its_tokenizer_and_asks_the_hub_nothing(hub: LocalHub, tmp_path: Path):
    found = pulled(MODEL)
    assert not any(path.endswith((".py", f"{VLM}/resolve/{REVISION}/model.safetensors")) for path in hub.asked)
    assert (found["family"], found["state"]) == ("smolvla", {"observation.state": 3})
    assert found["cameras"] == ["observation.images.top", "observation.images.wrist"]
    assert found["weight_bytes"]["float32"] > found["weight_bytes"]["bfloat16"] > 0 < found["robot_bytes"]
    assert found["decide"].keys() == {"policy.control_rate_hz", "policy.absent_cameras"}
    assert "rate_hz" not in found
    (tmp_path / "robot.json").write_text(json.dumps(found["config"]))
    config = load_config(tmp_path / "robot.json", {})
    hub.asked.clear()
    fetch_configured(config)
    check_configured(config)
    assert config.model_path == Path(found["directory"]) == cached(MODEL)
    assert hub.asked == []


def test_serve_fetches_what_pull_does(hub: LocalHub):
    config = load_config(None, {"model": MODEL, "policy.control_rate_hz": 30})
    check_configured(config)  # `config check` fetches nothing
    assert hub.asked == []
    fetched: list[str] = []
    for _ in range(2):
        fetch_configured(config, fetched.append)
    assert fetched == [MODEL]
    check_configured(config)
    assert cached(VLM, ("tokenizer.json",), "tokenizer.json") is not None
    assert cached(VLM) is None  # which would have its weights
    with pytest.raises(ConfigError, match="control_rate_hz: is missing"):
        check_configured(load_config(None, {"model": MODEL}))


def test_a_model_in_process_gets_its_tokenizer_too(hub: LocalHub):
    with edgeflow.load(MODEL, policy={"control_rate_hz": 30.0}, device="cpu", max_sessions=1) as policy:
        assert [each.name for each in policy.inputs.cameras] == ["observation.images.top", "observation.images.wrist"]


def test_a_folder_gets_everything_and_needs_no_cache(hub: LocalHub, tmp_path: Path):
    folder = tmp_path / "robot" / "smolvla"
    found = pulled(MODEL, "--to", str(folder))
    assert found["model"] == found["directory"] == str(folder)
    assert (folder / "vlm" / "tokenizer.json").is_file() and not (folder / "vlm" / "code.py").exists()
    assert cached(MODEL) is cached(VLM, ("tokenizer.json",), "tokenizer.json") is None
    (folder / "vlm" / "tokenizer.json").unlink()
    assert pulled(str(folder))["model"] == str(folder)  # a directory gets its tokenizer only
    assert (folder / "vlm" / "tokenizer.json").is_file()
    with pytest.raises(ConfigError, match=r"--to: .* is not a hub id"):
        pulled(str(folder), "--to", str(tmp_path))


def test_an_interrupted_download_goes_on_where_it_ended(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    weights, hub.cut_after = hub.repositories[MODEL]["model.safetensors"], 20_000
    assert len(weights) > hub.cut_after
    pulled(MODEL, "--to", str(tmp_path / "to"))
    assert [path.rpartition("/")[2] for path in hub.asked if "bytes=" in path] == ["model.safetensors bytes=20000-"]
    assert (tmp_path / "to" / "model.safetensors").read_bytes() == weights


CAUSES = {
    "offline": (CLOSED, "", "could not be fetched, .* cannot be reached: go online, or run `edgeflow pull` with `--to"),
    "gated": ("", "", "is gated: request access at http.*/someone/smolvla, then run `hf auth login`"),
    "gated for this token": ("", TOKEN, "is gated, and your token has no access to it: request access at http"),
    "missing": ("", TOKEN, "the hub has no model someone/smolvla that you may see: check the name at http"),
    "missing or private": ("", "", "that you may see: check the name at .*; if it is private, run `hf auth login`"),
    "no revision": ("", "", "someone/smolvla has no revision main on the hub"),
    "wrong token": (
        "",
        "hf_old",
        "the hub does not accept your token, .*: run `hf auth login` with a new one, or unset",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_keeps_a_model_away_is_said_before_anything_starts(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, cause: str
):
    endpoint, token, message = CAUSES[cause]
    if endpoint:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    if cause.startswith("gated"):
        hub.gated.add(MODEL)
    elif cause.startswith("missing"):
        del hub.repositories[MODEL]
    elif cause == "no revision":
        hub.without_main.add(MODEL)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "config.json").write_text("{}")
    for arguments in ([], ["--to", str(tmp_path / "to")]):  # an older folder is no answer
        with pytest.raises(CheckpointError, match=f"^model: .*{message}"):
            pulled(MODEL, *arguments)
    monkeypatch.setattr("edgeflow.service.run.run_service", None)  # it is not called
    served = CliRunner().invoke(app, ["serve", "--model", MODEL])
    assert served.exit_code == 2
    text = " ".join(capfd.readouterr().err.split())
    assert '"event": "failed"' in text and message[-20:].replace("`", "") in text.replace("`", "")


def test_a_gated_tokenizer_is_named(hub: LocalHub):
    hub.gated.add(VLM)
    with pytest.raises(
        CheckpointError, match=r"was fetched into .*, and cannot be served yet: model: its tokenizer\.json: "
    ):
        pulled(MODEL)
    config = ServiceConfig.model_validate({"model": MODEL})
    with pytest.raises(CheckpointError, match=rf"^model: its tokenizer\.json: {VLM} is gated: request access at"):
        fetch_configured(config)


def test_the_rate_may_be_set_on_the_command_line(tmp_path: Path):
    """What is wrong besides it is found next."""
    directory = write_checkpoint(tmp_path / "smolvla", Tiny(kind="smolvla"))
    for given, message in (
        ([], "policy.control_rate_hz: is missing"),
        (["policy.control_rate_hz=0"], "policy.control_rate_hz: 0 must be above 0"),
        (["policy.control_rate_hz=30"], "operators: cannot read '/absent'"),
    ):
        config = load_config(None, overrides_of([*given, "operators=/absent"], {"model": str(directory)}))
        with pytest.raises(ConfigError, match=f"^{message}"):
            check_configured(config)


def test_offline_by_a_variable(hub: LocalHub, monkeypatch: pytest.MonkeyPatch):
    pulled(MODEL)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    fetch_configured(ServiceConfig.model_validate({"model": MODEL}))
    with pytest.raises(CheckpointError, match="could not be fetched, HF_HUB_OFFLINE is set: unset it, or run"):
        pulled(MODEL)


def test_chat_models_and_plug_ins(hub: LocalHub, tmp_path: Path, stub_plugin: None):
    hub.add(LLAMA, RECORDED / "llama")
    found = pulled(LLAMA)
    assert (found["family"], found["config"]) == ("llama", {"chat": {"model": LLAMA}})
    config = ServiceConfig.model_validate({**found["config"], "model": "demo"})
    hub.asked.clear()
    fetch_configured(config)
    assert config.chat_path == Path(found["directory"]) and hub.asked == []
    hub.add("someone/stub", stub_checkpoint(tmp_path / "stub"))
    found = pulled("someone/stub")
    assert found["config"] == {"model": "someone/stub"} and found["family"] == "stub"


def test_what_people_read(hub: LocalHub):
    result = CliRunner().invoke(app, ["pull", MODEL])
    assert result.exit_code == 0
    for line in (
        "rate     the checkpoint does not state it",
        "decide   policy.absent_cameras: cameras of the checkpoint",
    ):
        assert line in result.stdout
    assert result.stdout.endswith("Then: edgeflow serve --config smolvla.json\n")
    shown = result.stdout[result.stdout.index("{") : result.stdout.rindex("}") + 1]
    assert ServiceConfig.model_validate_json(shown).model == MODEL


def test_a_robot_that_the_example_does_not_fit_is_a_decision(tmp_path: Path):
    found = pulled(str(write_oft(tmp_path / "oft", TinyOFT(dims=5))))
    assert found["decide"]["policy.dims"] == "is 7; actions in dataset_statistics.json have 5"
    assert found["family"] == "openvla_oft" and found["weight_bytes"]["stored"] > 0


@pytest.mark.parametrize("name", ["smolvla", "act", "pi0", "pi05", "openvla", "openvla_oft", "chat"])
def test_examples_are_configurations(tmp_path: Path, name: str):
    result = CliRunner().invoke(app, ["config", "example", name])
    (tmp_path / "example.json").write_text(result.stdout)
    config = load_config(tmp_path / "example.json", {})
    assert config.changed.keys() >= json.loads(result.stdout).keys()


def test_an_example_of_something_else(monkeypatch: pytest.MonkeyPatch):
    result = CliRunner().invoke(app, ["config", "example", "gpt"])
    assert isinstance(result.exception, StartError)
    assert result.exception.text == "name: 'gpt' is not served; served: openvla_oft, openvla, act, smolvla, pi0, pi05"
