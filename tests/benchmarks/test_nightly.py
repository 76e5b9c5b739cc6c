"""The parts of the nightly tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.chaos.__main__ import SCENARIOS
from benchmarks.chaos.service import ROOT
from benchmarks.fuzz.nightly import PARTS, NightlyPart, NightlyStep, run_part

HOUR = 60


def test_parts_and_steps_have_names_and_last_an_hour_at_most():
    names = [part.name for part in PARTS]
    steps = [step.name for part in PARTS for step in part.steps]
    assert len(set(names)) == len(names) and len(set(steps)) == len(steps)
    assert not [part.name for part in PARTS if part.minutes > HOUR]


def test_every_scenario_is_there():
    steps = [step for part in PARTS for step in part.steps if "benchmarks.chaos" in step.command]
    named = {step.command[3] for step in steps}
    assert named <= set(SCENARIOS)
    assert set(SCENARIOS) - named == {"client-kill", "server-stop", "stalls"}  # their bounds need an idle machine


def test_every_scenario_is_scaled():
    steps = [step for part in PARTS for step in part.steps if "benchmarks.chaos" in step.command]
    assert not [step.name for step in steps if step.count is None]


def test_what_a_step_counts_is_scaled(tmp_path: Path):
    step = NightlyStep("some", ("run",), ("--count", 1000))
    assert step.words(0.1, tmp_path) == ["run", "--count=100", f"--json={tmp_path}/some.json"]
    assert step.words(1e-9, tmp_path)[1] == "--count=1"
    assert NightlyStep("some", ("run",), ("--minutes", 10.0), result=False).words(0.05, tmp_path) == [
        "run",
        "--minutes=0.5",
    ]


def test_a_part_writes_its_outcome_and_runs_all_its_steps(tmp_path: Path):
    steps = [
        NightlyStep(name, (sys.executable, "-c", code), result=False)
        for name, code in (("fails", "import sys; print('why'); sys.exit(3)"), ("passes", "pass"))
    ]
    results = run_part(NightlyPart("some", 1, tuple(steps)), 1.0, tmp_path, Console(quiet=True))
    assert [result.exit_code for result in results] == [3, 0]
    written = json.loads((tmp_path / "some.json").read_text())
    assert (written["part"], written["passed"], written["machine"]["cores"] > 0) == ("some", False, True)
    assert [step["step"] for step in written["steps"]] == ["fails", "passes"]
    assert (tmp_path / "fails.log").read_text() == "why\n"


def test_the_parts_are_listed_and_an_unknown_one_is_rejected():
    command = [sys.executable, "-m", "benchmarks.fuzz.nightly"]
    listed = subprocess.run([*command, "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0 and all(part.name in listed.stdout for part in PARTS)
    refused = subprocess.run([*command, "--part", "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "resources" in refused.stderr
