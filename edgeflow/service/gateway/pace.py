"""The pace of callers whose requests are refused: to read them costs processor time that others want."""

from __future__ import annotations

from dataclasses import dataclass

REFUSED_BYTES_PER_S = 4_000_000
REMEMBERED_S = 10.0  # after a refusal
LONGEST_WAIT_S = 2.0  # well below what a client has to send its body
MOST_CALLERS = 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """When a body may be read. wait_s: seconds from now. paid: bytes that already count towards the caller's pace."""

    wait_s: float
    paid: int


@dataclass(slots=True)
class _Account:
    """When the caller's next body may be read, and how long its last refusal counts."""

    free_s: float
    until_s: float


class Pace:
    """Gives callers turns; times are seconds of any steady clock.

    A caller without a recent refusal never waits. The bodies of others follow each other at REFUSED_BYTES_PER_S.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def turn(self, caller: str, size: int, now_s: float) -> Turn | None:
        """The turn of a body of this many bytes; None if it would wait longer than LONGEST_WAIT_S."""
        account = self._accounts.get(caller)
        if account is None:
            return Turn(0.0, 0)
        wait_s = max(account.free_s - now_s, 0.0)
        if not wait_s and now_s >= account.until_s:
            del self._accounts[caller]
            return Turn(0.0, 0)
        if wait_s > LONGEST_WAIT_S:
            return None
        account.free_s = now_s + wait_s + size / REFUSED_BYTES_PER_S
        return Turn(wait_s, size)

    def refused(self, caller: str, size: int, now_s: float) -> None:
        """A request was refused. size: bytes that were read of its body beyond those paid."""
        account = self._accounts.pop(caller, None) or _Account(now_s, now_s)
        account.free_s = max(account.free_s, now_s) + size / REFUSED_BYTES_PER_S
        account.until_s = now_s + REMEMBERED_S
        self._accounts[caller] = account
        if len(self._accounts) > MOST_CALLERS:
            del self._accounts[next(iter(self._accounts))]  # the one whose last refusal is the oldest
