"""The result of an exact replay: what was compared, the first difference, what could not be compared and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgeflow.pass_records import EngineFacts, FrameAnswer, PassOutcome
from edgeflow.scheduler.plan import FrameRef
from edgeflow_client.types import ActionSchema

TOLERANCE = 0.01
"""On another machine: the part of a dimension's range by which an action may differ, about one of 256 bins."""
_NOT_OF_THE_MACHINE = frozenset(("version", "model", "fingerprint", "family", "plugin", "config"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A fact of the machine that differs from the recording's."""

    name: str
    recorded: str
    here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """A place where the replay parts from the recording."""

    what: str
    """pixels, prompt, rejected, shape, outcome, answer, or report."""
    session: int
    epoch: int
    seq: int
    """The frame."""
    number: int | None = None
    """The pass of the outcome or answer. For other pixels: the pass in which their frame began, or the next frame of
    its epoch, whose history has it; None = none began.
    """
    row: int | None = None
    """Row of a chunk, or index of a token."""
    dimension: str = ""
    recorded: str = ""
    replayed: str = ""
    size: float | None = None
    """The difference between the two values, if they are numbers."""

    @classmethod
    def of(
        cls, what: str, ref: FrameRef, number: int | None, *, recorded: object = "", replayed: object = "", **found: Any
    ) -> ReplayDifference:
        """A difference at a frame."""
        place: dict[str, Any] = {"session": ref.session, "epoch": ref.epoch, "seq": ref.seq, "number": number}
        return cls(what=what, recorded=str(recorded), replayed=str(replayed), **place, **found)

    @property
    def text(self) -> str:
        """In words, for a person."""
        run = "" if self.number is None else f", pass {self.number}"
        place = f"frame {self.seq} of session {self.session} (epoch {self.epoch}{run})"
        at = "" if self.row is None else f", row {self.row}"
        at += f", {self.dimension}" if self.dimension else ""
        values = f": {self.replayed}, recorded {self.recorded}" if self.recorded or self.replayed else ""
        size = "" if self.size is None else f", {self.size:.3g} apart"
        return f"{self.what}: {place}{at}{values}{size}"


@dataclass(slots=True, kw_only=True)
class ExactReport:
    """The result of `replay_exactly`."""

    exact: bool = True
    """Compared bit for bit; False = by tolerance, since the machine differs."""
    machine: tuple[FactDifference, ...] = ()
    """The facts in which the machine differs from the recording's."""
    workers: int = 0
    sessions: int = 0
    frames: int = 0
    """Frames that the loop was offered."""
    passes: int = 0
    answers: int = 0
    """Answers that were compared."""
    actions: int = 0
    """Their rows."""
    equal: int = 0
    """Answers that are equal bit for bit."""
    equal_actions: int = 0
    """Their rows."""
    not_comparable: Counter[str] = field(default_factory=Counter)
    """Answers that could not be compared, by reason."""
    lost: int = 0
    """Records of passes that are not in the recording, or unreadable."""
    differences: int = 0
    """All differences, which follow from each other."""
    first: ReplayDifference | None = None
    first_action: ReplayDifference | None = None
    """The first difference of an action's value."""
    other_pixels: int = 0
    """On another machine: frames whose pixels are decoded to other ones here."""
    largest: ReplayDifference | None = None
    """The largest difference of an action's value, as a part of its dimension's range."""
    largest_part: float = 0.0
    """The same as a number, 0 to 1 and above."""
    stopped: str = ""
    """The reason why the replay could not go on to the end; "" if it did."""

    @property
    def agrees(self) -> bool:
        """True if every answer that could be compared agrees, and there was one."""
        if self.stopped or not self.answers:
            return False
        return self.largest_part <= TOLERANCE if not self.exact else self.differences == 0

    def note(self, difference: ReplayDifference) -> None:
        """Count a difference, and keep the first."""
        self.differences += 1
        self.first = self.first or difference

    def begun(self, frame: FrameRef, number: int) -> None:
        """Complete a first difference of pixels with the pass in which their frame, or the next one, begins."""
        first = self.first
        if first is None or first.number is not None or (first.session, first.epoch) != (frame.session, frame.epoch):
            return
        if frame.seq >= first.seq:
            self.first = replace(first, number=number)

    def lines(self) -> list[str]:
        """The report for a person."""
        how = "bit for bit" if self.exact else f"within {TOLERANCE:.0%} of each dimension's range"
        found = [
            f"{self.passes:,} passes of {_count(self.workers, 'worker')}, {_count(self.sessions, 'session')}, "
            f"{_count(self.frames, 'frame')}",
            f"{self.equal:,} of {self.answers:,} answers equal bit for bit "
            f"({self.equal_actions:,} of {self.actions:,} actions)",
        ]
        if not self.exact:
            found.append("this machine differs from the recording's, so that answers are compared by tolerance:")
            found += [f"  {each.name}: {each.here}; recorded {each.recorded}" for each in self.machine]
        if self.other_pixels:
            found.append(f"{_count(self.other_pixels, 'frame')} decoded to other pixels here")
        if self.lost:
            found.append(f"{_count(self.lost, 'record')} of passes lost")
        found += [f"{count:,} answers not comparable: {reason}" for reason, count in self.not_comparable.most_common()]
        if self.first is not None and self.exact:
            found.append(f"first difference: {self.first.text}")
        if self.first_action is not None and self.first_action != self.first:
            found.append(f"first action that differs: {self.first_action.text}")
        if self.largest is not None:
            found.append(f"largest difference: {self.largest.text}, {self.largest_part:.2%} of the range")
        if self.stopped:
            found.append(f"stopped: {self.stopped}")
        verdict = f"agrees {how}" if self.agrees else f"does not agree {how}"
        found.append(verdict if self.answers else "nothing to compare: no answer was recorded, or none is comparable")
        return found

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {"agrees": self.agrees, **plain}


def machine_differences(recorded: EngineFacts, here: EngineFacts) -> tuple[FactDifference, ...]:
    """The facts of the machine and its libraries in which the two differ."""
    found = []
    for name in EngineFacts.__struct_fields__:
        theirs, mine = getattr(recorded, name), getattr(here, name)
        if name in _NOT_OF_THE_MACHINE or theirs == mine:
            continue
        if isinstance(theirs, Mapping):
            for key in dict.fromkeys((*theirs, *mine)):
                if theirs.get(key) != mine.get(key):
                    pair = str(theirs.get(key, "none")), str(mine.get(key, "none"))
                    found.append(FactDifference(name=f"{name}.{key}", recorded=pair[0], here=pair[1]))
            continue
        if isinstance(theirs, tuple):
            theirs, mine = _without(theirs, mine), _without(mine, theirs)
        found.append(FactDifference(name=name, recorded=str(theirs) or "none", here=str(mine) or "none"))
    return tuple(found)


def outcome_difference(recorded: PassOutcome, replayed: PassOutcome, number: int) -> ReplayDifference | None:
    """The first difference between two outcomes of a segment; None if they are equal."""
    if recorded == replayed:
        return None
    differ = partial(ReplayDifference.of, "outcome", recorded.frame, number)
    for name, one in (("tokens", "token"), ("guesses", "guess")):
        theirs, mine = getattr(recorded, name), getattr(replayed, name)
        for row, pair in enumerate(zip_longest(theirs, mine, fillvalue="none")):
            if pair[0] != pair[1]:
                return differ(row=row, dimension=one, recorded=pair[0], replayed=pair[1])
    name = next(each for each in PassOutcome.__struct_fields__ if getattr(recorded, each) != getattr(replayed, each))
    return differ(dimension=name, recorded=getattr(recorded, name), replayed=getattr(replayed, name))


def bits(answer: FrameAnswer) -> NDArray[np.float64]:
    """The values of an answer [horizon, D], NaN for each that is not finite."""
    values = [math.nan if each is None or not math.isfinite(each) else each for each in answer.values]
    return np.array(values, np.float64).reshape(answer.horizon, -1)


def answer_difference(
    recorded: FrameAnswer, replayed: FrameAnswer, schema: ActionSchema, number: int
) -> ReplayDifference | None:
    """The first difference between two answers; None if they are equal bit for bit."""
    differ = partial(ReplayDifference.of, "answer", recorded.ref, number)
    theirs, mine = bits(recorded), bits(replayed)
    if theirs.shape != mine.shape:
        return differ(dimension="shape", recorded=list(theirs.shape), replayed=list(mine.shape))
    different = theirs.view(np.int64) != mine.view(np.int64)
    if different.any():
        return value_difference(recorded, replayed, int(different.argmax()), schema, number)
    for name in ("token_ids", "valid", "passes", "settled", "step_ms"):
        if getattr(recorded, name) != getattr(replayed, name):
            return differ(dimension=name, recorded=getattr(recorded, name), replayed=getattr(replayed, name))
    reports = [msgspec.json.decode(msgspec.json.encode(each.report)) for each in (recorded, replayed)]  # NaN is None
    if reports[0] != reports[1]:
        return ReplayDifference.of("report", recorded.ref, number, recorded=recorded.report, replayed=replayed.report)
    return None


def value_difference(
    recorded: FrameAnswer, replayed: FrameAnswer, index: int, schema: ActionSchema, number: int
) -> ReplayDifference:
    """The difference between two values of an answer. index: of the values, row by row."""
    theirs, mine = (float(bits(each).flat[index]) for each in (recorded, replayed))
    row, column = divmod(index, len(schema.names))
    return ReplayDifference.of(
        "answer",
        recorded.ref,
        number,
        row=row,
        dimension=schema.names[column],
        recorded=repr(theirs),
        replayed=repr(mine),
        size=abs(mine - theirs),
    )


def parts_apart(recorded: FrameAnswer, replayed: FrameAnswer, ranges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The differences between two answers as parts of each dimension's range [horizon, D]; infinite where only one of
    two numbers is finite. ranges [D]: of the schema; not finite where a dimension has no limits.
    """
    theirs, mine = bits(recorded), bits(replayed)
    if theirs.shape != mine.shape:
        return np.full(theirs.shape, np.inf)
    scale = np.where(np.isfinite(ranges) & (ranges > 0), ranges, np.maximum(np.abs(theirs), 1.0))
    apart = np.abs(mine - theirs) / scale
    apart[np.isnan(theirs) & np.isnan(mine)] = 0.0
    return np.nan_to_num(apart, nan=np.inf, posinf=np.inf)


def _without(values: Sequence[str], others: Sequence[str]) -> str:
    return ", ".join(each for each in values if each not in others)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
