"""Artifacts that are damaged, mixed up or edited: one line that says what is wrong, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

from edgeflow.artifacts.manifest import MANIFEST
from edgeflow.artifacts.sessions import Runtime, available_providers, check_started
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import CheckpointError, ConfigError, DependencyError, StartError
from tests.artifacts.tiny_artifact import artifact, edited

PLACEMENT = Placement(dtype=torch.float32, device=torch.device("cpu"), table=built_in_table())


def load(folder: Path, placement: Placement = PLACEMENT, **settings: Any) -> Any:
    return family_of(folder).load(folder, settings, LoadOptions()).load(placement)


def told(folder: Path, kind: type[StartError] = CheckpointError, **settings: Any) -> str:
    with pytest.raises(kind) as caught:
        load(folder, **settings)
    assert "\n" not in caught.value.text
    return caught.value.text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return artifact(tmp_path)


def named(folder: Path, stage: str) -> str:
    graphs = json.loads((folder / MANIFEST).read_text())["graphs"]
    return next(each["file"] for each in graphs if each["stage"] == stage)


def test_the_artifact_itself_is_loaded(folder: Path):
    policy = load(folder)
    assert policy.text_rows("lift it") == 8


def test_a_missing_file(folder: Path):
    name = named(folder, "prefill")
    (folder / name).unlink()
    assert f"lacks {name}" in told(folder)


def test_a_graph_in_the_place_of_another(folder: Path):
    step, prefill = named(folder, "step"), named(folder, "prefill")
    (folder / prefill).write_bytes((folder / step).read_bytes())
    assert f"{prefill} is not the file that artifact.json names: it is {step}" in told(folder)


def test_truncated_weights(folder: Path):
    file = folder / "weights.data"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-64])
    assert f"weights.data has {size - 64} bytes, and artifact.json states {size}" in told(folder)


def test_a_device_in_the_place_of_weights(folder: Path):
    """It has no bytes, and reading it never ends."""
    (folder / "weights.data").unlink()
    (folder / "weights.data").symlink_to("/dev/zero")
    edited(folder, "weights", 0, "size", value=0)
    for index in range(len(json.loads((folder / MANIFEST).read_text())["graphs"])):
        edited(folder, "graphs", index, "weight_bytes", value=0)
    assert "weights.data is not a file: copy the folder again" in told(folder)


def test_weights_of_another_model(folder: Path):
    file = folder / "weights.data"
    file.write_bytes(bytes(len(file.read_bytes())))
    assert "weights.data is not the file that artifact.json names" in told(folder)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("version",), 9, "artifact.json.version is 9; served: 1: export the model again"),
        (("graphs", 0, "file"), "../model.onnx", "is '../model.onnx'; served: a file in the folder"),
        (("weights", 0, "file"), "/etc/passwd", "is '/etc/passwd'; served: a file in the folder"),
        (("weights", 0, "size"), -1, "artifact.json.weights[0].size has -1"),
        (("graphs", 1, "inputs", 0, "shape"), [1, 1 << 40, 1 << 20], "1048576]; served: 1 to 1073741824 numbers"),
        (("graphs", 1, "inputs", 0, "shape"), [10**4000, 10**4000], "000; served: 1 to 1073741824 numbers"),
        (("graphs", 0, "file"), "step\0.onnx", "is 'step\\x00.onnx'; served: a file in the folder"),
        (("graphs", 0, "file"), "step\ud800.onnx", "is 'step\\ud800.onnx'; served: a file in the folder"),
        (("graphs", 0, "file"), "vlm", "vlm is not a file: copy the folder again"),
        (("graphs", 1, "inputs", 0, "shape"), [1, -3], "served: an integer from 0 on"),
        (("graphs", 1, "inputs", 0, "shape"), [1, 0], "has shape [1, 0]; served: 1 to"),
        (("graphs", 3, "batch"), 60000, "batch is 60000; served: 1 to 1024"),
        (("graphs", 0, "weight_bytes"), 10**4000, "graphs[0] states more bytes of weights than the"),
        (("graphs",), [], "graphs has 0 entries; served: 1 to 64"),
        (("kv", "positions"), 1 << 30, "positions has 1073741824; served: 1 to 65536"),
        (("kv", "positions"), 9, "has 9 positions"),
        (("kv", "layers"), 7, "has layers, KV heads and head width [7,"),
        (("kv", "kinds"), ["joint"], "kinds: expected joint or cross for each of"),
        (("family",), "pi0", "family is pi0, and config.json is of smolvla"),
        (("text",), 3, "texts of 3 tokens"),
        (("preprocessing", "denoising"), {}, "denoising lacks steps"),
    ],
)
def test_an_edited_manifest(folder: Path, path: tuple[str | int, ...], value: Any, text: str):
    edited(folder, *path, value=value)
    assert text in told(folder)


def test_a_graph_of_other_shapes_than_the_manifest_states(folder: Path):
    """It passes every check of the manifest by itself: its digest is that of the file."""
    values = json.loads((folder / MANIFEST).read_text())
    towers = next(each for each in values["graphs"] if each["stage"] == "towers")
    step = next(each for each in values["graphs"] if each["stage"] == "step")
    towers["file"], towers["digest"] = step["file"], step["digest"]
    (folder / MANIFEST).write_text(json.dumps(values))
    assert "has input none of the name pixel_values; expected pixel_values float32" in told(folder)


def test_a_file_that_is_no_graph(folder: Path):
    import hashlib

    name = named(folder, "prefill")
    (folder / name).write_bytes(b"not a graph")
    index = [each["file"] for each in json.loads((folder / MANIFEST).read_text())["graphs"]].index(name)
    edited(folder, "graphs", index, "digest", value=hashlib.sha256(b"not a graph").hexdigest())
    assert f"{name} is not loaded by onnxruntime" in told(folder)


def test_a_provider_that_is_not_there(folder: Path):
    runtime = Runtime(providers=("NoSuchProvider",))
    placement = Placement(dtype=torch.float32, device=PLACEMENT.device, table=PLACEMENT.table, runtime=runtime)
    with pytest.raises(ConfigError) as caught:
        load(folder, placement)
    possible = ", ".join(available_providers())
    assert caught.value.text == f"artifact.providers: NoSuchProvider is not there; possible: {possible}"


def test_a_provider_that_did_not_start():
    check_started(["A", "CPU"], ["A", "CPU"])
    check_started(["CPU"], ["CPU"])
    with pytest.raises(ConfigError, match="A did not start, and onnxruntime would compute by CPU"):
        check_started(["A", "CPU"], ["CPU"])


def test_other_steps_than_exported(folder: Path):
    assert "policy.steps: 7; this artifact was exported for 3" in told(folder, ConfigError, steps=7)


@pytest.mark.parametrize(("dtype", "device"), [(torch.bfloat16, "cpu"), (torch.float32, "meta")])
def test_another_dtype_or_device(folder: Path, dtype: torch.dtype, device: str):
    placement = Placement(dtype=dtype, device=torch.device(device), table=PLACEMENT.table)
    with pytest.raises(ConfigError, match="an exported artifact"):
        load(folder, placement)


def test_a_missing_onnxruntime_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    assert "pip install ./client '.[onnx]'" in told(folder, DependencyError)
