"""Sections that run `edgeflow` commands: the service under load, and recorded outputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from time import monotonic

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.gpu.section_order import LEFT_OUT, Order
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting, SkipError
from edgeflow.lab.gpu.sections import recorded_outputs, served
from edgeflow.lab.gpu.subjects.random_policy import (
    SERVED,
    SIZES,
    policy_tensors,
    random_frames,
    random_policy,
    write_checkpoint,
)
from edgeflow.lab.openvla_policy import embed_prefill, load_openvla
from tests.lab.verify.policies.test_openvla import recorded  # noqa: F401 - a fixture

CPU = torch.device("cpu")


def setting(out: Path, seconds: float = 600.0, bundles: str = "") -> SectionSetting:
    known = {"device": "cpu", "size": "tiny", "frames": 10, "out": str(out), "bundles": bundles}
    return SectionSetting.of(Order(section="", ends=monotonic() + seconds, **known), lambda _: None)


@pytest.mark.timeout(400)  # two processes that load torch, three load tests: seconds on an idle machine
def test_the_service_is_started_loaded_asked_and_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "LONGEST_S", 1.0)
    found = served.service(setting(tmp_path))
    assert found["policy"] == "demo" and found["device"].startswith("cpu") and found["answer tokens"] > 0
    serial, pipelined, auto = found["loads"]
    assert (serial["mode"], pipelined["mode"]) == ("serial", "pipelined")
    assert all(row["frames/s"] > 0 and row["age p99"] >= row["age p50"] > 0 for row in found["loads"])
    assert serial["foretold frames/s"] > 0 and auto["foretold age ms"] > 0
    assert LEFT_OUT not in found


def test_a_service_that_does_not_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "_checkpoint", lambda _, folder: folder)  # nothing was written there
    monkeypatch.setattr(SectionSetting, "small", False)
    with pytest.raises(OffError, match=r"did not start: .*policy"):
        served.service(setting(tmp_path))


def test_a_service_without_time_is_stopped(tmp_path):
    with pytest.raises(OffError, match="not ready in time"):
        served.service(setting(tmp_path, seconds=1.0))


def test_commands_need_their_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "find_spec", lambda name: None if name == "fastapi" else name)
    with pytest.raises(SkipError, match=r"lacks fastapi: see scripts/gpu-wheels"):
        served.service(setting(tmp_path))


def test_a_checkpoint_that_is_written_is_the_random_policy(tmp_path):
    size = SIZES["tiny"]
    loaded = load_openvla(write_checkpoint(size, tmp_path, CPU, torch.float32), torch.float32, CPU)
    made = random_policy(size, CPU, torch.float32)
    (frame,) = random_frames(size, made, 1)
    hidden = [embed_prefill(policy, frame.pixel_values[None], [frame.prompt_ids])[0] for policy in (loaded, made)]
    assert torch.equal(*hidden) and size.stages == loaded.K and len(loaded.prompt_ids("grasp the handle")) > 10


def test_the_served_checkpoint_is_about_half_a_gigabyte():
    assert 0.4e9 < policy_tensors(SERVED, CPU, torch.bfloat16).nbytes < 0.6e9


def test_without_a_folder_of_bundles_nothing_is_verified(tmp_path):
    with pytest.raises(SkipError, match="--bundles"):
        recorded_outputs.verify(setting(tmp_path))
    with pytest.raises(SkipError, match="no recorded checkpoint"):
        recorded_outputs.verify(setting(tmp_path, bundles=str(tmp_path)))


def test_recorded_outputs_are_compared_bundle_by_bundle(tmp_path, recorded):  # noqa: F811
    """One that agrees, one with a damaged weight, one of a family that is not served."""
    for name in ("agrees", "damaged", "foreign"):
        shutil.copytree(recorded, tmp_path / name)
    weights = load_file(tmp_path / "damaged" / "model.safetensors")
    weights["language_model.lm_head.weight"][7] += 1.0
    save_file(weights, tmp_path / "damaged" / "model.safetensors")
    (tmp_path / "foreign" / "config.json").write_text(json.dumps({"model_type": "smolvla"}))
    with pytest.raises(OffError, match="damaged: differs") as off:
        recorded_outputs.verify(setting(tmp_path, bundles=str(tmp_path)))
    rows = {row["bundle"]: row for row in off.value.found["bundles"]}
    assert {name: row["result"] for name, row in rows.items()} == {
        "agrees": "agrees",
        "damaged": "differs",
        "foreign": "not checked",
    }
    assert rows["agrees"]["comparisons"] > 5 and rows["agrees"]["off"] == 0
    assert "logits" in rows["damaged"]["why"] and "smolvla" in rows["foreign"]["why"]


def test_bundles_without_time_left_are_reported(tmp_path, recorded):  # noqa: F811
    shutil.copytree(recorded, tmp_path / "late")
    found = recorded_outputs.verify(setting(tmp_path, seconds=0.0, bundles=str(tmp_path)))
    assert found == {"bundles": [], LEFT_OUT: ["late"]}


def test_a_share_of_a_rate_that_was_not_measured_is_left_out():
    assert served._rate("serial", 0.0, {}) == 0.0, "the closed loop has no rate"
    assert served._rate("auto", 0.5, {"pipelined": 40.0}) == 20.0
    assert served._rate("auto", 0.5, {"pipelined": 0.0}) is None, "one action in all has no rate"
    assert served._rate("auto", 0.5, {}) is None
