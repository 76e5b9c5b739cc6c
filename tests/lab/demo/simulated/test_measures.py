"""Latency at execution, held ticks, seams and reactions, from logs written by hand."""

from __future__ import annotations

import json
import math

import pytest

from edgeflow.lab.demo.simulated.episodes import HELD, Commanded, EpisodeRun
from edgeflow.lab.demo.simulated.measures import execution_figures
from edgeflow.lab.demo.world.task import EpisodeOutcome

MS = 1_000_000
PERIOD_S = 0.05


def rows(captured_ms: int, first_ms: int, *xs_mm: float, towards: bool = False) -> list[Commanded]:
    """Rows of one answer, executed one per period."""
    captured_ns = HELD if captured_ms == HELD else captured_ms * MS
    return [
        Commanded(
            at_ns=(first_ms + 50 * index) * MS, captured_ns=captured_ns, x=x / 1000, y=0.0, z=0.0, towards=towards
        )
        for index, x in enumerate(xs_mm)
    ]


def run(*commands: list[Commanded], held_ms: int = 0, jumped_ms: int | None = None) -> EpisodeRun:
    every = tuple(each for part in commands for each in part)
    return EpisodeRun(
        outcome=EpisodeOutcome.SUCCESS,
        seconds=every[-1].at_ns / 1e9 + PERIOD_S,
        frames=1,
        begun=1,
        overtaken=0,
        acted=(),
        held_ns=held_ms * MS,
        commands=every,
        jumped_ns=None if jumped_ms is None else jumped_ms * MS,
    )


def test_latency_counts_per_executed_row():
    figures = execution_figures([run(rows(0, 100, 0, 1, 2), rows(150, 250, 3), rows(HELD, 300, 3))], PERIOD_S)
    latency = figures.latency_at_execution_ms
    assert (latency.count, latency.p50, latency.max) == (4, 125.0, 200.0), "100, 150, 200 and 100 ms; HOLD has none"


def test_held_ticks_are_per_minute_of_all_episodes():
    figures = execution_figures([run(rows(0, 100, *range(16)), held_ms=150), run(rows(0, 100, *range(24)))], PERIOD_S)
    seconds = 0.85 + 0.05 + 1.25 + 0.05
    assert figures.held_ticks_per_minute == pytest.approx(3 / (seconds / 60))


def test_a_jump_between_chunks_is_a_seam_and_none_inside():
    """10 mm per row throughout, but 14 mm where the second chunk takes over."""
    xs = [10.0 * index for index in range(8)]
    figures = execution_figures([run(rows(0, 100, *xs), rows(300, 500, *(74.0 + x + 10 for x in xs)))], PERIOD_S)
    position, velocity = figures.seams.position_mm, figures.seams.velocity_m_s
    assert (position.seam.count, position.seam.max) == (1, pytest.approx(14.0))
    assert position.inside.max == pytest.approx(10.0)
    assert (velocity.seam.count, velocity.seam.max) == (2, pytest.approx(0.004 / 0.05))
    assert velocity.inside.max == pytest.approx(0.0, abs=1e-9)
    assert figures.seams.acceleration_m_s2.seam.max == pytest.approx(2 * 0.08 / 0.05)


def test_stopping_and_starting_are_seams():
    """The first chunk ends in motion, the robot stands for 200 ms, and the second begins in motion."""
    figures = execution_figures([run(rows(0, 100, 0, 10, 20, 30), rows(400, 500, 40, 50, 60, 70))], PERIOD_S)
    velocity = figures.seams.velocity_m_s
    assert velocity.inside.max == pytest.approx(0.0, abs=1e-9)
    assert velocity.seam.max == pytest.approx(0.2), "from 200 mm/s to rest, and back"


def test_reactions_to_a_jump():
    jumped = run(
        rows(0, 100, 0, 1), rows(120, 200, 2), rows(180, 300, 3), rows(180, 350, 4, towards=True), jumped_ms=130
    )
    ended = run(rows(0, 100, 0, 1), jumped_ms=140)
    reaction = execution_figures([jumped, ended], PERIOD_S).reaction
    assert (reaction.first.count, reaction.first.max) == (1, 170.0), "the frame of 120 ms does not show it"
    assert (reaction.towards.count, reaction.towards.max) == (1, 220.0)
    assert execution_figures([run(rows(0, 100, 0))], PERIOD_S).reaction is None


def test_an_episode_without_commands_has_no_figures():
    silent = EpisodeRun(outcome=EpisodeOutcome.TIMEOUT, seconds=8.0, frames=1, begun=0, overtaken=0, acted=())
    figures = execution_figures([silent], PERIOD_S)
    assert math.isnan(figures.latency_at_execution_ms.p50) and figures.held_ticks_per_minute == 0.0
    assert json.dumps(figures.as_json())
