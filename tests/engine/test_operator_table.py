"""A tuned overlay and other weights, from the configuration to the models; and what they cost, as `verify` tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.commands.serving import ServicePrinter
from edgeflow.config.service import load_config
from edgeflow.engine.chat.build import load_chat
from edgeflow.engine.chat.precision import choose_weights
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.placement import operators_line
from edgeflow.kernels import linear, row_operators, weights
from edgeflow.kernels.linear import Fp8Emulated
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.dimensions import ROLES, STAGES
from edgeflow.kernels.table.implementations import Hardware, Implementation
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow.kernels.table.overlay import Overlay, OverlayEntry, current_stamp
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_frames, random_policy
from edgeflow.lab.tuning.operators import write_overlay
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.model_paths import EMBEDDED_POLICY
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow.service.observe.health import HealthState
from edgeflow.service.status import ServiceStatus
from edgeflow.worker.build import build_engine
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode
from tests.oracles import ORACLES
from tests.quantised import quantised_copies
from tests.tiny_checkpoint import write_checkpoint

CPU = torch.device("cpu")
ENTRIES = [OverlayEntry(op_name="rms_norm", impl_id="reference")]


@pytest.fixture
def overlay(tmp_path) -> Path:
    """Written by hand: serves everywhere."""
    write_overlay(tmp_path / "mine.json", Overlay(entries=ENTRIES))
    return tmp_path / "mine.json"


def policy_of(tmp_path, **settings):
    model = write_checkpoint(tmp_path / "tiny")
    return build_engine(load_config(None, {"model": str(model), "device": "cpu", **settings})).engine.policy


def test_an_overlay_serves_the_policy(tmp_path, overlay):
    assert policy_of(tmp_path).decoder._stages["packed"].operators.input_norm is row_operators.rms_norm_fused
    served = policy_of(tmp_path, operators=str(overlay)).decoder._stages["packed"].operators
    assert served.input_norm is served.final_norm is row_operators.rms_norm_reference


def test_an_overlay_serves_the_chat_model(overlay):
    config = load_config(None, {"chat.operators": str(overlay)}).chat
    table = choose_weights(config, Path(), torch.float32, CPU).table
    chosen = table.choose(OperatorKey(op_name="rms_norm", model_name="llama"), Hardware("cpu"), torch.float32)
    assert (chosen.implementation.impl_id, chosen.reason) == ("reference", "mine.json: everywhere")


@pytest.mark.parametrize(
    ("changed", "weights", "told"),
    [
        (
            {"torch": "1.0"},
            "float",
            r"tuned with torch 1\.0, here it is .*: write another file with "
            r"`edgeflow tune --model \S+ --device cpu --dtype float32 --threads 1 --out FILE`$",
        ),
        (
            {},
            "fp8",
            r"tuned with weights float, here it is fp8: write another file with "
            r"`edgeflow tune --model \S+ --device cpu --dtype float32 --weights fp8 --threads 1 --out FILE`$",
        ),
    ],
)
def test_a_stale_overlay_is_rejected_with_the_command_to_run(tmp_path, overlay, changed, weights, told):
    torch.set_num_threads(1)
    stamp = current_stamp(CPU, torch.float32).model_copy(update=changed)
    write_overlay(overlay, Overlay(stamp=stamp, entries=ENTRIES))
    with pytest.raises(ConfigError, match=told):
        policy_of(tmp_path, operators=str(overlay), weights=weights)


@pytest.mark.usefixtures("one_thread_around")
@pytest.mark.parametrize(("threads", "tuned"), [(0, 1), (1, 1), (2, 2)])
def test_an_overlay_serves_with_the_threads_that_it_was_tuned_with(tmp_path, overlay, threads, tuned):
    write_overlay(overlay, Overlay(stamp=current_stamp(CPU, torch.float32, threads=tuned), entries=ENTRIES))
    served = policy_of(tmp_path, operators=str(overlay), threads=threads).decoder._stages["packed"].operators
    assert served.input_norm is row_operators.rms_norm_reference


@pytest.mark.usefixtures("one_thread_around")
def test_an_overlay_tuned_with_other_threads_is_rejected(tmp_path, overlay, chat_directory):
    write_overlay(overlay, Overlay(stamp=current_stamp(CPU, torch.float32), entries=ENTRIES))
    told = r"tuned with threads 1, here it is 2: .*`edgeflow tune .* --threads 2 --out FILE`$"
    with pytest.raises(ConfigError, match=told):
        policy_of(tmp_path, operators=str(overlay), threads=2)
    chat = {"chat.model": str(chat_directory), "chat.dtype": "float32", "chat.weights": "float"}
    with pytest.raises(ConfigError, match=told):
        load_chat(load_config(None, {**chat, "chat.operators": str(overlay), "threads": 2}), lambda *_: None)


def test_a_missing_overlay_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        policy_of(tmp_path, operators="none.json")


def test_weights_of_another_precision_serve_every_projection(tmp_path):
    decoder = policy_of(tmp_path, weights="fp8").decoder
    stage = decoder._stages["decode"]
    layer = stage.layers[0]
    attention = layer.attention
    linears = stage.head, attention.qkv, attention.output, layer.gate_up, layer.down
    assert all(isinstance(each, Fp8Emulated) for each in linears)


def test_the_configured_operators_are_reported_at_start(capsys):
    assert load_config(None, {}).chosen_operators == ""
    chosen = load_config(
        None, {"operators": "a/here.json", "weights": "fp8", "chat.operators": "b.json"}
    ).chosen_operators
    assert chosen == "policy here.json, fp8 weights; chat b.json"
    ServicePrinter(Console(width=200))(ServiceStatus(phase=HealthState.READY, operators=chosen))
    assert f"operators: {chosen}" in capsys.readouterr().out


def test_what_an_overlay_names_but_is_absent_is_reported_at_start(tmp_path, overlay):
    absent = OverlayEntry(op_kind="linear", stage="decode", impl_id="cublasLt", impl_params={"algo_index": 0})
    write_overlay(tmp_path / "paper.json", Overlay(entries=[*ENTRIES, absent]))
    config = load_config(None, {"operators": str(overlay), "chat.operators": str(tmp_path / "paper.json")})
    assert operators_line(config) == (
        "policy mine.json; chat paper.json; paper.json names an implementation that is absent here, "
        "cublasLt (edgeflow has no binding of cuBLASLt): the next best one serves"
    )
    assert operators_line(load_config(None, {"operators": str(overlay)})) == "policy mine.json"


def test_how_weights_in_4_bits_are_served_is_reported_at_start(tmp_path):
    quantised = quantised_copies(EMBEDDED_POLICY, tmp_path, "language_model.", ["vision_backbone", "projector"])[0]
    told = operators_line(load_config(None, {"model": str(quantised)}))
    assert told.startswith("policy: 4-bit weights (AWQ, groups of 32), served by ")
    assert ("native_int4, rows rounded to 8 bits" in told) is not ("not native_int4: the products in C++" in told)


def test_stage_role_and_model_reach_every_call_of_a_policy():
    """Each stage and role has an entry of its own, for implementations that note who they were chosen for."""
    calls: set[tuple[str, str, str]] = set()
    table = noting(calls, "llama")
    size = replace(SIZES["tiny"], stages=3)
    policy = random_policy(size, CPU, torch.float32, table=table)
    engine = PolicyEngine(policy, 3, size.rows + 3, table=table)
    run = OfflineRun(engine, Scheduler(limits_for(3, shift=Shift.COPY)), [Mode.PIPELINED])
    run.decode([random_frames(size, policy, 4)])
    in_a_layer = {("add_rms_norm", "input"), ("add_rms_norm", "post_attention"), ("rms_norm", "input")}
    in_a_layer |= {("linear", role) for role in ROLES["linear"] if role != "query"} | {("rms_norm", "final")}
    in_a_layer |= {(name, ROLES[name][0]) for name in ("swiglu", "rope_write_kv", "packed_attention", "greedy")}
    wanted = {(*call, stage) for call in in_a_layer for stage in STAGES}
    shifts = {("shift_kv_chain", "ring", stage) for stage in STAGES}
    assert wanted <= calls and calls - wanted <= shifts | {("varlen_attention", "full", "prefill")}
    assert calls & shifts and ("varlen_attention", "full", "prefill") in calls


def noting(calls: set[tuple[str, str, str]], model: str) -> OperatorTable:
    """The built-in table with an entry per operator, role and stage of a model."""
    table = built_in_table()
    implementations, entries = list(BUILT_IN), []
    for op_name, role, stage in ((name, role, stage) for name in ROLES for role in ROLES[name] for stage in STAGES):
        serves = table.choose(OperatorKey(op_name=op_name), Hardware("cpu"), torch.float32).load()
        function = _noted(serves, calls, (op_name, role, stage))
        implementations.append(Implementation(op_name=op_name, impl_id=f"{role} {stage}", function=function))
        key = OperatorKey(op_name=op_name, model_name=model, layer_role=role, stage=stage)
        entries.append(
            TableEntry(replace(key, model_name="vit") if op_name == "varlen_attention" else key, f"{role} {stage}")
        )
    return OperatorTable(implementations, [*table.entries, *entries])


def _noted(serves, calls, name):
    def noting(*arguments):
        made = serves(*arguments)
        if name[0] != "linear":
            calls.add(name)
            return made
        return lambda x: calls.add(name) or made(x)

    return noting


def test_verify_takes_an_overlay():
    told = CliRunner().invoke(app, ["verify", "--help"], env={"COLUMNS": "200"}).output
    assert "--operators" in told and "--weights" in told


@pytest.mark.oracle("openvla-tiny", "qwen2-tiny")
@pytest.mark.parametrize("name", ["openvla-tiny", "qwen2-tiny"])
def test_verify_reports_what_fp8_costs(name, monkeypatch):
    result = CliRunner().invoke(app, ["verify", str(ORACLES / name), "--weights", "fp8", "--json"])
    rows = json.loads(result.stdout)
    assert result.exit_code == 0 and all(row["ok"] and row["mode"] == "fp8" for row in rows)
    assert {row["quantity"] for row in rows} == {"largest logit error", "mean logit error", "tokens that differ, share"}
    assert all(row["deviation"] > 0.01 for row in rows if row["quantity"] == "mean logit error")
    for module in (linear, weights):
        monkeypatch.setattr(module, "dequantised", lambda numbers, scale: numbers.float() * scale.mean())
    assert not all(check.ok for _, check in verify_checkpoint(ORACLES / name, [], lambda *_: None, weights="fp8"))


@pytest.mark.oracle("openvla-tiny")
def test_verify_runs_an_overlay(overlay):
    command = ["verify", str(ORACLES / "openvla-tiny"), "--mode", "serial", "--operators", str(overlay)]
    assert CliRunner().invoke(app, command).exit_code == 0
    write_overlay(overlay, Overlay(entries=[OverlayEntry(op_name="rms_norm", impl_id="nothing")]))
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
