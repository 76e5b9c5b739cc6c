"""The figures, the ramp's knee, thresholds both ways, and what a person and a machine are shown."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from edgeflow_client.connection.wire import opened_of
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.command import recent, write_folder
from edgeflow_client.loadtest.pictures import draw_ages
from edgeflow_client.loadtest.results import FIGURES, RATIO, read_limits, results_json, results_of
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.plan import Bursts, Fixed, Ramp
from edgeflow_client.loadtest.summary import generator_of, summarise
from edgeflow_client.loadtest.tables import print_results
from edgeflow_client.timeline import Timeline
from edgeflow_client.types import Disposition, Mode
from tests.client.loadtest.conftest import MS, acted, disposed, measured
from tests.client.scripted import opened
from tests.drawn import drawn, said

__all__ = ["drawn"]  # a fixture here too

FORECAST = replace(opened_of(opened()), mode=Mode.PIPELINED, depth=7, predicted_fps=25.0, predicted_age_s=0.016)


def busy() -> list[Ledger]:
    """Two robots: ten actions 40 ms old every 100 ms; five actions 60 ms old, and one frame of every other fate."""
    first, second = Ledger(0), Ledger(1)
    for index in range(10):
        acted(first, index * 100, 40)
    for index in range(5):
        acted(second, index * 200, 60)
    disposed(second, 810, Disposition.SUPERSEDED, "SUPERSEDED")
    disposed(second, 820, Disposition.REJECTED, "RATE_EXCEEDED")
    disposed(second, 830, Disposition.DROPPED, "WORKER_LOST")
    second.offer(840 * MS, 843 * MS)
    return [first, second]


def test_figures_of_a_robot_and_of_all():
    run = measured(busy())
    one, two = (summarise(run, [ledger]) for ledger in run.ledgers)
    total = summarise(run, run.ledgers)
    assert (one.frames.offered, one.frames.acted, one.fps) == (10, 10, pytest.approx(10.0))
    assert (one.age_ms.p50, one.age_ms.max, one.service_ms.p99) == (40.0, 40.0, 20.0)
    assert (one.transport_ms.p50, one.decode_ms.p50, one.queue_ms.p50, one.inference_ms.p50) == (20.0, 1.0, 2.0, 4.0)
    assert (one.interval_ms.count, one.interval_ms.p50, one.jitter_ms) == (9, 100.0, 0.0)
    assert (one.pass_ms.p50, one.pass_jitter) == (1.0, 1.0)
    assert two.frames.rejected == {"RATE_EXCEEDED": 1} and two.frames.dropped == {"WORKER_LOST": 1}
    assert two.frames.unanswered == {"NO_ANSWER": 1} and two.frames.superseded == 1
    assert (total.frames.offered, total.frames.acted, total.fps) == (19, 15, pytest.approx(15.0))
    assert total.age_ms.mean == pytest.approx((10 * 40 + 5 * 60) / 15)
    assert total.interval_ms.count == 13, "intervals are within a robot"


def test_only_the_measured_time_counts():
    run = measured(busy())
    run.begin_ns, run.end_ns = 100 * MS, 500 * MS
    total = summarise(run, run.ledgers)
    assert (total.frames.offered, total.frames.acted) == (4 + 2, 4 + 2)
    assert total.fps == pytest.approx((4 + 2) / 0.4)
    assert total.hold == {}
    run.ledgers[0].happen(99 * MS, "hold", "INGRESS_SILENT")
    run.ledgers[0].happen(200 * MS, "hold", "WORKER_LOST")
    assert summarise(run, run.ledgers).hold == {"WORKER_LOST": 1}


def test_misses_are_measured_by_the_limit_or_the_validity():
    ledger = Ledger(0)
    for due, age in ((0, 50), (100, 260), (400, 90)):
        acted(ledger, due, age)
    assert summarise(measured([ledger]), [ledger]).misses == 1
    run = measured([ledger])
    strict = measured([ledger], session=replace(run.plan.session, max_action_age_s=0.08))
    assert summarise(strict, [ledger]).misses == 2


def test_the_limit_that_an_action_carries_comes_before_its_validity():
    ledger = Ledger(0)
    for due, age in ((0, 50), (100, 260), (400, 301)):
        acted(ledger, due, age, max_age_ms=300)
    assert summarise(measured([ledger]), [ledger]).misses == 1


def test_passes_overtaken_frames_and_unverified_tokens_are_reported():
    ledger = Ledger(0)
    for index, passes in enumerate((1, 2, 2, 7)):
        acted(ledger, 100 * index, 40, passes=passes, unsettled=3 * (passes == 1))
    for due_ms, reason in ((410, "OVERTAKEN"), (420, "OVERTAKEN"), (430, "SUPERSEDED"), (440, "OVERTAKEN")):
        disposed(ledger, due_ms, Disposition.SUPERSEDED, reason)
    run = measured([ledger])
    total = summarise(run, [ledger])
    assert (total.passes.mean, total.passes.p50, total.passes.max) == (3.0, 2.0, 7.0)
    assert (total.frames.superseded, total.frames.overtaken, total.frames.shares["overtaken_share"]) == (4, 3, 3 / 8)
    assert (total.frames.unsettled, total.frames.shares["unsettled_share"]) == (1, 1 / 4)
    results = results_of(run, {})
    assert "passes per action: mean 3.00, p50 2.00, max 7.00; frames overtaken: 37.5 %" in shown(results)
    assert "actions with unverified tokens: 25.0 %" in shown(results)
    content = json.loads(results_json(results))["total"]
    assert (content["passes"]["max"], content["frames"]["overtaken_share"]) == (7.0, 3 / 8)
    assert (content["frames"]["unsettled"], content["frames"]["unsettled_share"]) == (1, 1 / 4)


def test_gaps_reach_to_the_end_of_the_run():
    ledger = Ledger(0)
    for due in (0, 200, 600, 700):
        acted(ledger, due, 0.001)
    total = summarise(measured([ledger]), [ledger])
    assert (total.gaps, round(total.longest_gap_ms)) == (2, 400)
    assert (round(total.held_ms), total.held_share) == (200, pytest.approx(0.2, abs=1e-3))
    silent = summarise(measured([Ledger(0)]), [Ledger(0)])
    assert (silent.gaps, silent.longest_gap_ms, silent.fps) == (1, 1000.0, 0.0)
    assert math.isnan(silent.age_ms.p50) and math.isnan(silent.pass_jitter)


def test_latency_at_execution_counts_rows_until_another_answer_takes_over():
    ledger = Ledger(0)
    for due_ms in (0, 100):
        acted(ledger, due_ms, 40, executed=Timeline(due_ms * MS, 20 * MS, 8))
    acted(ledger, 200, 40)  # not executed: another chunk was
    latency = summarise(measured([ledger]), [ledger]).latency_at_execution_ms
    assert (latency.count, latency.max) == (5 + 6, 140.0), "40 to 120 ms until the second takes over, then to its end"


def test_the_generator_knows_when_it_is_the_bottleneck():
    ledger = Ledger(0)
    for index in range(100):
        ledger.offer(index * MS, index * MS + (9 * MS if index > 90 else 0))
    run = measured([ledger])
    assert generator_of(run).is_bottleneck
    run.ledgers = [Ledger(0)]
    assert not generator_of(run).is_bottleneck
    run.lags_ns = [6 * MS] * 10
    assert generator_of(run).is_bottleneck


def test_the_knee_is_the_last_rate_that_was_followed():
    """10, 20, 40 Hz for 1 s each; the service acts on 20 a second at most."""
    ledger = Ledger(0)
    for step, rate in enumerate((10, 20, 40)):
        for index in range(rate):
            due_ms = 1000 * (step + index / rate)
            if rate < 40 or index % 2:
                acted(ledger, due_ms, 10)
            else:
                disposed(ledger, due_ms, Disposition.SUPERSEDED, "SUPERSEDED")
    run = measured([ledger], end_ms=3000, pattern=Ramp(10, 40, step_s=1, factor=2))
    results = results_of(run, {})
    assert [(step.rate_hz, step.offered_hz, step.followed) for step in results.steps] == [
        *((10, 10, True), (20, 20, True), (40, 40, False))
    ]
    assert results.knee is not None and results.knee.rate_hz == 20
    assert json.loads(results_json(results))["knee"]["acted_hz"] == pytest.approx(20, abs=1)
    text = shown(results)
    assert "knee: 20.0 actions per second" in text


def test_forecasts_are_judged_when_their_period_was_kept():
    ledger = Ledger(0)
    for index in range(20):
        acted(ledger, index * 50, 40)
    run = measured([ledger], pattern=Fixed(20.0))
    run.opened = [FORECAST]
    (prediction,) = results_of(run, {}).predictions
    assert prediction is not None
    assert (prediction.fps_deviation, prediction.age_deviation) == (pytest.approx(-20), pytest.approx(25))
    assert "-20 %" in shown(results_of(run, {}))
    run = measured([ledger])
    run.opened = [FORECAST]
    (prediction,) = results_of(run, {}).predictions
    assert prediction is not None and math.isnan(prediction.fps_deviation)


# name: a limit that busy() keeps, one that it does not
LIMITS = {
    "max-age-p50": (40, 39),
    "max-age-p90": (60, 59),
    "max-age-p99": (60, 59),
    "max-age-p999": (60, 59),
    "max-service-p99": (30, 29),
    "max-jitter": (50, 1),
    "max-start-jitter-p99": (0, -1),
    "min-fps": (5, 5.1),
    "max-misses": (0, -1),
    "max-gaps": (0, -1),
    "max-superseded": (1, 0),
    "max-rejected": (1, 0),
    "max-dropped": (1, 0),
    "max-unanswered": (1, 0),
}


@pytest.mark.parametrize("name", [each for each in FIGURES if each != RATIO])
def test_every_threshold_is_met_and_missed(name):
    run = measured(busy())
    kept, missed = LIMITS[name]
    assert results_of(run, {name: kept}).met
    results = results_of(run, {name: missed})
    assert not results.met
    assert "NOT MET" in shown(results) and name in shown(results)


def test_limits_are_read_as_times_or_numbers():
    assert read_limits({"max_age_p99": "80ms", "min_fps": "19.5"}) == {"max-age-p99": 80.0, "min-fps": 19.5}
    for settings, words in (
        ({"max_age_p99": "80"}, r"limits\.max_age_p99: '80' is not a time such as 80ms"),
        ({"max_misses": "none"}, r"limits\.max_misses: 'none' is not a number"),
        ({"max_misses": "-3"}, r"limits\.max_misses: '-3' is not a finite number from 0 on"),
        ({"min_fps": "nan"}, r"limits\.min_fps: 'nan' is not a finite"),
        ({"max_age": "80ms"}, r"limits\.max_age: unknown key; known: max_age_p50, .*max_jitter_ratio"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_limits(settings)


def test_missing_values_meet_no_threshold():
    assert not results_of(measured([Ledger(0)]), {"max-age-p99": 1e9}).met


def test_a_rejected_robot_is_not_what_was_asked_for():
    run = measured(busy())
    assert results_of(run, {}).met
    run.refusals = ["", "RESOURCE_EXHAUSTED: no room [bold]"]
    results = results_of(run, {})
    assert not results.met and "robot 1 rejected: RESOURCE_EXHAUSTED: no room [bold]" in shown(results)


def test_json_has_no_nan_and_the_folder_has_everything(tmp_path, drawn):
    run = measured([*busy(), Ledger(2)])
    run.opened[0] = FORECAST
    for begin_ns in (run.begin_ns - 1, run.begin_ns, run.begin_ns + 5 * MS):  # the first one before the measurement
        run.ledgers[2].happen(begin_ns, "hold", "INGRESS_SILENT")
    results = results_of(run, {"max-age-p99": 80.0, "min-fps": 2.0})
    write_folder(tmp_path, run, results)
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["total"]["frames"]["rejected"] == {"RATE_EXCEEDED": 1}
    assert content["robots"][2]["age_ms"]["p50"] is None
    assert content["plan"]["pattern"] == {"kind": "closed", "window": 1}
    assert content["thresholds"][0]["met"] is True
    rows = list(csv.DictReader((tmp_path / "frames.csv").read_text().splitlines()))
    assert len(rows) == 19
    assert (rows[10]["robot"], rows[10]["fate"], rows[10]["age_ms"]) == ("1", "acted", "60.000")
    assert (rows[-1]["fate"], rows[-1]["late_ms"], rows[-1]["age_ms"]) == ("unanswered", "3.000", "")
    names = {"age-distribution.png", "age.png", "dispositions.png", "rate.png"}
    assert set(drawn) == names == {path.name for path in tmp_path.glob("*.png")}
    assert all("127.0.0.1:0, pipelined, 3 robots, as fast as answered, 1 s" in said(drawn[name]) for name in names)
    assert all("asked: p99 at most 80 ms" in said(drawn[name]) for name in ("age.png", "age-distribution.png"))
    assert "asked: at least 2 for each robot" in said(drawn["rate.png"])
    assert "robot 2" in said(drawn["age.png"]) and "p95: 60.0 ms" in said(drawn["age-distribution.png"])
    assert "HOLD: 2" in said(drawn["age.png"]) and "STOP" not in said(drawn["age.png"])
    assert "rejected: 1" in said(drawn["dispositions.png"])


@pytest.mark.parametrize(
    ("pattern", "load"),
    [
        (Fixed(20.0), "20 frames per second"),
        (Bursts(3), "3 frames every 1 s"),
        (Ramp(1, 2), "1 to 2 frames per second"),
    ],
)
def test_a_plots_title_says_what_was_sent(tmp_path, drawn, pattern, load):
    run = measured([Ledger(number) for number in range(9)], pattern=pattern)
    draw_ages(tmp_path / "age.png", run, results_of(run, {}))
    assert f"9 robots, {load}" in said(drawn["age.png"]) and "robot 8" not in said(drawn["age.png"])


def test_the_live_view_counts_the_last_second():
    ledgers = busy()
    fps, age_ms = recent(ledgers, 1000 * MS)
    assert (fps, age_ms) == (15.0, 40.0)
    assert recent(ledgers, 5000 * MS)[0] == 0.0 and math.isnan(recent(ledgers, 5000 * MS)[1])


def shown(results) -> str:
    wide, narrow = (printed(results, width) for width in (140, 80))
    assert set(re.findall(r"[\w.]+", wide)) == set(re.findall(r"[\w.]+", narrow)), "80 columns split or cut a word"
    return wide


def printed(results, width: int) -> str:
    stream = io.StringIO()
    print_results(results, Console(file=stream, width=width))
    return stream.getvalue()
