"""The pictures and texts of the demonstration."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from edgeflow.lab.demo.command import RunView, _frame_hz
from edgeflow.lab.demo.recording import CommandedFrame, RunRecorder
from edgeflow.lab.demo.report import conditions, result_table, verdict, write_folder
from edgeflow.lab.demo.robot_run import FRAME_HZ, RobotRun, RunPlan, RunProgress
from edgeflow.lab.demo.service_process import ServiceProcess
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.errors import StartError
from edgeflow_client.flight import Flight
from edgeflow_client.types import Mode
from tests.drawn import drawn, said

__all__ = ["drawn"]  # a fixture here too

SECOND = 1_000_000_000


def recorded(interval_ms: int, age_ms: int, seconds: int = 6) -> RunRecorder:
    recorder = RunRecorder()
    recorder.start(0)
    for instant_ms in range(0, seconds * 1000, interval_ms):
        recorder.record(instant_ms * 1_000_000, age_ms * 1_000_000)
    recorder.stop(seconds * SECOND)
    return recorder


def run(mode: Mode, interval_ms: int, age_ms: int, successes: int = 9, failures: int = 1) -> RobotRun:
    recorder = recorded(interval_ms, age_ms)
    outcomes = (EpisodeOutcome.SUCCESS,) * successes + (EpisodeOutcome.TIMEOUT,) * failures
    snapshot = CommandedFrame(np.zeros((96, 96, 3), np.uint8), 1.5, (0.01, 0.02), "grasp")
    return RobotRun(
        plan=RunPlan(mode=mode, seconds=6.0),
        mode=mode,
        model="demo",
        summary=recorder.summary(6 * SECOND),
        series=recorder.series(1.0),
        ages_ms=recorder.ages_ms,
        passes=np.full(recorder.ages_ms.size, 2.5),
        outcomes=outcomes,
        snapshots=(snapshot,),
        statistics=Flight().statistics(0),
    )


RUNS = (run(Mode.SERIAL, 40, 45), run(Mode.PIPELINED, 20, 150))


def test_without_a_terminal_lines_are_printed_now_and_then():
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=120)
    with RunView(console, [Mode.SERIAL, Mode.PIPELINED], "robot") as show:
        for mode in (Mode.SERIAL, Mode.PIPELINED):
            for quarters in range(1, 45):
                recorder = recorded(50, 70, seconds=1)
                summary = recorder.summary(SECOND)
                scaled = type(summary)(quarters / 4, summary.actions, 20.0, summary.age_ms, summary.interval_ms)
                show(RunProgress(mode, scaled, quarters // 8, quarters // 16))
    lines = out.getvalue().splitlines()
    assert [line.split()[:3] for line in lines] == [
        [mode, seconds, "s"] for mode in ("serial", "pipelined") for seconds in ("5", "10")
    ]
    assert "20.0 FPS" in lines[0] and "70 ms" in lines[0] and "1 of 2" in lines[0]


def test_on_a_terminal_a_table_is_kept_up_to_date():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with RunView(console, [Mode.SERIAL], "robot") as show:
        show(RunProgress(Mode.SERIAL, RUNS[0].summary, 10, 9))
    assert "9 of 10" in out.getvalue() and "success so far" in out.getvalue()


def test_the_folder_has_figures_and_pictures(tmp_path, drawn):
    folder = tmp_path / "demo-report"
    sentence = verdict(RUNS)
    write_folder(folder, RUNS, conditions(RUNS[0], "none"), sentence)
    names = {path.name for path in folder.iterdir()}
    pictures = {"series.png", "ages.png", "modes.png", "frames-serial.png", "frames-pipelined.png"}
    assert names == pictures | {"report.json"}
    assert set(drawn) == pictures
    assert all("demo, still objects" in said(figure) for figure in drawn.values())
    assert {"90", "25", "50"} <= set(said(drawn["modes.png"]).splitlines()), "success and rates stand at their bars"
    report = json.loads((folder / "report.json").read_text())
    assert report["conditions"]["device_profile"] == "none"
    assert report["conditions"]["outcomes"]["serial"] == {"success": 9, "timeout": 1}
    assert report["conditions"]["statistics"]["serial"]["holds"] == 0
    assert report["conditions"]["passes_per_action"] == {"serial": 2.5, "pipelined": 2.5}
    assert [mode["summary"]["fps"] for mode in report["modes"]] == [25.0, 50.0]
    assert report["verdict"] == sentence


def test_the_best_mode_finished_most_tasks_and_the_sentence_says_how_its_actions_differ():
    speculative = run(Mode.SPECULATIVE, 30, 48, successes=30, failures=0)
    sentence = verdict((*RUNS, speculative))
    assert sentence.startswith("speculative is best here: it finished 30 of 30 tasks in 6 s per mode")
    assert "serial 9 of 10 tasks, pipelined 9 of 10 tasks" in sentence
    assert "more frequent and about as fresh compared with serial's (45 ms latency, 25.0 per second)" in sentence
    assert "fresher but less frequent compared with pipelined's (150 ms latency, 50.0 per second)" in sentence
    assert "does not differ significantly from serial's and pipelined's" in sentence
    assert sentence.endswith(".") and ". " not in sentence, "one sentence"


def test_speculative_may_lose():
    runs = (run(Mode.SERIAL, 40, 45, 12, 0), run(Mode.SPECULATIVE, 80, 90, 1, 11))
    sentence = verdict(runs)
    assert sentence.startswith("serial is best here: it finished 12 of 12 tasks")
    assert "fresher and more frequent compared with speculative's" in sentence
    assert "significantly" not in sentence


def test_fewest_failures_decide_between_equal_numbers_of_tasks():
    runs = (run(Mode.SERIAL, 40, 45, 9, 3), run(Mode.PIPELINED, 20, 150, 9, 1))
    assert verdict(runs).startswith("pipelined is best here: it finished 9 of 10 tasks")


def test_ties_are_reported():
    assert verdict(RUNS) == "No mode is best here: each finished 9 of 10 tasks in 6 s per mode."
    three = (*RUNS, run(Mode.SPECULATIVE, 30, 48, successes=2, failures=0))
    assert verdict(three) == (
        "serial and pipelined are equally good here: each finished 9 of 10 tasks in 6 s per mode,"
        " speculative 2 of 2 tasks."
    )


def test_a_single_mode_is_not_compared():
    assert verdict(RUNS[:1]) == "serial finished 9 of 10 tasks in 6 s."


def test_a_verdict_states_the_duration_of_the_modes():
    """Of which the plan tells the least."""
    short, *others = RUNS
    longer = replace(short, summary=replace(short.summary, seconds=9.6))
    assert verdict((longer, *others)).endswith("each finished 9 of 10 tasks in 6 to 10 s per mode.")
    assert verdict((longer,)) == "serial finished 9 of 10 tasks in 10 s."


def test_a_mode_without_actions_is_reported():
    silent = run(Mode.PIPELINED, 10_000_000, 45, 0, 1)
    silent = replace(silent, summary=RunRecorder().summary(0), passes=np.zeros(0))
    sentence = verdict((RUNS[0], silent))
    assert "the only ones beside pipelined, which had none" in sentence


def test_the_table_has_a_line_for_each_mode():
    out = io.StringIO()
    Console(file=out, width=80).print(result_table(RUNS, "demo"))
    text = out.getvalue()
    assert text.count("9 of 10") == 2
    assert "pipelined" in text and "60 to 98 %" in text, "an ordinary terminal shows it whole"
    assert text.count("2.5") == 2


@pytest.mark.parametrize(("profile", "packed_s"), [("rtx5090", 0.0514), ("orin", 0.3131)])
def test_the_camera_is_a_little_faster_than_the_device(profile, packed_s):
    assert 1.1 < _frame_hz(profile) * packed_s < 1.5
    assert _frame_hz("none") == FRAME_HZ


def test_a_service_that_cannot_start_says_why():
    with pytest.raises(StartError, match="/nowhere/at/all"), ServiceProcess(("--model", "/nowhere/at/all")) as service:
        service.start(lambda step, done, total: None)
