"""Places for sessions: who has one, and who gave theirs up in a silence."""

from __future__ import annotations

from collections.abc import Iterator

from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import RETRY_AFTER_MS, ResourceExhausted
from edgeflow_client.reasons import Reason


class Places:
    """Places in use. A session has one from `take` to `leave`, except between `give_up` and `take_again`.

    most: number of places; as many sessions again may exist without one. most_of_principal: sessions per principal,
    with or without a place.
    """

    def __init__(self, most: int, most_of_principal: int) -> None:
        self._most = most
        self._most_of_principal = most_of_principal
        self._callers: dict[int, Caller] = {}
        self._given_up: dict[int, None] = {}  # in this order

    def allow(self, most: int) -> None:
        """Places for so many sessions from now on; sessions that have one keep it."""
        self._most = most

    def __iter__(self) -> Iterator[tuple[int, Caller]]:
        return iter(list(self._callers.items()))

    def take(self, number: int, caller: Caller) -> None:
        """Take a place for a new session; ResourceExhausted if there is none."""
        self._check_free()
        self._check_principal(caller.principal)
        self._callers[number] = caller

    @property
    def surplus(self) -> int | None:
        """The session longest without a place, if there are more than twice as many sessions as places."""
        return next(iter(self._given_up), None) if len(self._callers) > 2 * self._most else None

    def give_up(self, number: int) -> None:
        """Free the place for others; idempotent."""
        self._given_up.setdefault(number)

    def take_again(self, number: int) -> None:
        """Take a place again after `give_up`; ResourceExhausted if there is none."""
        self._check_free()
        self._given_up.pop(number, None)

    def leave(self, number: int) -> None:
        """Remove an ended session."""
        del self._callers[number]
        self._given_up.pop(number, None)

    def _check_free(self) -> None:
        if len(self._callers) - len(self._given_up) >= self._most:
            raise self._taken()

    def _taken(self) -> ResourceExhausted:
        return ResourceExhausted(
            f"all {self._most} sessions are in use",
            field="max_sessions",
            reason=Reason.SESSIONS_TAKEN,
            retry_after_ms=RETRY_AFTER_MS,
        )

    def _check_principal(self, principal: str) -> None:
        most = self._most_of_principal
        if principal and sum(each.principal == principal for each in self._callers.values()) >= most:
            raise ResourceExhausted(
                f"{principal} already has {most} open sessions, as many as permitted",
                field="limits.sessions_per_principal",
                reason=Reason.PRINCIPAL_SESSIONS,
                retry_after_ms=RETRY_AFTER_MS,
            )
