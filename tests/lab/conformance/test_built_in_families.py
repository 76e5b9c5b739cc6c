"""The families of the tree pass the conformance kit, and the command reports what it finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.config.service import load_config
from edgeflow.lab.conformance import kit
from edgeflow.lab.conformance.kit import check_policy
from edgeflow.policies.registry import FAMILIES
from tests.policies.act.checkpoint import write_checkpoint as write_act
from tests.policies.flow.tiny import write_checkpoint as write_flow
from tests.policies.flow.weights import Tiny
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft
from tests.tiny_checkpoint import write_checkpoint as write_openvla

Case = tuple[Callable[[Path], object], dict[str, Any]]
RATE = {"control_rate_hz": 20.0}
CASES: dict[str, Case] = {
    "openvla": (write_openvla, {}),
    "openvla_oft": (write_oft, TinyOFT().settings(family="openvla_oft")),
    "act": (write_act, RATE),
    **{kind: (lambda path, kind=kind: write_flow(path, Tiny(kind=kind)), RATE) for kind in ("smolvla", "pi0", "pi05")},
}
PAST: Case = (lambda path: write_flow(path, Tiny(kind="smolvla", history=3, delay=True)), RATE)


def test_every_family_is_checked():
    assert CASES.keys() == {family.name for family in FAMILIES}


@pytest.mark.parametrize("name", [*CASES, "smolvla with a history and a delay"])
def test_a_built_in_family_passes(tmp_path: Path, name: str):
    write, settings = CASES.get(name, PAST)
    write(tmp_path / name)
    verdicts = check_policy(load_config(None, {"model": str(tmp_path / name), "policy": settings}))
    assert [each.name for each in verdicts] == ["import", "load", *kit.CHECKS, "time", "dtypes", "memory"]
    assert [each for each in verdicts if each.failed] == []


@pytest.mark.parametrize("model", ["demo", "demo-flow"])
def test_an_embedded_policy_passes(model: str):
    assert [each for each in check_policy(load_config(None, {"model": model})) if each.failed] == []


def test_a_checkpoint_that_no_family_serves_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"type": "other"}')
    (verdict,) = check_policy(load_config(None, {"model": str(tmp_path)}))
    assert verdict.failed and "has type 'other'; served: " in verdict.found


def test_the_command_reports_failures_and_exits_with_1(tmp_path: Path):
    write_act(tmp_path / "act")
    command = ["policy", "check", str(tmp_path / "act"), "--set", "policy.control_rate_hz=20"]
    result = CliRunner().invoke(app, [*command, "--most-ms", "0.01"])
    assert result.exit_code == 1
    assert "--most-ms 0.01 ms" in result.stdout and "1 of 15 checks failed" in result.stdout
    result = CliRunner().invoke(app, [*command[:-2], "--json"])
    assert result.exit_code == 1
    *_, verdict = json.loads(result.stdout)
    assert (verdict["name"], verdict["outcome"]) == ("load", "failed") and "control_rate_hz" in verdict["found"]
