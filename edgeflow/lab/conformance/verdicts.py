"""Checks of a policy by name, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from edgeflow_client.errors import EdgeflowError

MOST_SHOWN = 300  # characters of what was found


class VerdictKind(str, Enum):
    """The outcome of a check."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It does not apply to this policy, or another failure makes it meaningless."""


class NotConforming(Exception):
    """A policy does not keep a rule. found: in one line. advice: what to do."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.found, self.advice = found, advice


class NotJudged(Exception):
    """A check does not apply to a policy; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """The result of one check."""

    name: str
    """The name of the check."""
    outcome: VerdictKind
    found: str
    """One line: what holds, what was found instead, or why the check was skipped."""
    advice: str = ""
    """The remedy of a failure."""

    @property
    def failed(self) -> bool:
        return self.outcome is VerdictKind.FAILED


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """A check by name."""

    name: str
    run: Callable[[], str]
    """Returns what holds, in one line; raises NotConforming or NotJudged."""
    needs: tuple[str, ...] = ()
    """Checks whose failure makes this one meaningless."""

    def verdict(self, failed: set[str]) -> PolicyVerdict:
        """Run it, unless one that it needs is among those that failed."""
        unmet = [name for name in self.needs if name in failed]
        if unmet:
            return self._verdict(VerdictKind.SKIPPED, f"meaningless while {unmet[0]} fails")
        try:
            return self._verdict(VerdictKind.OK, self.run())
        except NotJudged as reason:
            return self._verdict(VerdictKind.SKIPPED, str(reason))
        except NotConforming as fault:
            return self._verdict(VerdictKind.FAILED, fault.found, fault.advice)
        except EdgeflowError as error:
            return self._verdict(VerdictKind.FAILED, error.text, "see the message")
        except Exception as error:  # whatever the policy raises
            return self._verdict(VerdictKind.FAILED, f"{type(error).__name__}: {error}", f"{place_of(error)} raised it")

    def _verdict(self, outcome: VerdictKind, found: str, advice: str = "") -> PolicyVerdict:
        """The verdict, in one line. Messages of libraries may have several."""
        line = " ".join(found.split())[:MOST_SHOWN]
        return PolicyVerdict(name=self.name, outcome=outcome, found=line, advice=advice)


def place_of(error: BaseException) -> str:
    """The file and line at which an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "the check" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
