"""The README's strip of pictures: its command writes it, and what it states comes from the result file."""

from __future__ import annotations

import json

from PIL import Image

from benchmarks.closed_loop import strip
from benchmarks.closed_loop.grid import EXACT
from tests.benchmarks.test_closed_loop import RESULTS

COMMITTED = RESULTS.parents[1] / "docs" / "images" / "modes-strip.json"


def of_the_result_file(mode: str) -> dict[str, object]:
    rows = json.loads(strip.RESULTS.read_text())["conditions"]
    (row,) = (
        row
        for row in rows
        if (row["mode"], row["profile"], row["speed_cm_s"], row["policy"]) == (mode, "rtx5090", 5.0, "demo")
        and row["anchored"]
    )
    return {name: row[name] for name in ("mode", "fps", "age_mean_ms", "successes", "episodes")}


def test_the_command_writes_the_strip_and_all_that_it_states(monkeypatch, tmp_path):
    monkeypatch.setattr(strip, "PACES", (EXACT,))
    monkeypatch.setattr(strip, "_RENDERED", (56, 52))
    out = tmp_path / "strip.png"
    monkeypatch.setattr("sys.argv", ["strip", "--out", str(out)])
    strip.main()
    with Image.open(out) as picture:
        assert picture.size == (1600, 780)
    stated = json.loads(out.with_suffix(".json").read_text())
    (mode,) = stated["modes"]
    seconds = [shot["seconds"] for shot in mode["shots"]]
    assert mode["grasped"] and seconds == sorted(seconds) and len(seconds) == 1 + len(strip.MOMENTS_S)
    assert mode["shots"][-1]["apart_mm"] <= 15.0, "a grasp is this near"
    measured = of_the_result_file("speculative")
    assert {name: mode[name] for name in measured} == measured


def test_the_committed_strip_states_what_the_result_file_has():
    stated = json.loads(COMMITTED.read_text())
    assert stated["results"] == strip.RESULTS.name
    for mode in stated["modes"]:
        assert {name: mode[name] for name in mode if name not in ("grasped", "shots")} == of_the_result_file(
            mode["mode"]
        )
    assert COMMITTED.with_suffix(".png").stat().st_size <= 300_000
