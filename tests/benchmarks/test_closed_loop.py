"""The closed-loop evaluation: its grid, what it computes from logs, and its store."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.closed_loop import episode_blocks as stores
from benchmarks.closed_loop.episode_blocks import stored
from benchmarks.closed_loop.grid import (
    EXACT,
    MODES,
    MOVING,
    ONE_PASS,
    ORIN,
    RTX5090,
    ClosedLoopCell,
    blocks,
    cells,
    condition,
)
from benchmarks.closed_loop.measures import ages_in_force_ms, measures, reactions_ms, tick_shares
from benchmarks.closed_loop.targets import targets
from edgeflow.contract import PassTimes
from edgeflow.engine.control.profile import load_profile
from edgeflow.lab.demo.evaluation import THIS_MACHINE, pace_name, result_of
from edgeflow.lab.demo.simulated.episodes import Acted, EpisodeRun
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.errors import ConfigError

MS = 1_000_000
AT_ONCE = PassTimes(stages=7, prefill_ns=0, two_prefills_ns=0, packed_ns=0, decode_ns=0, decodes_ns=0)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def acted(captured_ms: int, arrived_ms: int, settled: int = 7) -> Acted:
    return Acted(
        captured_ns=captured_ms * MS,
        arrived_ns=arrived_ms * MS,
        passes=2,
        settled=settled,
    )


def run(*actions: Acted, seconds: float = 0.4, outcome: EpisodeOutcome = EpisodeOutcome.SUCCESS) -> EpisodeRun:
    return EpisodeRun(outcome=outcome, seconds=seconds, frames=8, begun=len(actions), overtaken=0, acted=actions)


RUN = run(acted(0, 100), acted(100, 220), acted(150, 260))


def test_every_mode_meets_every_speed_on_both_devices():
    every = cells([])
    grid = {
        (cell.condition.mode, cell.condition.speed, cell.condition.profile)
        for cell in every
        if cell.condition.anchored and cell.condition.delay is None
    }
    names = [pace_name(pace, 7) for pace in MODES]
    assert set(itertools.product(names, (0.0, 0.05, 0.1), (ORIN, RTX5090))) <= grid
    assert {(name, MOVING, THIS_MACHINE) for name in ("serial", "pipelined", "speculative")} <= grid


def test_episodes_are_split_into_blocks_of_different_names():
    every = [block for cell in cells(["/seed1/policy", "/seed2/policy"]) for block in blocks(cell)]
    assert len({block.name for block in every}) == len(every)
    assert all("/" not in block.name for block in every)
    cell = ClosedLoopCell(condition(EXACT, MOVING, RTX5090), 120)
    assert [(block.first, block.count) for block in blocks(cell)] == [(0, 50), (50, 50), (100, 20)]


def test_a_trial_has_few_episodes():
    assert {cell.episodes for cell in cells([], most=3)} == {3}


def test_a_command_ages_until_the_next_one_arrives():
    ages = ages_in_force_ms(RUN)
    assert ages[0] == 100.0 and ages[11] == 210.0, "at 100 and 210 ms the frame of 0 ms counts"
    assert ages[12] == 120.0 and ages[16] == 110.0, "at 220 ms the frame of 100 ms, at 260 ms that of 150 ms"
    assert ages.size == 30


def test_an_event_waits_for_a_frame_that_shows_it_and_for_its_action():
    latencies = reactions_ms(RUN)
    assert latencies[0] == 100.0, "the frame of the same instant shows it"
    assert latencies[1] == 210.0 and latencies[10] == 120.0
    assert latencies[15] == 110.0 and latencies.size == 16, "after the last frame none is counted"


def test_ticks_are_fresh_repeat_or_wait():
    shares = tick_shares([RUN])  # 8 ticks of 50 ms; actions in the third, fifth and sixth
    assert shares == {"fresh": 3 / 8, "repeating": 3 / 8, "waiting": 2 / 8}
    assert tick_shares([run()]) == {"fresh": 0.0, "repeating": 0.0, "waiting": 1.0}


def rows(successes: int = 9) -> list[dict]:
    runs = [RUN] * successes + [run(acted(0, 100), outcome=EpisodeOutcome.TIMEOUT, seconds=8.0)]
    return [
        {
            "policy": "demo",
            **({"delay_ms": 100.0, "jitter_ms": cell.condition.delay.jitter_ns / 1e6} if cell.condition.delay else {}),
            **result_of(cell.condition, [runs], 7, 0.05).as_json(),
            **measures(runs),
        }
        for cell in cells([])
    ]


def test_targets_say_what_is_missed():
    reached = {each["figure"]: each for each in targets(rows())}
    assert reached["passes per action, rtx5090"]["met"] and reached["passes per action, rtx5090"]["measured"] == 2.0
    assert not reached["mean age, exact / pipelined"]["met"], "all modes are alike here"
    assert not reached["success at 5 cm/s, exact"]["met"]
    assert reached["success at 5 cm/s, exact - serial"]["met"]


def test_an_interrupted_evaluation_resumes(tmp_path, monkeypatch):
    ran, every = (
        [],
        [ClosedLoopCell(condition(EXACT, MOVING, RTX5090), 120), ClosedLoopCell(condition(EXACT, 0.0, ORIN), 50)],
    )

    def noted(block, times, folder):
        ran.append(block)
        (folder / block.name).write_text(json.dumps([RUN.as_json()] * block.count))

    monkeypatch.setattr(stores, "run_block", noted)
    monkeypatch.setattr(stores, "measured_times", lambda: AT_ONCE)
    with ThreadPoolExecutor(1) as pool:
        stores.run_all(every, tmp_path, pool, "abc", 60)
        assert len(ran) == 4
        (tmp_path / blocks(every[0])[1].name).unlink()
        stores.run_all(every, tmp_path, pool, "abc", 60)
        assert ran[4:] == [blocks(every[0])[1]]
        assert stored(every[0], tmp_path) == [RUN] * 120
        with pytest.raises(ConfigError, match="runs of commit abc; this is def"):
            stores.run_all(every, tmp_path, pool, "def", 60)


def test_a_block_runs_its_episodes_and_stores_them(tmp_path):
    cell = ClosedLoopCell(condition(ONE_PASS, 0.0, RTX5090), 2)
    profile = load_profile(RTX5090)
    stores.run_block(blocks(cell)[0], profile.times(7), tmp_path)
    found = stored(cell, tmp_path)
    assert len(found) == 2 and all(episode.actions > 5 for episode in found)
    assert {action.passes for episode in found for action in episode.acted} == {1}


def test_no_block_begins_when_the_time_is_over(tmp_path, monkeypatch):
    """Finished cells are reported; a cell without any episode has no row."""
    every = [ClosedLoopCell(condition(EXACT, MOVING, RTX5090), 100), ClosedLoopCell(condition(EXACT, 0.0, ORIN), 50)]
    monkeypatch.setattr(stores, "measured_times", lambda: AT_ONCE)
    monkeypatch.setattr(stores, "run_block", lambda *_: pytest.fail("a block began"))
    with ThreadPoolExecutor(1) as pool:
        stores.run_all(every, tmp_path, pool, "abc", 0)
    (tmp_path / blocks(every[0])[1].name).write_text(json.dumps([RUN.as_json()] * 50))
    assert [len(stored(cell, tmp_path)) for cell in every] == [50, 0]
