"""`edgeflow export` of a small checkpoint: graphs, shared weights, manifest, and rejections."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import edgeflow
from edgeflow.artifacts.files import loaded_bytes
from edgeflow.artifacts.manifest import MANIFEST, StageName, is_artifact, read_manifest
from edgeflow.lab.export.checking import ALLOWED, CLOSE, check_error
from edgeflow.lab.export.graphs.graph_files import WEIGHTS
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.programs import program_of
from edgeflow.lab.export.request import ExportOutcome, ExportRequest
from edgeflow.lab.export.run import export
from edgeflow.models.checkpoint import fingerprint
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.files import sha256_of
from tests.policies.flow.tiny import MOST_DELAY_MS, STEP_MS, write_checkpoint
from tests.policies.flow.weights import Tiny
from tests.tiny_checkpoint import write_checkpoint as write_openvla

SMALL = Tiny(kind="smolvla", layers=2, vision_layers=1, history=2, delay=True)


def request_for(folder: Path, out: Path, **changed) -> ExportRequest:
    return ExportRequest(
        **{"folder": folder, "out": out, "shapes": ExportShapes(batches=(2,)), "precisions": {}} | changed
    )


def quiet(what: str, done: int, total: int) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("smolvla"), SMALL)


@pytest.fixture(scope="module")
def artifact(checkpoint: Path, tmp_path_factory) -> tuple[Path, ExportOutcome]:
    out = tmp_path_factory.mktemp("artifact")
    return out, export(request_for(checkpoint, out, rewrites=("erf-gelu", "rope-concat")), quiet)


def graphs(artifact) -> dict[StageName, onnx.ModelProto]:
    folder, outcome = artifact
    return {each.graph.stage: onnx.load(folder / each.graph.file, load_external_data=False) for each in outcome.graphs}


def test_graphs_are_static_and_of_standard_operators(artifact):
    found = graphs(artifact)
    assert set(found) == set(StageName)
    for model in found.values():
        assert model.ir_version == 10
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 21)]
        assert {node.op_type for node in model.graph.node} <= ALLOWED
        assert not model.functions
        values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
        assert all(dim.HasField("dim_value") for each in values for dim in each.type.tensor_type.shape.dim)


def test_substitutions_are_made_and_counted(artifact):
    _, outcome = artifact
    sites = {each.name: each.sites for each in outcome.manifest.rewrites}
    assert sites == {"erf-gelu": SMALL.vision_layers, "rope-concat": 2 * SMALL.layers}
    assert not any("ScatterND" in each.graph.operators for each in outcome.graphs if each.graph.stage is StageName.STEP)


def test_graphs_compute_what_the_networks_do(artifact):
    _, outcome = artifact
    for each in outcome.graphs:
        most = 2e-2 if each.graph.stage is StageName.TOWERS else CLOSE  # erf and tanh differ by up to 5e-4 a GELU
        assert 0 < each.error <= most


def test_weights_lie_once_in_one_file(artifact):
    folder, outcome = artifact
    (weights,) = outcome.manifest.weights
    assert weights.size == (folder / WEIGHTS).stat().st_size
    places: dict[tuple[str, str], set[StageName]] = {}
    for stage, model in graphs(artifact).items():
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                place = {entry.key: entry.value for entry in tensor.external_data}
                assert place["location"] == WEIGHTS
                places.setdefault((place["offset"], place["length"]), set()).add(stage)
    ends = sorted((int(offset), int(length)) for offset, length in places)
    assert all(first[0] + first[1] <= second[0] for first, second in pairwise(ends))
    assert any(len(stages) > 1 for stages in places.values())  # the rotations, at least


def test_memory_is_forecast_with_the_weights_of_each_graph(artifact):
    """The library copies what it multiplies by, for each graph."""
    folder, outcome = artifact
    named = 0
    for graph in outcome.manifest.graphs:
        tensors = onnx.load(folder / graph.file, load_external_data=False).graph.initializer
        external = [each for each in tensors if each.data_location == onnx.TensorProto.EXTERNAL]
        lengths = [int(entry.value) for each in external for entry in each.external_data if entry.key == "length"]
        assert graph.weight_bytes == sum(lengths) > 0
        named += graph.weight_bytes
    slots = outcome.manifest.kv
    copied = (
        2 * 4 * 2 * slots.layers * slots.positions * slots.kv_heads * slots.head_dim
    )  # of the step, whose batch is 2
    assert loaded_bytes(folder, outcome.manifest) > named + copied > (folder / WEIGHTS).stat().st_size


def test_the_manifest_describes_the_files(artifact, checkpoint: Path):
    folder, outcome = artifact
    manifest = read_manifest(folder)
    assert manifest == outcome.manifest
    assert manifest.family == "smolvla"
    assert manifest.fingerprint == fingerprint(checkpoint)
    assert is_artifact(folder) and not is_artifact(checkpoint)
    for graph in manifest.graphs:
        assert graph.digest == sha256_of(folder / graph.file)
        session = onnxruntime.InferenceSession(folder / graph.file, providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_inputs()] == [each.name for each in graph.inputs]
        assert [tuple(each.shape) for each in session.get_outputs()] == [each.shape for each in graph.outputs]
    (step,) = manifest.of(StageName.STEP)
    assert (step.rows, step.batch, step.past) == (SMALL.chunk, 2, manifest.kv.positions)
    assert (folder / manifest.preprocessing["text"]["tokenizer"]).is_file()
    assert manifest.preprocessing["denoising"]["times"] == [1.0, pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_a_history_and_delays_are_answered_as_by_the_checkpoint(artifact, checkpoint: Path):
    folder, outcome = artifact
    described = outcome.manifest.preprocessing
    assert described["history"] == {"frames": 2, "step_ms": STEP_MS} and described["most_delay_ms"] == MOST_DELAY_MS
    generator, found = np.random.default_rng(0), []
    seen: list[dict[str, Any]] = [
        {
            **{camera: generator.integers(0, 256, (16, 16, 3), np.uint8) for camera in ("top", "wrist")},
            "state": generator.normal(size=SMALL.state),
            "instruction": "lift it",
            "stamp_ns": at_ms * 1_000_000,
            "delay_ms": delay_ms,
        }
        for at_ms, delay_ms in ((1000, 0.0), (1150, 400.0))
    ]
    for model in (checkpoint, folder):
        with edgeflow.load(model, policy={"control_rate_hz": 20}, max_sessions=1) as policy:
            found.append([policy.infer(each).array for each in seen])
    np.testing.assert_allclose(*found, rtol=0, atol=1e-3)  # of erf-gelu


def test_the_folder_has_everything_but_the_weights(artifact, checkpoint: Path):
    folder, _ = artifact
    names = {path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file()}
    kept = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert names - kept == {Path("model.safetensors")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(version=2), "version is 2; served: 1: export the model again"),
        (lambda values: values.update(format="other"), "format is 'other'"),
        (lambda values: values["graphs"][0].update(file="../step.onnx"), "a file in the folder"),
        (lambda values: values["graphs"][0].update(batch=-1), r"graphs\[0\].batch has -1"),
        (lambda values: values["kv"].pop("layers"), "kv lacks layers"),
        (lambda values: values["graphs"][0]["inputs"][0].update(dtype="float8"), "float8"),
    ],
)
def test_a_manifest_that_does_not_fit_is_rejected_by_its_key(artifact, tmp_path: Path, change, message: str):
    values = json.loads((artifact[0] / MANIFEST).read_text())
    change(values)
    (tmp_path / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        read_manifest(tmp_path)


def test_the_manifest_names_a_tokenizer_beside_the_configuration(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "named", SMALL)
    (folder / "vlm" / "tokenizer.json").rename(folder / "tokenizer.json")
    _, program = program_of(folder, ExportShapes())
    assert program.preprocessing["text"]["tokenizer"] == "tokenizer.json"


def test_an_earlier_artifact_is_replaced_and_nothing_else(checkpoint: Path, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match="holds other files"):
        export(request_for(checkpoint, tmp_path), quiet)
    with pytest.raises(ConfigError, match="is the folder of the checkpoint"):
        export(request_for(checkpoint, checkpoint), quiet)


def test_shapes_beyond_the_model_are_rejected(checkpoint: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="text: a bucket of 5000 tokens; prompts of this checkpoint have at most"):
        program_of(checkpoint, ExportShapes(text=(5000,)))
    with pytest.raises(ConfigError, match="positions: slots of the family smolvla follow from text"):
        program_of(checkpoint, ExportShapes(positions=64))
    with pytest.raises(ConfigError, match="batch: 0; each must be 1 to"):
        ExportShapes(batches=(0,))
    with pytest.raises(ConfigError, match="text: 4, 4; give up to"):
        ExportShapes(text=(4, 4))
    openvla = write_openvla(tmp_path / "openvla")
    with pytest.raises(ConfigError, match="text: a bucket of 3000 tokens; the model has 2048 positions"):
        program_of(openvla, ExportShapes(text=(3000,)))


@pytest.mark.parametrize(
    ("option", "name"), [({"frames": Path("frames.npz")}, "frames"), ({"first_step": True}, "first")]
)
def test_options_of_a_calibration_that_is_not_made_are_rejected_at_once(tmp_path: Path, option: dict, name: str):
    with pytest.raises(ConfigError, match=f"{name}.*: a graph of floats is not calibrated"):
        request_for(tmp_path, tmp_path / "out", **option)
    request_for(tmp_path, tmp_path / "out", rewrites=("finite-mask",), **option)


def test_a_family_without_static_graphs_is_named_with_those_that_have(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"type": "act"}))
    with pytest.raises(CheckpointError, match="the family act have no static graphs; exported: openvla, smolvla, pi0"):
        program_of(tmp_path, ExportShapes())


def test_a_graph_of_floats_that_differs_is_not_delivered():
    check_error(CLOSE, "step.onnx")
    with pytest.raises(CheckpointError, match=r"step.onnx differs from the model by 2.0e-04"):
        check_error(2 * CLOSE, "step.onnx")
    with pytest.raises(CheckpointError):
        check_error(float("nan"), "step.onnx")
