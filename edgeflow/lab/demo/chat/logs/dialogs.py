"""Conversations about a log, for training: the log, then questions of all kinds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from edgeflow.lab.demo.chat.dialogs import Dialog, DialogTurn
from edgeflow.lab.demo.chat.logs.questions import KINDS, ask
from edgeflow.lab.demo.chat.logs.robot_log import LINE_TOKENS, LogSource, RobotLog
from edgeflow.lab.demo.chat.small_talk import SYSTEMS

FRAME_TOKENS: Final = 40  # of the system message, the title and the markers, at most
TURN_TOKENS: Final = 30  # of one question with its answer and the markers, at most
_DRAWN: Final = tuple(name for name, kind in KINDS.items() for _ in range(1 if kind.summary else 2))
_FEWEST_LINES: Final = 4
_TRIES: Final = 3  # attempts per question; not every log allows every kind
_TURNS: Final = (5, 20)  # fewest and most


def draw_dialog(rng: random.Random, tokens: int) -> Dialog:
    """A conversation of at most about `tokens` tokens, most of which are the log."""
    spare = tokens - FRAME_TOKENS
    turns = max(1, min(rng.randint(*_TURNS), spare * 2 // 3 // TURN_TOKENS))
    lines = max(_FEWEST_LINES, (spare - turns * TURN_TOKENS) // LINE_TOKENS)
    log, asked = draw_questions(rng, lines, _region(rng, lines), turns, _DRAWN)
    system = rng.choice(SYSTEMS) if rng.random() < 0.3 else ""
    if rng.random() < 0.3:
        return Dialog((system and system + "\n") + log.text(), "", asked)
    return Dialog(system, log.text(), asked)


def draw_questions(
    rng: random.Random, lines: int, region: range, turns: int, kinds: Sequence[str] = tuple(KINDS)
) -> tuple[RobotLog, tuple[DialogTurn, ...]]:
    """A log and up to `turns` different questions about it, whose evidence lies in the region."""
    while True:
        log = LogSource(rng).draw(lines, region)
        asked = (ask(log, rng.choice(kinds), region, rng) for _ in range(_TRIES * turns))
        found = {(each.kind, each.subject): each.turn() for each in asked if each is not None}
        if found:
            return log, tuple(found.values())[:turns]


def _region(rng: random.Random, lines: int) -> range:
    """All lines, or, for half of the logs, a part of them."""
    if rng.random() < 0.5:
        return range(lines)
    length = rng.randint(max(_FEWEST_LINES, lines // 6), lines)
    first = rng.randint(0, lines - length)
    return range(first, first + length)
