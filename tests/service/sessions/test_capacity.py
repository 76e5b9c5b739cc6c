"""The capacity for sessions: how many fit, which use it, and which may stay open without it."""

from __future__ import annotations

import pytest

from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.capacity import SessionCapacity
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.reasons import Reason


def filled(*callers: Caller, most: int = 2, most_of_principal: int = 2) -> SessionCapacity:
    capacity = SessionCapacity(most, most_of_principal)
    for number, caller in enumerate(callers, start=1):
        capacity.take(number, caller)
    return capacity


def test_a_released_session_makes_room_for_another():
    capacity = filled(Caller("a"), Caller("b"))
    with pytest.raises(ResourceExhausted, match="all 2 sessions are in use") as rejected:
        capacity.take(3, Caller("c"))
    assert rejected.value.reason == Reason.SESSIONS_TAKEN
    capacity.release(1)
    capacity.release(1)
    capacity.take(3, Caller("c"))
    with pytest.raises(ResourceExhausted):
        capacity.reclaim(1)
    capacity.leave(2)
    capacity.reclaim(1)
    assert [number for number, _ in capacity] == [1, 3]


def test_the_limit_per_principal_counts_released_sessions_too():
    capacity = filled(Caller("a", "ann"), Caller("b", "ann"), most=9)
    capacity.release(1)
    with pytest.raises(ResourceExhausted, match="ann already has 2") as rejected:
        capacity.take(3, Caller("c", "ann"))
    assert rejected.value.reason == Reason.PRINCIPAL_SESSIONS
    capacity.take(3, Caller("c", "bob"))


def test_the_first_released_session_is_surplus_when_too_many_are_released():
    capacity = filled()
    for number in range(1, 5):
        capacity.take(number, Caller("a"))
        capacity.release(number)
        assert capacity.surplus is None
    capacity.take(5, Caller("a"))
    assert capacity.surplus == 1
    capacity.leave(1)
    assert capacity.surplus is None
