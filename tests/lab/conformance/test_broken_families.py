"""Families with one fault each: the kit finds every fault, by the check that it breaks and by no other."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from edgeflow.config.service import load_config
from edgeflow.lab.conformance import kit
from edgeflow.lab.conformance.kit import check_policy
from edgeflow.lab.conformance.verdicts import PolicyVerdict, VerdictKind
from tests.template_plugin import TEMPLATE, Install

FOLDER = Path(__file__).parent / "plugins"
FAULTS = {
    "batch order": "batch",
    "hidden state": "state",
    "ignored camera": "inputs",
    "wrong horizon": "chunk",
    "NaN": "finite",
    "seed": "deterministic",
    "dtype": "dtypes",
    "slow": "time",
    "memory growth": "memory",
    "ignored history": "inputs",
    "ignored delay": "delay",
    "mixed sessions": "state",
    "beyond limits": "chunk",
    "uncounted rows": "rows",
    "takes anything": "rejects",
    "footprint": "memory",
}
"""The check that finds each fault."""
SOUND = ["import", "load", *kit.CHECKS, "time", "dtypes", "memory"]


def test_the_test_of_the_template_passes(template_plugin: Install, tmp_path: Path):
    path = TEMPLATE / "tests" / "test_template.py"
    found = runpy.run_path(str(path))
    found["test_the_policy_passes_the_conformance_kit"](tmp_path)


def broken_checkpoint(folder: Path, fault: str, kind: str = "broken", **config: object) -> Path:
    """A checkpoint of the template with another type and a fault."""
    from edgeflow_template.checkpoint import write_checkpoint
    from edgeflow_template.family import TemplateConfig

    sizes = {"joints": 2, "side": 16, "width": 8, "horizon": 2, "rate_hz": 10.0}
    write_checkpoint(folder, TemplateConfig(**{**sizes, **config}))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "type": kind, "fault": fault}))
    return folder


def verdicts_of(folder: Path) -> dict[str, PolicyVerdict]:
    return {verdict.name: verdict for verdict in check_policy(load_config(None, {"model": str(folder)}))}


def failed(verdicts: dict[str, PolicyVerdict]) -> list[str]:
    return [name for name, verdict in verdicts.items() if verdict.failed]


def test_a_sound_family_passes_every_check(template_plugin: Install, tmp_path: Path):
    template_plugin(FOLDER, "edgeflow-broken", "broken", "edgeflow_broken:BROKEN")
    verdicts = verdicts_of(broken_checkpoint(tmp_path / "sound", ""))
    assert list(verdicts) == SOUND
    skipped = [name for name, each in verdicts.items() if each.outcome is not VerdictKind.OK]
    assert skipped == ["delay", "modes"], verdicts
    assert verdicts["import"].found == "broken of edgeflow-broken 2.5 is imported without torch"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_check_only(
    template_plugin: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
):
    template_plugin(FOLDER, "edgeflow-broken", "broken", "edgeflow_broken:BROKEN")
    monkeypatch.setattr(kit, "check_import", lambda *_: "")  # in a process of its own, for the sound one
    rate_hz = 1000.0 if fault == "slow" else 10.0
    verdicts = verdicts_of(broken_checkpoint(tmp_path / "broken", fault, rate_hz=rate_hz))
    assert failed(verdicts) == [FAULTS[fault]]
    verdict = verdicts[FAULTS[fault]]
    assert verdict.found and verdict.advice and "\n" not in verdict.found


@pytest.mark.parametrize(
    ("declared", "check", "found"),
    [
        ("history", "state", "answers depend on the last 3 frames only"),
        ("sessions", "state", "state per session only"),
        ("delay", "delay", "used, 0 to 500 ms"),
    ],
)
def test_what_a_family_declares_it_may_keep(
    template_plugin: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, check: str, found: str
):
    template_plugin(FOLDER, "edgeflow-broken", "broken", "edgeflow_broken:BROKEN")
    monkeypatch.setattr(kit, "check_import", lambda *_: "")
    verdicts = verdicts_of(broken_checkpoint(tmp_path / "broken", declared))
    assert failed(verdicts) == [] and verdicts[check].found.startswith(found)


@pytest.mark.parametrize(
    ("code", "named"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import torch", "ImportError: it imports torch")],
)
def test_a_family_that_fails_at_import_is_named(template_plugin: Install, tmp_path: Path, code: str, named: str):
    family = "from dataclasses import replace\nfrom edgeflow_template.family import TEMPLATE\n"
    (tmp_path / "edgeflow_raising.py").write_text(f"{family}{code}\nRAISING = replace(TEMPLATE, name='raising')\n")
    (tmp_path / "torch.py").write_text("")  # another one, which takes no second to load
    directory = broken_checkpoint(tmp_path / "raising", "", "raising")
    template_plugin(tmp_path, "robot-raising", "raising", "edgeflow_raising:RAISING")
    sys.path.remove(str(tmp_path))
    sys.path.insert(0, str(tmp_path))
    verdicts = verdicts_of(directory)
    assert list(verdicts) == failed(verdicts) == ["import"]
    assert f"raising of robot-raising 2.5: {named}" in verdicts["import"].found
