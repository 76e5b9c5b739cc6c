"""`edgeflow demo`, whole: a service of its own, all of its modes, the report."""

from __future__ import annotations

import json
import threading

import pytest

from edgeflow.demo.command import CHUNK_MODES, DEMO_MODES, demo_command

ANSWERED_AT_LEAST = 20  # one frame in so many; beside a busy machine the camera slows down too


@pytest.mark.parametrize(("model", "offered"), [("demo", DEMO_MODES), ("demo-flow", CHUNK_MODES)])
def test_the_demonstration_runs_to_its_end(model, offered, tmp_path, capsys):
    out, expected = tmp_path / "demo-report", {mode.value for mode in offered}
    assert demo_command(1.0, 0.0, "none", model, out, modes=offered) == 0
    report = json.loads((out / "report.json").read_text())
    modes = {mode["mode"]: mode for mode in report["modes"]}
    assert set(modes) == expected
    for mode in modes.values():
        assert mode["episodes"] >= 1
        assert mode["summary"]["age_ms"]["p50"] > 0
    for name, counts in report["conditions"]["statistics"].items():
        left = counts["acted"] + counts["superseded"] + counts["rejected"] + counts["dropped"]
        assert counts["offered"] == left + counts["in_flight"]
        assert counts["rejected"] == 0
        assert counts["acted"] >= counts["offered"] / ANSWERED_AT_LEAST, counts
        unplayed = counts["late"] - counts["late_played"]
        received = counts["actions"] + counts["ignored"] + counts["too_old"] + unplayed
        assert counts["acted"] <= received  # an action comes before its frame's ACTED
        assert 1 <= modes[name]["summary"]["actions"] <= counts["actions"]
    assert {path.suffix for path in out.iterdir()} == {".json", ".png"}
    printed = capsys.readouterr().out
    assert report["verdict"][:40] in printed and "pipelined" in printed
    if "speculative" in expected:
        assert 1 <= report["conditions"]["passes_per_action"]["speculative"] < 7
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith(("edgeflow-", "service-"))]
    assert ours == []
