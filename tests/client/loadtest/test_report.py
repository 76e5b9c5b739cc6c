"""report.json and the pictures."""

import json

import numpy as np
import pytest

from edgeflow_client.loadtest.measure import RunRecorder, RunSummary, distribution
from edgeflow_client.loadtest.plots import Snapshot, plot_ages, plot_series, plot_strip
from edgeflow_client.loadtest.report import ModeResult, write_report

PNG = b"\x89PNG\r\n\x1a\n"


def result(mode: str, fps: float, age_ms: float, successes: int, episodes: int) -> ModeResult:
    actions = round(fps * 10)
    ages = distribution([age_ms] * actions)
    intervals = distribution([1000 / fps] * actions) if fps else distribution([])
    return ModeResult(mode, RunSummary(10.0, actions, fps, ages, intervals), episodes, successes)


SERIAL = result("serial", 5.0, 100.0, 18, 20)


def test_the_report_is_json_without_nan(tmp_path):
    path = tmp_path / "report.json"
    write_report(path, {"seed": 3}, [SERIAL, result("idle", 0.0, 0.0, 0, 0)], "a sentence.")
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert content["conditions"] == {"seed": 3}
    assert content["verdict"] == "a sentence."
    serial, idle = content["modes"]
    assert serial["summary"]["age_ms"]["p50"] == 100.0
    assert serial["success"]["value"] == 0.9
    assert idle["summary"]["age_ms"]["p50"] is None


def test_every_plot_is_a_png(tmp_path):
    rng = np.random.default_rng(0)
    recorder = RunRecorder()
    recorder.start(0)
    for index in range(200):
        recorder.record(index * 50_000_000, int(rng.integers(50_000_000, 90_000_000)))
    recorder.stop(10_000_000_000)
    snapshot = Snapshot(rng.integers(0, 255, (96, 96, 3), dtype=np.uint8), (0.05, -0.02), "grasp the red handle")
    plot_series(tmp_path / "series.png", {"serial": recorder.series(1.0), "pipelined": recorder.series(1.0)})
    plot_ages(tmp_path / "ages.png", {"serial": recorder.ages_ms, "pipelined": np.zeros(0)})
    plot_strip(tmp_path / "strip.png", [snapshot] * 3)
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(PNG)
        assert path.stat().st_size > 3000
    assert len(list(tmp_path.iterdir())) == 3
