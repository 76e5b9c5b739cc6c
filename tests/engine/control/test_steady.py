"""An unverified gripper changes only when two frames in a row agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.engine.control.records import AGREEMENT_BINS, SteadyTokens

NEAR = (True, False)
OPEN, CLOSED = 10, 200


def grips(*given: tuple[int, int], epoch: int = 1) -> list[int]:
    """What is acted on for (gripper, verified) of each frame."""
    steady = SteadyTokens(NEAR)
    return [steady.of(epoch, (5, gripper), verified)[1] for gripper, verified in given]


def test_an_unverified_gripper_needs_a_second_frame():
    assert grips((OPEN, 2), (CLOSED, 1), (OPEN, 1), (CLOSED, 1), (CLOSED, 1)) == [OPEN, OPEN, OPEN, OPEN, CLOSED]


def test_a_verified_gripper_changes_at_once():
    assert grips((OPEN, 1), (CLOSED, 2), (OPEN, 2), (OPEN, 1)) == [OPEN, CLOSED, OPEN, OPEN]


def test_neighbouring_bins_agree():
    assert grips((OPEN, 2), (CLOSED, 1), (CLOSED + AGREEMENT_BINS, 1)) == [OPEN, OPEN, CLOSED + AGREEMENT_BINS]
    assert grips((OPEN, 2), (CLOSED, 1), (CLOSED + AGREEMENT_BINS + 1, 1)) == [OPEN] * 3


def test_an_epoch_begins_with_its_own_first_frame():
    steady = SteadyTokens(NEAR)
    assert steady.of(1, (5, CLOSED), 2) == (5, CLOSED)
    assert steady.of(2, (5, OPEN), 1) == (5, OPEN)


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(1, 2)), max_size=20))
def test_displacements_pass_and_every_change_was_seen_twice_or_verified(frames: list[tuple[int, int, int]]):
    steady = SteadyTokens(NEAR)
    in_force = before = None
    for displacement, gripper, verified in frames:
        moved, chosen = steady.of(1, (displacement, gripper), verified)
        assert moved == displacement
        if chosen != in_force and in_force is not None:
            assert chosen == gripper
            assert verified == 2 or abs(gripper - before) <= AGREEMENT_BINS
        in_force, before = chosen, gripper
