"""Simulated robots of the live page: reports of a service about them, as functions of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MARKUP = (
    "<img src=x onerror=\"document.title='injected'\"><script>document.title='injected'</script>"
    "<b data-injected>bold</b></div></li></template><style>*{display:none}</style><!--"
)
LONG = "W" * 100_000
CONTROLS = "nul\0 bell\a escape\x1b[31m red\r\nline\x85line\u2028line\u2029\ttab\x7f\ufeff"
OVERRIDES = "\u202eoverridden\u202c \u2066\u2067 isolated \u200f\u061c אבג"
STACKED = "Z" + "\u0335\u0322\u0360" * 200
TEXTS = (MARKUP, LONG, CONTROLS, OVERRIDES, STACKED, "javascript:document.title='injected'", "__proto__", "")
"""Texts that break a page that takes them for anything else."""
MODES = ("auto", "serial", "pipelined", "depth", "speculative")
HORIZON, WIDTH = 8, 7
STEP_MS = 50
CYCLE_MS = 60_000
HOLDS_MS = 3000


def hostile_log(at_ms: int) -> dict[str, Any]:
    """An entry of the log, but for its time."""
    text = TEXTS[at_ms // 5000 % len(TEXTS)]
    return {"event": text, "values": {"text": text, text: 1, "__proto__": {"toString": 1}, "texts": list(TEXTS)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRobot:
    """A robot from its first frame on. Each one in trouble is so at the same time of every minute."""

    index: int
    session: int
    begun_ms: float
    """Unix time at which the simulation began."""
    hostile: bool

    @property
    def rate_hz(self) -> int:
        """Frames per second."""
        return (5, 10, 20)[self.index % 3]

    def facts(self) -> dict[str, Any]:
        """The declarations of the session."""
        cameras = ("wrist", "top", "left", "right")[: 1 + self.index % 3]
        joints = [f"joint {number}" for number in range(WIDTH - 1)] + ["gripper"]
        return {
            "session": self.session,
            "opened": self.begun_ms,
            "front": ("", "openpi", "openvla")[self.index % 3],
            "principal": self._text(1, f"robot-{self.index + 1}"),
            "peer": "127.0.0.1",
            "model": self._text(2, "demo"),
            "cameras": [
                {"name": self._text(3 + number, name), "width": 640, "height": 480}
                for number, name in enumerate(cameras)
            ],
            "state": [
                {
                    "name": self._text(4, "observation.state"),
                    "size": WIDTH,
                    "elements": joints,
                    "units": ["rad"] * WIDTH,
                }
            ],
            "actions": [{"name": self._text(5, name), "unit": "rad", "relative": False} for name in joints],
            "horizon": HORIZON,
            "step_ms": float(STEP_MS),
            "period_ms": 1000 / self.rate_hz,
            "max_age_ms": 400,
            "mode": MODES[self.index % len(MODES)],
        }

    def status(self, at_ms: int) -> dict[str, Any]:
        """The state at a time of the simulation."""
        state, reason, since_ms = self._state(at_ms)
        warned = self.hostile or self.index % 5 == 2
        warning = {"kind": "units", "text": self._text(6, "state is named like degrees, the policy takes radians")}
        held = {"reason": self._text(7, "cable check"), "by": self._text(1, "operator"), "since": self.begun_ms}
        return {
            "mode": MODES[1 + self.index % (len(MODES) - 1)],
            "pace": f"depth {1 + self.index % 4}",
            "epoch": 1 + at_ms // (5 * CYCLE_MS),
            "instruction": self._text(0, "pick up the red cup and put it on the shelf"),
            "state": state,
            "reason": self._text(5, reason) if reason else "",
            "since": self.begun_ms + since_ms,
            "operator": held if reason == "OPERATOR_HOLD" else None,
            "forecast": {"rate_hz": float(self.rate_hz), "age_ms": 40.0},
            "limit_ms": 400.0,
            "execution": "continue",
            "warnings": [warning] if warned else [],
        }

    def update(self, at_ms: int, until_ms: int, detail: bool) -> dict[str, Any]:
        """The events of a span."""
        status = self.status(until_ms)
        seqs = range(at_ms * self.rate_hz // 1000, until_ms * self.rate_hz // 1000)
        acting = status["state"] == "acting"
        events = []
        if self._state(at_ms)[0] != status["state"]:
            text = self._text(2, "after an answer came too late")
            kind = status["state"] if status["state"] in ("hold", "stop") else "resumed"
            events.append(
                {"time": status["since"], "kind": self._text(0, kind), "reason": status["reason"], "text": text}
            )
        found = {
            **status,
            "frames": len(seqs),
            "answers": [self._answer(seq) for seq in seqs] if acting else [],
            "outcomes": [["acted", "", len(seqs)]] if acting else [["dropped", status["reason"], len(seqs)]],
            "events": events,
        }
        if detail:
            found["detail"] = self._detail(seqs, until_ms)
        return found

    def latency_ms(self, seq: int) -> float:
        """The age of the answer to a frame."""
        return 35 + 3 * self.index + 8 * math.sin(seq / 9) + (30 if seq % 97 == 0 else 0)

    def _answer(self, seq: int) -> list[float | str]:
        return [seq, self.latency_ms(seq), 1 + seq % 3, "continued" if seq % 20 == 0 else ""]

    def _detail(self, seqs: range, until_ms: int) -> dict[str, Any]:
        rows = [[math.sin(until_ms / 1500 + row / 4 + column) for column in range(WIDTH)] for row in range(HORIZON)]
        chunks = [{"seq": seq, "time": self.begun_ms + seq * 1000 / self.rate_hz, "values": rows} for seq in seqs]
        executed = [[self.begun_ms + until_ms, seq, seq % HORIZON] for seq in seqs]
        return {"chunks": chunks, "state": rows[0], "executed": executed}

    def _state(self, at_ms: int) -> tuple[str, str, int]:
        """State, reason and when it began."""
        cycle_ms = (at_ms + 7000 * self.index) % CYCLE_MS
        begun_ms = at_ms - cycle_ms
        match self.index % 10:
            case 1 | 5 if cycle_ms < HOLDS_MS or self.index == 1:
                return "hold", "ACTION_TOO_OLD", begun_ms
            case 3:
                return "hold", "OPERATOR_HOLD", 0
            case 7:
                return "stop", "FAULT", 0
            case 8:
                return "waiting", "", 0
            case 9:
                return "parked", "", 0
        return "acting", "", begun_ms + HOLDS_MS if cycle_ms >= HOLDS_MS else begun_ms - CYCLE_MS + HOLDS_MS

    def _text(self, place: int, plain: str) -> str:
        return TEXTS[(place + self.index) % len(TEXTS)] if self.hostile else plain
