"""Ticks get the newest observation and the action in force; what has none is left out, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeflow.lab.recordings.export.sampling import (
    BAD_IMAGE,
    NO_OBSERVATION,
    NOT_DUE,
    NOT_YET,
    SampledFrame,
    SessionSampler,
)
from edgeflow.lab.recordings.sessions import read_sessions
from tests.lab.recordings.made_up import SCHEMA, MadeUp, picture, steady


def sampled(source: MadeUp, fps: int = 10) -> tuple[list[SampledFrame], SessionSampler]:
    sampler = SessionSampler(read_sessions(source)["1"], fps)
    return list(sampler.frames(source)), sampler


def seen(source: MadeUp, fps: int = 10) -> list[tuple[float, float]]:
    """Of each tick twice its first state, which counts frames, and its first action, which counts rows."""
    return [(2 * frame.state[0], frame.action[0]) for frame in sampled(source, fps)[0]]


def test_an_answer_is_in_force_from_its_arrival_by_the_rows_that_are_due():
    frames, sampler = sampled(steady(range(1, 6)))
    assert [(2 * each.state[0], each.action) for each in frames] == [
        (seq, (10 * (seq - 1) + 1, -1)) for seq in (2, 3, 4, 5)
    ]
    assert (frames[0].images[0] == picture(2)).all()
    assert sampler.epochs[0].left_out == {NOT_YET: 1}


def test_ticks_between_observations_have_the_newest_one():
    assert seen(steady(range(1, 4)), fps=20) == [(1, 10), (2, 11), (2, 20), (3, 21)]


def test_an_answer_that_was_overtaken_is_ignored():
    made = MadeUp().opened().frame(1, 0).frame(2, 100).answer(2, 100, 50).answer(1, 0, 190).frame(3, 200).frame(4, 300)
    assert seen(made) == [(3, 21), (4, 22)]


def test_an_observation_that_comes_late_is_ignored():
    assert seen(steady(range(1, 4)).frame(9, 250).frame(4, 400)) == [(2, 11), (3, 21), (4, 31)]


def test_a_chunk_at_half_rate_from_its_arrival_on():
    made = MadeUp().opened().frame(1, 0).answer(1, 0, 130, rate_percent=50, from_arrival=True, valid_for_ms=2000)
    for seq in range(2, 8):
        made.frame(seq, 100 * (seq - 1))
    assert seen(made) == [(3, 10), (4, 10), (5, 11), (6, 11), (7, 12)]  # from 200 ms on, two ticks per row


def test_rows_that_a_robot_reports_as_executed_are_its_actions():
    made = steady(range(1, 4)).executed(3, 40, 0.5, 0.25).frame(4, 400).answer(4, 400, 50).frame(5, 500)
    frames, _ = sampled(made.executed(4, 120, 0.75, 1.0).frame(6, 600))
    assert [(2 * each.state[0], each.action) for each in frames] == [
        (4, (0.5, 0.25)),
        (5, (0.5, 0.25)),
        (6, (0.75, 1.0)),
    ]


def test_ticks_in_hold_and_after_the_last_valid_row_are_left_out():
    made = MadeUp().opened().frame(1, 0, delay_ms=40).answer(1, 0, 50)  # the slow one says little about the clocks
    made.frame(2, 100).hold(120).frame(3, 200).frame(4, 300)
    made.answer(4, 300, 50)
    for seq in range(5, 11):
        made.frame(seq, 100 * (seq - 1))
    frames, sampler = sampled(made)
    assert [2 * each.state[0] for each in frames] == [2, 5, 6, 7, 8]
    assert [each.begins for each in frames] == [True, False, False, False, False]
    assert sampler.epochs[0].left_out == {NOT_YET: 1, "HOLD QUEUE": 2, NOT_DUE: 2}


def test_a_displacement_is_not_repeated():
    schema = replace(SCHEMA, relative=(True, False))
    made = MadeUp().opened(schema=schema).frame(1, 0).answer(1, 0, 50, valid_for_ms=900)
    for seq in range(2, 7):
        made.frame(seq, 100 * (seq - 1))
    assert [row for _, row in seen(made)] == [11, 12, 13]


@pytest.mark.parametrize("gap_s", [2, 10**9], ids=["seconds", "decades"])
def test_an_episode_ends_at_a_pause(gap_s: int):
    made = steady(range(1, 4))
    for seq in (4, 5):
        ms = 1000 * gap_s + 100 * seq
        made.frame(seq, ms).answer(seq, ms, 50)
    frames, sampler = sampled(made)
    assert [(2 * each.state[0], each.begins) for each in frames][-2:] == [(3, False), (5, True)]
    left_out = sampler.epochs[0].left_out
    assert left_out.keys() == {NOT_YET, NOT_DUE, NO_OBSERVATION}
    assert sum(left_out.values()) + len(frames) == 10 * gap_s + 5


def test_images_that_are_missing_or_cannot_be_decoded():
    made = MadeUp().opened()
    for seq in range(1, 6):
        image = {2: b"", 4: b"no pixels"}.get(seq)
        made.frame(seq, 100 * seq, image=image).answer(seq, 100 * seq, 50)
    frames, sampler = sampled(made)
    assert [2 * each.state[0] for each in frames] == [1, 3, 5]  # at the second tick the first image is the newest
    assert sampler.epochs[0].left_out == {NOT_YET: 1, BAD_IMAGE: 1}


@pytest.mark.parametrize("epoch", [1, 2], ids=["same epoch", "next epoch"])
def test_answers_to_another_instruction_are_not_in_force(epoch: int):
    made = steady(range(1, 3)).frame(3, 300, epoch=epoch, text="place").answer(2, 200, 150)
    made.frame(4, 400, epoch=epoch, text="place").answer(4, 400, 50, epoch=epoch).frame(
        5, 500, epoch=epoch, text="place"
    )
    frames, sampler = sampled(made)
    assert [(2 * each.state[0], each.epoch.instruction) for each in frames] == [(2, "pick"), (5, "place")]
    assert [each.left_out for each in sampler.epochs] == [{NOT_YET: 1}, {NOT_YET: 2}]
