"""`edgeflow verify --artifact` on recorded bundles."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

from typer.testing import CliRunner

from edgeflow.artifacts.manifest import MANIFEST
from edgeflow.cli import app
from edgeflow.lab.export.folder import copy_texts
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.programs import program_of
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.models.checkpoint import fingerprint
from edgeflow_client.errors import ConfigError
from tests.artifacts.exported import write_program
from tests.artifacts.tiny_artifact import artifact as another
from tests.artifacts.tiny_artifact import edited
from tests.oracles import ORACLES

FLOW, CHAT = ORACLES / "smolvla-tiny", ORACLES / "qwen2-tiny"


def exported(bundle: Path, folder: Path, shapes: ExportShapes) -> Path:
    folder.mkdir()
    copy_texts(bundle, folder)
    family, program = program_of(bundle, shapes)
    write_program(folder, program, family=family, fingerprint=fingerprint(bundle), vision=bundle == FLOW)
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(CHAT, tmp_path_factory.mktemp("chat") / "artifact", ExportShapes(text=(16,), positions=128))


def verified(bundle: Path, folder: Path):
    return verify_checkpoint(bundle, [], lambda *_: None, artifact=folder)


@pytest.mark.oracle("smolvla-tiny")
def test_a_flow_policy_agrees_in_both_modes(tmp_path: Path):
    results = verified(FLOW, exported(FLOW, tmp_path / "artifact", ExportShapes()))
    assert {mode for mode, _ in results} == {"serial", "pipelined"}
    assert {each.case for _, each in results} == {"case0", "case1", "case2"}
    assert all(each.ok and each.tolerance <= 1e-4 for _, each in results)


@pytest.mark.oracle("smolvla-tiny")
def test_prompts_longer_than_every_bucket_are_reported(tmp_path: Path):
    folder = exported(FLOW, tmp_path / "artifact", ExportShapes(text=(4,)))
    with pytest.raises(ConfigError, match=r"was exported for prompts of 4 tokens; the recordings have up to .*--text"):
        verified(FLOW, folder)


@pytest.mark.oracle("qwen2-tiny")
def test_a_chat_model_agrees_in_every_way(chat: Path):
    results = verified(CHAT, chat)
    assert {"alone", "chunks of 5", "prefix, copied", "packed"} <= {mode for mode, _ in results}
    assert all(each.ok for _, each in results)
    tokens = [each for _, each in results if each.quantity == "greedy tokens"]
    assert tokens and all(each.tolerance == 0 for each in tokens)


@pytest.mark.oracle("qwen2-tiny")
def test_another_precision_is_named_and_not_judged(chat: Path):
    values = (chat / MANIFEST).read_text()
    try:
        edited(chat, "graphs", 0, "precision", value="w8a8")
        told = CliRunner().invoke(app, ["verify", str(CHAT), "--artifact", str(chat), "--json"])
    finally:
        (chat / MANIFEST).write_text(values)
    assert told.exit_code == 0, told.output
    rows = json.loads(told.stdout)
    assert rows and all(row["quantity"].endswith("deviation with w8a8") and row["tolerance"] is None for row in rows)
    assert all(math.isfinite(row["deviation"]) for row in rows)


@pytest.mark.oracle("qwen2-tiny")
def test_an_artifact_of_another_checkpoint_is_rejected(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"was exported from the checkpoint [0-9a-f]{16}…, and .* is [0-9a-f]{16}…"):
        verified(CHAT, another(tmp_path))
    with pytest.raises(ConfigError, match=r"has no artifact\.json"):
        verified(CHAT, tmp_path)
