"""Token policies on slow devices: the cells of the benchmark, and what it calls best."""

from __future__ import annotations

import itertools

from benchmarks.closed_loop.grid import EXACT, ONE_PASS, blocks, condition
from benchmarks.closed_loop.slow_tokens import FOLLOW_S, PROFILES, SPEEDS, best, slow_cells
from edgeflow.lab.demo.evaluation import result_of
from edgeflow.lab.demo.simulated.episodes import EpisodeRun
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.types import Execution
from tests.benchmarks.test_closed_loop import acted


def test_no_two_ways_share_a_file():
    names = [blocks(cell)[0].name for cell in slow_cells()]
    assert len(set(names)) == len(names)


def row(pace, seconds: float, successes: int, settled: int, **robot) -> dict:
    outcomes = [EpisodeOutcome.SUCCESS] * successes + [EpisodeOutcome.TIMEOUT] * (10 - successes)
    runs = [
        EpisodeRun(
            outcome=outcome, seconds=seconds, frames=8, begun=1, overtaken=0, acted=(acted(0, 100, settled=settled),)
        )
        for outcome in outcomes
    ]
    return result_of(condition(pace, SPEEDS[-1], PROFILES[0], **robot), [runs], 7, 0.05).as_json()


def test_the_best_way_has_most_successes_and_of_equal_ones_the_least_time():
    rows = [
        row(EXACT, 3.0, 8, 7),
        row(EXACT, 2.0, 8, 7, execution=Execution.REST),
        row(ONE_PASS, 1.0, 8, 3),
        row(ONE_PASS, 4.0, 9, 3, follow_s=FOLLOW_S),
    ]
    (found,) = best(rows)
    assert (found["profile"], found["speed_cm_s"]) == (PROFILES[0], 5.0)
    assert (found["auto"]["execution"], found["auto"]["seconds_per_success"]) == ("auto", 3.75)
    assert (found["verified"]["mode"], found["verified"]["execution"]) == ("speculative", "rest")
    assert (found["any"]["mode"], found["any"]["follow_s"]) == ("speculative, 1 pass", FOLLOW_S)


def test_every_device_and_speed_is_asked_for_what_auto_does():
    asked = {
        (cell.condition.profile, cell.condition.speed)
        for cell in slow_cells()
        if cell.condition.pace == EXACT and cell.condition.execution is Execution.AUTO and not cell.condition.follow_s
    }
    assert asked == set(itertools.product(PROFILES, SPEEDS))
