"""The demonstration's recordings against numpy, on random data: rate, age, jitter, intervals of shares; its report."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.lab.demo.recording import CommandedFrame, ModeResult, RunRecorder, RunSummary, wilson
from edgeflow.lab.demo.report import plot_ages, plot_series, plot_strip, write_report
from edgeflow_client.loadtest.measure import distribution
from tests.drawn import drawn, said

__all__ = ["drawn"]  # a fixture here too

SECOND = 1_000_000_000


@given(st.lists(st.tuples(st.lists(st.integers(0, 3_000), max_size=40), st.integers(1, 3_000)), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_only_actions_inside_stretches_count(stretches):
    """stretches: receipt times in ms from the stretch's start, and its length; ages are the receipt times."""
    recorder, now_ms, inside, intervals = RunRecorder(), 1000, [], []
    for times, length in stretches:
        recorder.record(now_ms * 1_000_000, 1)
        recorder.start(now_ms * 1_000_000)
        kept = sorted(time for time in times if time <= length)
        for time in kept:
            recorder.record((now_ms + time) * 1_000_000, time * 1_000_000)
        now_ms += length
        recorder.stop(now_ms * 1_000_000)
        now_ms += 500
        inside += kept
        intervals += list(np.diff(kept))
    summary = recorder.summary(now_ms * 1_000_000)
    seconds = sum(length for _, length in stretches) / 1000
    assert summary.seconds == pytest.approx(seconds)
    assert summary.actions == len(inside)
    assert summary.fps == pytest.approx(len(inside) / seconds)
    assert summary.interval_ms.count == len(intervals)
    if inside:
        assert summary.age_ms.p50 == pytest.approx(np.median(inside))
    if intervals:
        assert summary.jitter_ms == pytest.approx(np.std(intervals))


def test_the_series_counts_actions_window_by_window():
    recorder = RunRecorder()
    recorder.start(0)
    for tenths in (1, 2, 3, 11, 12, 35):
        recorder.record(tenths * SECOND // 10, tenths * 1_000_000)
    recorder.stop(3 * SECOND + SECOND // 2)
    series = recorder.series(1.0)
    assert series.seconds.tolist() == [0.5, 1.5, 2.5]
    assert series.fps.tolist() == [3.0, 2.0, 0.0]
    assert series.age_ms[:2].tolist() == [2.0, 11.5]
    assert np.isnan(series.age_ms[2])


def test_stretches_do_not_overlap():
    recorder = RunRecorder()
    recorder.start(0)
    with pytest.raises(ValueError, match="already"):
        recorder.start(1)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (7, 10), (190, 200), (1, 1)])
def test_wilson_is_where_the_score_test_just_passes(successes, trials):
    """The interval's ends p solve |share - p| = z sqrt(p (1 - p) / n); brute force over a grid."""
    share = successes / trials
    grid = np.linspace(0, 1, 200_001)
    inside = grid[np.abs(share - grid) <= 1.959964 * np.sqrt(grid * (1 - grid) / trials)]
    of = wilson(successes, trials)
    np.testing.assert_allclose([of.value, of.low, of.high], [share, inside.min(), inside.max()], atol=2e-5)


def test_wilson_contains_the_share_whatever_the_rounding():
    for trials in range(1, 200):
        for successes in (0, 1, trials - 1, trials):
            of = wilson(successes, trials)
            assert 0.0 <= of.low <= of.value <= of.high <= 1.0


def test_without_trials_nothing_is_known():
    of = wilson(0, 0)
    assert (of.low, of.high) == (0.0, 1.0) and math.isnan(of.value)
    with pytest.raises(ValueError, match="trials"):
        wilson(3, 2)


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


def test_every_plot_is_whole_and_has_a_title(tmp_path, drawn):
    rng = np.random.default_rng(0)
    recorder = RunRecorder()
    recorder.start(0)
    for index in range(200):
        recorder.record(index * 50_000_000, int(rng.integers(50_000_000, 90_000_000)))
    recorder.stop(10_000_000_000)
    image = rng.integers(0, 255, (96, 96, 3), dtype=np.uint8)
    snapshot = CommandedFrame(image, 1.5, (0.9, -0.02), "reach for the rightmost handle and close the gripper\nopen")
    series = {"serial": recorder.series(1.0), "pipelined": recorder.series(1.0)}
    plot_series(tmp_path / "series.png", series, "still objects")
    plot_ages(tmp_path / "ages.png", {"serial": recorder.ages_ms, "pipelined": np.zeros(0)}, "still objects")
    plot_strip(tmp_path / "strip.png", [snapshot] * 3, "still objects")
    assert set(drawn) == {path.name for path in tmp_path.iterdir()} == {"series.png", "ages.png", "strip.png"}
    assert all("still objects" in said(figure) for figure in drawn.values())
    assert "1.5 s" in said(drawn["strip.png"])
