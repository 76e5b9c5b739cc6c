"""SessionCapacity for sessions: how many there are, who has one, and who may be without."""

from __future__ import annotations

import pytest

from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.capacity import SessionCapacity
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.reasons import Reason


def places(*callers: Caller, most: int = 2, most_of_principal: int = 2) -> SessionCapacity:
    taken = SessionCapacity(most, most_of_principal)
    for number, caller in enumerate(callers, start=1):
        taken.take(number, caller)
    return taken


def test_a_place_is_for_one_session_at_a_time():
    taken = places(Caller("a"), Caller("b"))
    with pytest.raises(ResourceExhausted, match="all 2 sessions are in use") as rejected:
        taken.take(3, Caller("c"))
    assert rejected.value.reason == Reason.SESSIONS_TAKEN
    taken.give_up(1)
    taken.give_up(1)
    taken.take(3, Caller("c"))
    with pytest.raises(ResourceExhausted):
        taken.take_again(1)
    taken.leave(2)
    taken.take_again(1)
    assert [number for number, _ in taken] == [1, 3]


def test_a_principal_has_so_many_sessions_with_a_place_or_without():
    taken = places(Caller("a", "ann"), Caller("b", "ann"), most=9)
    taken.give_up(1)
    with pytest.raises(ResourceExhausted, match="ann already has 2") as rejected:
        taken.take(3, Caller("c", "ann"))
    assert rejected.value.reason == Reason.PRINCIPAL_SESSIONS
    taken.take(3, Caller("c", "bob"))


def test_where_too_many_are_without_a_place_the_first_of_them_is_surplus():
    taken = places()
    for number in range(1, 5):
        taken.take(number, Caller("a"))
        taken.give_up(number)
        assert taken.surplus is None
    taken.take(5, Caller("a"))
    assert taken.surplus == 1
    taken.leave(1)
    assert taken.surplus is None
