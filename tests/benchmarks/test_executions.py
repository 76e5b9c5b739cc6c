"""Executions of a flow policy: cells, targets, a run that goes on, and the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.closed_loop import executions
from benchmarks.pictures import __main__ as pictures
from edgeflow_client.errors import ConfigError
from tests.drawn import drawn, said

__all__ = ["drawn"]  # a fixture here too


def row(cell: executions.ExecutionCell, successes: int = 195, episodes: int = 200) -> dict:
    return {
        "cell": cell.name,
        "profile": cell.profile,
        "speed_cm_s": cell.speed_cm_s,
        "jump_cm": cell.jump_cm,
        "execution": cell.execution.value,
        "chunk_ms": 100.0,
        "successes": successes,
        "episodes": episodes,
        "success": successes / episodes,
        "interval_95": [0.9, 0.99],
        "seconds_per_success": 2.1,
        "held_ticks_per_minute": 0.0,
    }


def test_cells_with_targets_come_first_and_names_differ():
    cells = executions.execution_cells()
    assert len({cell.name for cell in cells}) == len(cells)
    first = [cell for cell in cells if cell.has_target]
    assert cells[: len(first)] == first
    assert {(cell.profile, cell.speed_cm_s) for cell in first} == set(executions.SUCCESS)


def test_targets_say_what_was_missed():
    rows = [row(cell) for cell in executions.execution_cells() if cell.execution.value != "rest"]
    found = {(each["cell"], each["figure"]): each for each in executions.execution_targets(rows)}
    assert not found["orin:0:auto", "success, %"]["met"] and found["orin:2.5:auto", "success, %"]["met"]
    assert found["orin:0:auto", "seconds per success"]["met"]
    assert found["rtx5090:10:auto", "held ticks per minute"]["met"]
    best = "episodes below the best fixed execution"
    assert found["thor-pi05:0:auto", best]["met"]
    rest = [row(cell, 202, 200) for cell in executions.execution_cells() if cell.name == "orin:5:rest"]
    found = {(each["cell"], each["figure"]): each for each in executions.execution_targets(rows + rest)}
    assert (found["orin:5:auto", best]["measured"], found["orin:5:auto", best]["met"]) == (7, False)


def test_a_run_goes_on_and_two_parts_share_a_file(tmp_path: Path, monkeypatch, capsys):
    ran: list[str] = []

    def counted(_built: object, cell: executions.ExecutionCell, episodes: int) -> dict:
        ran.append(cell.name)
        return row(cell, episodes, episodes)

    monkeypatch.setattr(executions, "load_policy", lambda _: None)
    monkeypatch.setattr(executions, "run_cell", counted)
    file = tmp_path / "executions-cpu.json"
    for part in ("1/2", "1/2", "2/2"):
        monkeypatch.setattr(sys, "argv", ["executions", "--json", str(file), "--part", part, "--cells", "^rtx5090:5"])
        executions.main()
    assert len(ran) == len(set(ran)) == 4
    report = json.loads(file.read_text())
    assert [each["cell"] for each in report["conditions"]] == [
        f"rtx5090:5:{name}" for name in ("auto", "continue", "rest", "fresh")
    ]
    assert (
        all(each["met"] for each in report["targets"])
        and "success, %: 100, at least 99: met" in capsys.readouterr().out
    )
    with pytest.raises(ConfigError, match="part: must be such as 1/2, got '3/2'"):
        executions._part("3/2")


def test_the_picture_has_a_chart_per_speed(tmp_path: Path, drawn):
    cells = [cell for cell in executions.execution_cells() if cell.name != "orin:10:rest"]
    report = {"model": "demo-flow", "frame_hz": 20.0, "conditions": [row(cell) for cell in cells]}
    pictures.draw_of("executions-cpu.json")(tmp_path / "a.png", report)
    text = said(drawn["a.png"])
    assert all(each in text for each in ("still objects", "objects at 2.5 cm/s", "objects at 10 cm/s", "orin\n100 ms"))
    assert text.count("not run") == 1, "fresh is not expected at each speed"
