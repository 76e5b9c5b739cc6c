"""The slots of a session: each prefill claims one, and copies move what is in flight."""

from __future__ import annotations

from edgeflow.scheduler.plan import FrameRef, Move
from edgeflow.scheduler.ring import CopyingRing, FrameInFlight, SlotRing


def test_by_rotation_prefills_claim_each_slot_in_turn_and_nothing_moves():
    ring = SlotRing(range(6, 9))
    claims = [ring.claim() for _ in range(4)]
    assert claims == [(6, 1), (7, 2), (8, 3), (6, 4)]
    assert ring.advance([FrameInFlight(frame=FrameRef(0, 1, 1), rows=5, slot=6, generation=1)]) == ()


def test_by_copies_prefills_claim_the_first_slot_and_all_rows_move_on():
    ring = CopyingRing(range(6, 9))
    assert [ring.claim() for _ in range(2)] == [(6, 1), (6, 2)]
    newer = FrameInFlight(frame=FrameRef(0, 1, 2), rows=5, slot=6, generation=2, length=5, slack=3)
    older = FrameInFlight(frame=FrameRef(0, 1, 1), rows=5, slot=7, generation=1, length=6)
    assert ring.advance([newer, older]) == (Move(7, 8, 6), Move(6, 7, 8)), "rows that may be verified move too"
    assert (newer.slot, older.slot) == (7, 8)
