"""Conversations about logs longer than a slot, to train gates on; the answers lie in the compressed part."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgeflow.lab.demo.chat.dialogs import Dialog
from edgeflow.lab.demo.chat.logs.dialogs import TURN_TOKENS, draw_questions
from edgeflow.lab.demo.chat.logs.questions import KINDS
from edgeflow.lab.demo.chat.logs.robot_log import LINE_TOKENS, MOST_LINES
from edgeflow.lab.outputs import text_file
from edgeflow.models.memory_gate import GateRules
from edgeflow_client.errors import ConfigError

OPENING: Final = 16  # tokens before the first line
QUESTION: Final = 16  # tokens after the last line, at most
ELSEWHERE: Final = 0.1  # share of the conversations whose answers may lie anywhere
SPARE: Final = 8  # lines fill at least 1 / SPARE of the part of a segment that the questions leave free


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLogs:
    """Generates conversations of 1 to `most_segments` compressed segments."""

    rules: GateRules
    most_segments: int = 6
    turns: int = 6
    """Questions per conversation."""
    kinds: Sequence[str] = tuple(KINDS)
    """Kinds of questions, from KINDS."""

    @property
    def most_lines(self) -> int:
        """Lines of the longest log."""
        rules = self.rules
        return (rules.sink + rules.window + (self.most_segments + 1) * rules.segment) // LINE_TOKENS

    def check(self) -> None:
        """Raise ConfigError for sizes that no log can have, with the nearest value that works."""
        rules, margin = self.rules, SPARE * max(1, OPENING - self.rules.window)
        least, tokens = self.turns * TURN_TOKENS + margin, (MOST_LINES + 1) * LINE_TOKENS - 1
        spare = tokens - rules.sink - rules.window
        most_turns, most_segments = (spare // 2 - margin) // TURN_TOKENS, spare // rules.segment - 1
        if most_turns < 1:
            limit = f"sink, window: at most {tokens - 2 * (TURN_TOKENS + margin)} tokens together"
        elif self.turns > most_turns:
            limit = f"turns: at most {most_turns}"
        elif rules.segment < least:
            limit = f"segment: at least {least}"
        elif most_segments < 1:
            limit = f"segment: at most {spare // 2}"
        elif self.most_segments > most_segments:
            limit = f"segments: at most {most_segments}"
        else:
            return
        raise ConfigError(
            f"{limit}: a segment holds the {self.turns} questions, a log has up to {MOST_LINES} lines; got sink "
            f"{rules.sink}, window {rules.window}, segment {rules.segment}, and logs of {self.most_lines} lines"
        )

    def draw(self, rng: random.Random) -> Dialog:
        """A log with its questions; all of the questions fit into the last segment and the window."""
        rules = self.rules
        folded = rules.sink + rng.randint(1, self.most_segments) * rules.segment
        room = max(1, rules.segment - self.turns * TURN_TOKENS)
        residual = rng.randrange(room // SPARE, room)
        lines = (folded + residual + rules.window - OPENING - QUESTION) // LINE_TOKENS
        first, stop = -(-max(0, rules.sink - OPENING) // LINE_TOKENS), (folded - OPENING) // LINE_TOKENS
        region = range(first, stop) if rng.random() >= ELSEWHERE else range(lines)
        log, asked = draw_questions(rng, lines, region, self.turns, self.kinds)
        return Dialog("", log.text(), asked)


def write_long_logs(
    path: Path, source: LongLogs, conversations: int, seed: int, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Write a JSONL file of {"messages": […]}, which `edgeflow train-gate` reads; the same seed gives the same file."""
    rng = random.Random(f"long logs {seed}")
    with text_file(path) as file:
        for done in range(1, conversations + 1):
            dialog = source.draw(rng)
            file.write(json.dumps({"messages": dialog.messages(len(dialog.turns))}) + "\n")
            progress(done)
