"""Questions about a log, each with its one correct answer and the lines on which the answer rests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from edgeflow.lab.demo.chat.dialogs import DialogTurn
from edgeflow.lab.demo.chat.logs.robot_log import FAULTS, HELD, NO_FAULT, NOTHING, LogLine, RobotLog

_SELDOM: Final = 0.8
Column = Callable[[LogLine], str]
Find = Callable[[RobotLog, range, random.Random], "Evidence | None"]


@dataclass(frozen=True, slots=True)
class QuestionKind:
    """A kind of question."""

    phrasings: tuple[str, ...]
    find: Find
    """Picks a subject and its answer; None if the log allows no such question."""
    summary: bool
    """True if the answer depends on many lines, False for the look-up of one line."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The subject of a question, its answer, and the lines that give the answer; no lines if the subject does not
    occur.
    """

    subject: str
    answer: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A question about a log."""

    kind: str
    """Its name in KINDS."""
    subject: str
    """The value it names, if any."""
    text: str
    answer: str
    lines: tuple[int, ...]

    def turn(self) -> DialogTurn:
        return DialogTurn(self.text, self.answer, self.kind)


_fault, _held, _side = (attrgetter(name) for name in ("fault", "held", "side"))


def _ever(column: Column, values: Sequence[str]) -> Find:
    """Yes or no, equally often; yes only about values that occur in several lines, all inside the region."""

    def find(log: RobotLog, region: range, rng: random.Random) -> Evidence | None:
        places = {value: _lines(log, column, value) for value in values}
        there = [value for value in values if len(places[value]) > 1 and all(line in region for line in places[value])]
        absent = [value for value in values if not places[value]]
        if not there or not absent:
            return None
        if rng.random() < 0.5:
            value = rng.choice(there)
            return Evidence(value, "Yes.", places[value])
        return Evidence(rng.choice(absent), "No.", ())

    return find


def _most(column: Column, quiet: str, sentence: str) -> Find:
    """The value with the most lines, except `quiet`; None if it also occurs outside the region or has no clear lead."""

    def find(log: RobotLog, region: range, _: random.Random) -> Evidence | None:
        counts = Counter(column(entry) for entry in log.entries if column(entry) != quiet)
        if not counts:
            return Evidence("", sentence.format(quiet), ()) if len(region) == len(log.entries) else None
        (value, count), *rest = counts.most_common(2)
        if rest and rest[0][1] * 4 > count * 3:
            return None
        lines = _lines(log, column, value)
        return Evidence("", sentence.format(value), lines) if all(line in region for line in lines) else None

    return find


def _beside(key: Column, values: Sequence[str], column: Column, quiet: str = "") -> Find:
    """The value beside one that occurs in a single line inside the region; seldom `quiet`, the most frequent one."""

    def find(log: RobotLog, region: range, rng: random.Random) -> Evidence | None:
        places = {value: _lines(log, key, value) for value in values}
        once = [value for value in values if len(places[value]) == 1 and places[value][0] in region]
        if not once:
            return None
        value = rng.choice(once)
        beside = column(log.entries[places[value][0]])
        if beside == quiet and rng.random() < _SELDOM:
            return None
        return Evidence(value, f"It says {value} {beside}.", places[value])

    return find


def _lines(log: RobotLog, column: Column, value: str) -> tuple[int, ...]:
    return tuple(line for line, entry in enumerate(log.entries) if column(entry) == value)


KINDS: Final[dict[str, QuestionKind]] = {
    "ever fault": QuestionKind(
        ("Was the fault ever {}?", "Do you see the fault {}?"), _ever(_fault, FAULTS), summary=True
    ),
    "ever held": QuestionKind(
        ("Was it holding the {}?", "Do you see it holding the {}?"), _ever(_held, HELD), summary=True
    ),
    "most fault": QuestionKind(
        ("Which fault was there most often?", "What was the fault most often?"),
        _most(_fault, NO_FAULT, "The fault was {}."),
        summary=True,
    ),
    "most held": QuestionKind(
        ("What was it holding most often?", "Which object was it holding most often?"),
        _most(_held, NOTHING, "The object was {}."),
        summary=True,
    ),
    "most side": QuestionKind(
        ("On which side was it most often?", "Where was it most often?"),
        _most(_side, "", "The side was {}."),
        summary=True,
    ),
    "held at fault": QuestionKind(
        ("What does the log say at the fault {}?", "What was it holding at the fault {}?"),
        _beside(_fault, FAULTS, _held, NOTHING),
        summary=False,
    ),
}


def ask(log: RobotLog, kind: str, region: range, rng: random.Random) -> LogQuery | None:
    """A question of a kind whose evidence lies in the region; None if the log allows none."""
    found = KINDS[kind].find(log, region, rng)
    if found is None:
        return None
    text = rng.choice(KINDS[kind].phrasings).format(found.subject)
    return LogQuery(kind, found.subject, text, found.answer, found.lines)
