"""Decoding counts: in what is admitted, in the ages foretold, and for who takes more than was admitted."""

from __future__ import annotations

import pytest

from edgeflow.service.sessions.capacity import (
    SECOND_NS,
    DecodeBudget,
    DecodeCost,
    Decoders,
    EarlyHandling,
    prepare_ns,
)
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.service.sessions.test_admission import MS, fill, make, ready, request

LARGE = CameraSpec("large", 2000, 2000, ImageFormat.JPEG)
SMALL = CameraSpec("small", 224, 224, ImageFormat.JPEG)
RAW = CameraSpec("raw", 640, 480, ImageFormat.RGB8)


def test_the_cost_follows_what_was_measured_and_raw_frames_have_none():
    cost = DecodeCost()
    assert cost.frame_ns([RAW]) == 0 and 20 * MS < cost.frame_ns([LARGE]) < 30 * MS
    for _ in range(50):
        cost.observe([LARGE], 60 * MS)
        cost.observe([RAW], 60 * MS)
    assert cost.frame_ns([LARGE]) == pytest.approx(60 * MS, rel=0.05)
    assert cost.frame_ns([SMALL]) < 1 * MS


def test_a_frame_costs_what_all_of_its_images_do():
    cost = DecodeCost()
    assert cost.frame_ns([LARGE, RAW, SMALL]) == pytest.approx(cost.frame_ns([LARGE]) + cost.frame_ns([SMALL]), abs=1)
    for _ in range(50):
        cost.observe([SMALL, RAW, SMALL], 2 * MS)
    assert cost.frame_ns([SMALL]) == pytest.approx(1 * MS, rel=0.05)
    assert prepare_ns([RAW, SMALL]) == prepare_ns([RAW]) + prepare_ns([SMALL])


def test_sessions_that_would_decode_more_than_the_threads_can_are_rejected():
    admission = make(preprocess="device")
    admission.worker_ready(ready(percent=5))
    with pytest.raises(ResourceExhausted, match="decoding 2000x2000 pixels every 200 ms") as caught:
        fill(admission, request(200, cameras=(LARGE,)))
    assert caught.value.reason == "DEVICE_FULL" and len(admission.others()) == 6


def test_decoding_is_part_of_the_forecast_age():
    admission = make(preprocess="device")
    small, large = (admission.plan(request(500, cameras=(camera,)), ()) for camera in (SMALL, LARGE))
    assert large.worst_age_ns - small.worst_age_ns > 20 * MS
    admission.enter(1, large)
    assert admission.forecast_answers(admission.plans)[1].age_ns == large.worst_age_ns


def decoders(*sessions: tuple[CameraSpec, int]) -> Decoders:
    """One thread, four fifths of which may be used."""
    made = Decoders(1, 20)
    for number, (camera, period_ms) in enumerate(sessions):
        made.enter(number, (camera,), period_ms * MS, made.frame_ns([camera]))
    return made


def test_sessions_above_their_admitted_time_are_limited_only_under_shortage():
    one, two = decoders((LARGE, 100), (SMALL, 50)), decoders((LARGE, 100), (SMALL, 50), (LARGE, 100))
    for _ in range(50):
        for number in (0, 2):
            one.observe(number, 60 * MS)
            two.observe(number, 60 * MS)
        one.observe(1, 1 * MS // 3)
        two.observe(1, 1 * MS // 3)
    assert [one.allowance_ns(number) for number in (0, 1)] == [None, None]
    assert two.allowance_ns(1) is None
    allowances = [two.allowance_ns(number) or 0 for number in (0, 2)]
    assert min(allowances) > SECOND_NS * 24 // 100, "what was free when they took more is theirs"
    assert sum(allowances) < SECOND_NS * 80 // 100


def measured(made: Decoders, number: int, took_ns: int) -> None:
    for _ in range(50):
        made.observe(number, took_ns)


def test_a_session_that_the_estimate_was_wrong_about_is_not_cut_once_others_come():
    made = decoders((LARGE, 200))
    measured(made, 0, 50 * MS)
    made.enter(1, (LARGE,), 100 * MS, made.frame_ns([LARGE]) * 2)
    measured(made, 1, 60 * MS)
    assert made.allowance_ns(0) is None and made.allowance_ns(1) is not None


def test_admission_counts_what_open_sessions_were_measured_to_take():
    admission = make(preprocess="device")
    admission.worker_ready(ready(percent=5))
    fill(admission, request(200, cameras=(LARGE,)), most=4)
    for number in range(4):
        measured(admission._decoders, number, 75 * MS)
    with pytest.raises(ResourceExhausted, match="decoding"):
        admission.plan(request(200, cameras=(LARGE,)), admission.others())


def test_one_session_with_a_huge_load_does_not_block_others():
    made = decoders((LARGE, 20))
    load_ns = made.load_ns(0) or 0
    assert load_ns > SECOND_NS and made.admits(0, [load_ns])
    assert made.admits(SECOND_NS * 3 // 10, [load_ns]) and not made.admits(SECOND_NS // 2, [load_ns])
    made.enter(1, (LARGE,), 100 * MS, made.frame_ns([LARGE]))
    assert made.allowance_ns(1) is None
    assert made.allowance_ns(0) == pytest.approx(SECOND_NS * 56 // 100, rel=0.1)


def test_frames_before_their_turn_take_a_twentieth_of_a_processor():
    made = decoders((SMALL, 50))
    frame_ns, early, at_once = made.early_ns([SMALL], 0), EarlyHandling(), 0
    assert made.early_ns([RAW], 0) > made.frame_ns([RAW]) == 0, "raw pixels are copied"
    for now_ns in range(0, SECOND_NS, MS):
        ready_ns = early.ready_at_ns(frame_ns, now_ns)
        if ready_ns is not None and ready_ns <= now_ns:
            early.spend(frame_ns, now_ns)
            at_once += 1
    assert at_once * frame_ns == pytest.approx(SECOND_NS // 20, rel=0.1) and at_once > 20
    assert early.ready_at_ns(made.early_ns([LARGE], 0), SECOND_NS) is None, "a large picture waits for its turn"


def test_one_measurement_counts_at_most_twice_the_estimate():
    cost = DecodeCost()
    cost.observe([SMALL], SECOND_NS)
    assert cost.kilopixel_ns <= 6_000 * 10 // 9


def test_a_budget_in_debt_is_ready_once_it_has_earned_the_debt():
    budget = DecodeBudget()
    budget.spend(60 * MS, None, 0)
    assert budget.ready_at_ns(0) == 0
    budget.spend(60 * MS, SECOND_NS // 4, 0)
    assert budget.ready_at_ns(0) == 240 * MS and budget.ready_at_ns(100 * MS) == 240 * MS
    assert budget.ready_at_ns(10 * SECOND_NS) == 10 * SECOND_NS, "nothing is saved up"
    budget.spend(60 * MS, SECOND_NS // 4, 10 * SECOND_NS)
    assert budget.ready_at_ns(10 * SECOND_NS) == 10 * SECOND_NS + 240 * MS
