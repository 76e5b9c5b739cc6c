"""The products that the tuner times are those that serving binds: the same role, format and sizes of each weight."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.config.service import load_config
from edgeflow.engine.chat import precision
from edgeflow.engine.chat.build import load_chat
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.table.overlay import (
    Overlay,
    OverlayEntry,
    current_stamp,
    read_overlay,
)
from edgeflow.lab.trials.model_cases import model_cases
from edgeflow.lab.trials.tune import Tuner
from edgeflow.lab.tuning.operators import DIMENSIONS, write_overlay
from edgeflow.lab.tuning.subject import dtype_for, model_shape
from edgeflow.models.chat import load_chat_model
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import ConfigError
from tests import tiny_checkpoint
from tests.cases import by_night
from tests.chat_checkpoint import write_chat_checkpoint
from tests.policies.flow import tiny
from tests.policies.flow.tiny_policies import RATE
from tests.policies.flow.weights import Tiny
from tests.quantised import quantised_copies

CPU = torch.device("cpu")
ROWS = 12
SMOLVLA = "model.vlm_with_expert.vlm.model.text_model."
PI = "model.paligemma_with_expert.paligemma.model.language_model."
Products = set[tuple[str, ...]]
"""model_name, role, format and sizes of each weight"""


class Noting(OperatorTable):
    """The reference serves, and every product that is looked up is noted."""

    def __init__(self) -> None:
        super().__init__(BUILT_IN, [])
        self.products: Products = set()

    def choose(self, context, hardware, dtype):
        if context.op_name == "linear":
            sizes = context.shape_sig.partition("|")[2]
            self.products.add((context.model_name, context.layer_role, context.weight, sizes))
        return super().choose(context, hardware, dtype)


def bound_by_chat(directory: Path, head: str) -> Products:
    table = Noting()
    load_chat_model(directory, torch.float32, CPU, table=table, head=head)
    return table.products


def bound_by_policy(directory: Path) -> Products:
    table, family = Noting(), family_of(directory)
    published = family.load(directory, {} if family.name == "openvla" else RATE, LoadOptions())
    published.load(Placement(dtype=torch.float32, device=CPU, table=table))
    return table.products


def tuned(directory: Path, head: str = "float") -> Products:
    shape = model_shape(str(directory), ROWS, head)
    cases = [case for case in model_cases(shape) if case.op_name == "linear"]
    return {(shape.family, case.layer_role, case.weight, case.signed()[1].partition("|")[2]) for case in cases}


def write_chat(folder: Path, *, tied: bool) -> Path:
    """A chat model in 4 bits, whose last layer stays in floats."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    (folder / "source").mkdir()
    write_chat_checkpoint(folder / "source", "qwen2", **sizes, tie_word_embeddings=tied)
    return quantised_copies(folder / "source", folder, "model.layers.0.", ["layers.1."])[0]


@pytest.mark.parametrize("tied", [True, False])
def test_problems_of_a_chat_model(tied: bool, tmp_path: Path):
    chat = write_chat(tmp_path, tied=tied)
    for head in ("float", "int8"):
        found = tuned(chat, head)
        assert found == bound_by_chat(chat, head)
        assert {(role, format) for _, role, format, _ in found} >= {("qkv", AWQ), ("qkv", "float"), ("head", head)}


@pytest.mark.parametrize("query_rank", [None, 32])
def test_problems_of_a_model_with_latents(query_rank: int | None, tmp_path: Path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    sizes |= {"first_k_dense_replace": 2, "kv_lora_rank": 32, "v_head_dim": 8, "q_lora_rank": query_rank}
    write_chat_checkpoint(tmp_path / "source", "deepseek_v2", **sizes)
    chat = quantised_copies(tmp_path / "source", tmp_path, "model.layers.0.", ["layers.1."])[0]
    for directory in (chat, tmp_path / "source"):
        found = tuned(directory)
        assert found == bound_by_chat(directory, "float")
        assert ("query" in {role for _, role, *_ in found}) == (query_rank is not None)


def openvla(folder: Path) -> tuple[Path, str, list[str]]:
    source = tiny_checkpoint.write_checkpoint(folder / "source", tiny_checkpoint.TinySize(hidden=64, mlp=96))
    return source, "language_model.", ["vision_backbone", "projector"]


def smolvla(folder: Path) -> tuple[Path, str, list[str]]:
    source = tiny.write_checkpoint(folder / "source", Tiny(kind="smolvla", width=32, expert=24, inner=64))
    return source, SMOLVLA, ["lm_expert", "vision_model", "connector"]


def first_layer_of_pi0(folder: Path) -> tuple[Path, str, list[str]]:
    source = tiny.write_checkpoint(folder / "source", Tiny(kind="pi0", width=32, expert=24, inner=64))
    return (
        source,
        f"{PI}layers.0.",
        ["gemma_expert", "vision_tower", "language_model.layers.1.", "language_model.layers.2."],
    )


@pytest.mark.parametrize("write", [openvla, smolvla, first_layer_of_pi0])
def test_problems_of_a_policy(write, tmp_path: Path):
    source, decoder, kept = write(tmp_path)
    four, floats = quantised_copies(source, tmp_path, decoder, kept)
    for directory in (four, floats):
        assert tuned(directory) == bound_by_policy(directory)
    assert {role for _, role, format, _ in tuned(four) if format == AWQ} == {"qkv", "output", "gate_up", "down"}


def test_a_policy_that_denoises_has_its_own_rows(tmp_path: Path):
    """Prompts of the rows asked for; one step, and those that are in flight beside a prompt."""
    shape = model_shape(str(smolvla(tmp_path)[0]), ROWS)
    outputs = {case.signed()[1] for case in model_cases(shape) if case.layer_role == "output"}
    sizes = {tuple(part.partition("=")[2] for part in each.split("|")) for each in outputs}
    width = shape.heads * shape.head_dim
    steps = {_class(shape.step_rows), _class(shape.step_rows * (shape.stages - 1))}
    assert sizes == {("16", "32", str(width)), *((rows, "24", str(width)) for rows in steps)}


def _class(rows: int) -> str:
    return str(1 << (rows - 1).bit_length())


def of_one_weight(overlay: Overlay) -> dict[tuple[str, str], set[str]]:
    """The implementations of each quantised weight, by role and format."""
    found: dict[tuple[str, str], set[str]] = {}
    for entry in overlay.entries:
        if entry.weight in (AWQ, "int8"):
            found.setdefault((entry.layer_role, entry.weight), set()).add(entry.impl_id)
    return found


def write_begun(out: Path, directory: Path, one_row: str, more_rows: str, all_others: str = "") -> None:
    """A file with these implementations of each quantised weight: for one row, for the other problems, and for all
    other numbers of rows; "" for no entry."""
    shape, dtype = model_shape(str(directory), ROWS, "int8"), dtype_for(str(directory), "", Hardware("cpu"))
    tuner = Tuner(table=built_in_table(), model_name=shape.family, device=CPU, dtype=dtype)
    entries = []
    for key in map(tuner.key, model_cases(shape)):
        impl_id = one_row if "m=1|" in key.shape_sig else more_rows
        impl_id = "reference" if key.weight in ("", "float") else impl_id
        named = {name: getattr(key, name) for name in DIMENSIONS}
        entries += [OverlayEntry(**named, impl_id=impl_id)] if impl_id else []
        if all_others and key.weight not in ("", "float"):
            entries.append(OverlayEntry(**{**named, "shape_sig": key.shape_sig.partition("|")[2]}, impl_id=all_others))
    write_overlay(out, Overlay(stamp=current_stamp(CPU, dtype), model=shape, entries=entries))


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(("", ""), id="new"),
        pytest.param(("reference", ""), id="of an earlier version"),
        by_night(("reference", "reference"), id="complete, all the same"),
        by_night(("reference", "native_int4"), id="complete, one differs"),
        pytest.param(("reference", "native_int4", "native_int4"), id="with all others, one differs"),
    ],
)
def test_what_is_tuned_for_a_quantised_model_serves_it(earlier: tuple[str, ...], tmp_path: Path):
    """A quantised weight gets one implementation, whichever is the fastest here, also where a file has some of its
    rows with another one; with the file the model is served as it is configured without more."""
    chat, out = write_chat(tmp_path, tied=True), tmp_path / "tuned.json"
    write_begun(out, chat, *earlier)
    arguments = ["--model", str(chat), "--rows", str(ROWS), "--samples", "1", "--device", "cpu", "--out", str(out)]
    result = CliRunner().invoke(app, ["tune", *arguments, "--head", "int8"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    chosen = of_one_weight(read_overlay(out))
    assert set(chosen) == {("head", "int8"), *((role, AWQ) for role in ("qkv", "output", "gate_up", "down"))}
    assert all(len(impl_ids) == 1 and "reference" not in impl_ids for impl_ids in chosen.values())
    changes = {"chat.model": str(chat), "chat.head": "int8", "chat.capacity": 64, "chat.operators": str(out)}
    assert load_chat(load_config(None, changes), lambda *_: None) is not None
    overlay = read_overlay(out)
    assert overlay.model is not None and overlay.model == model_shape(str(chat), ROWS, "int8")


def test_the_tuner_takes_the_dtype_in_which_the_service_computes(tmp_path: Path, monkeypatch):
    """On a CPU that multiplies bfloat16, and on one that does not."""
    chat, cpu = write_chat(tmp_path, tied=True), Hardware("cpu")
    config = json.loads((chat / "config.json").read_text())
    (chat / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    for able, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(precision, "_multiplies_bfloat16", lambda able=able: able)
        assert dtype_for(str(chat), "", cpu) == dtype_for("demo-chat", "", cpu) == dtype
        assert dtype_for("demo", "", cpu) == dtype_for("qwen2.5-0.5b", "", cpu) == torch.float32
    assert dtype_for(str(chat), "", Hardware("cuda")) == torch.bfloat16
    assert dtype_for(str(chat), "float16", cpu) == torch.float16


@pytest.mark.skipif(not precision._multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")
def test_a_model_that_is_served_in_bfloat16_is_tuned_in_it(tmp_path: Path):
    chat, out = write_chat(tmp_path, tied=True), tmp_path / "tuned.json"
    config = json.loads((chat / "config.json").read_text())
    (chat / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    ours = ["--samples", "1", "--device", "cpu", "--out", str(out)]
    model = ["--model", str(chat), "--rows", str(ROWS)]
    assert CliRunner().invoke(app, ["tune", *model, *ours], catch_exceptions=False).exit_code == 0
    changes = {"chat.model": str(chat), "chat.capacity": 64, "chat.operators": str(out)}
    assert load_chat(load_config(None, changes), lambda *_: None) is not None
    checked = CliRunner().invoke(app, ["tune", "--regress", *ours, "--json"], catch_exceptions=False)
    assert json.loads(checked.stdout), "checked in the dtype of the file"

    told = (
        rf"write another file with `edgeflow tune (--model {chat} --device cpu --dtype float32 --threads 1) --out FILE`"
    )
    with pytest.raises(ConfigError, match=told) as caught:
        load_chat(load_config(None, {**changes, "chat.dtype": "float32"}), lambda *_: None)
    named = re.search(told, str(caught.value))
    assert named is not None
    other = tmp_path / "other.json"
    again = ["tune", *named[1].split(), "--rows", str(ROWS), "--samples", "1", "--out", str(other)]
    assert CliRunner().invoke(app, again, catch_exceptions=False).exit_code == 0
    changes |= {"chat.dtype": "float32", "chat.operators": str(other)}
    assert load_chat(load_config(None, changes), lambda *_: None) is not None


def test_ops_says_that_an_overlay_would_be_rejected(tmp_path: Path):
    chat, out = write_chat(tmp_path, tied=True), tmp_path / "tuned.json"
    ops = ["ops", "--model", str(chat), "--rows", str(ROWS), "--head", "int8", "--hardware", "cpu", "--overlay"]
    write_begun(out, chat, "reference", "reference")
    told = " ".join(CliRunner().invoke(app, [*ops, str(out)], catch_exceptions=False).stdout.split())
    assert told.count("tuned.json: the service would refuse it: operators: linear ") == len(
        {("head", "int8"), *((role, AWQ) for role in ("qkv", "output", "gate_up", "down"))}
    )
    assert "reference (tuned.json: " in told and "run `edgeflow tune` again with it" in told
    write_begun(out, chat, "", "")
    assert "refuse" not in CliRunner().invoke(app, [*ops, str(out)], catch_exceptions=False).stdout


@pytest.mark.parametrize(
    ("head", "message"),
    [("fp8", "head: must be float or int8, got 'fp8'"), ("int8", "head: int8: is for chat models, and .* openvla$")],
)
def test_a_head_that_is_not_served_is_rejected(head: str, message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        model_shape(str(openvla(tmp_path)[0]), ROWS, head)
