"""Small faults in scheduler, sessions, ring and admission, each of which the tests named beside it must find.

python -m benchmarks.mutants                 run all of them in a copy of the tree: some minutes
python -m benchmarks.mutants budget epoch    only those whose text contains one of these words

Exit code 1 when one survives. A fault replaces a piece of code that occurs once in the package, wherever that is.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edgeflow"
COPIED = ("edgeflow", "client", "tests", "benchmarks", "pyproject.toml")
SKIPPED = shutil.ignore_patterns("__pycache__", "recorded", "embedded", "results", "lab")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault.

    old: a piece of code that occurs once in the package
    new: what stands there instead
    tests: files of tests, at least one of which fails
    """

    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def file(self) -> Path:
        """The only file with the piece of code, relative to the root; ValueError where there is not exactly one."""
        found = [
            path
            for path in PACKAGE.rglob("*.py")
            if self.old in (text := path.read_text()) and text.count(self.old) == 1
        ]
        if len(found) != 1:
            raise ValueError(f"{self.old!r} is in {len(found)} files")
        return found[0].relative_to(ROOT)


SCHEDULER = ("tests/scheduler/test_scheduler.py",)
SESSIONS = ("tests/service/sessions/test_session.py",)
ADMISSION = ("tests/service/sessions/test_admission.py",)

MUTANTS = [
    # scheduler
    Mutant("rows + wanted <= self.limits.row_budget", "rows <= self.limits.row_budget", SCHEDULER),
    Mutant(
        "return queue.deadline_ns, queue.last_pass, queue.session",
        "return queue.last_pass, queue.deadline_ns, queue.session",
        SCHEDULER,
    ),
    Mutant(
        "self._free_rings.append(queue.ring.slots[0] // self.limits.stages)", "self._free_rings.append(0)", SCHEDULER
    ),
    Mutant("queue is None or epoch <= queue.epoch", "queue is None or epoch < queue.epoch", SCHEDULER),
    Mutant("left.append(Departure(self._waiting.ref, Leaving.SUPERSEDED))", "pass", SCHEDULER),
    Mutant("flight.speculation and newer and 0 <", "flight.speculation and 0 <", SCHEDULER),
    Mutant("flight.slack -= segment.drafts", "flight.slack = 0", SCHEDULER),
    Mutant("certain=flight.slack == 0", "certain=True", SCHEDULER),
    Mutant("guess=None if flight.stage else flight.guess", "guess=flight.guess", SCHEDULER),
    Mutant("rounds_of(self._pace.depth, self.stages) - 1", "rounds_of(self._pace.depth, self.stages)", SCHEDULER),
    Mutant("return now_ns - self._idle_since_ns >= self._drain_after_ns", "return True", SCHEDULER),
    Mutant("return self._idle_since_ns + self._drain_after_ns", "return self._idle_since_ns", SCHEDULER),
    Mutant("return -(-stages // depth)", "return stages // depth", SCHEDULER),
    Mutant(
        "if newest.speculation and flight.frame.seq < newest.frame.seq",
        "if newest.speculation and flight.frame.seq > newest.frame.seq",
        SCHEDULER,
    ),
    Mutant(
        "until_ns = min(until_ns, max(pass_at_ns - now_ns, 0))",
        "until_ns = max(until_ns, max(pass_at_ns - now_ns, 0))",
        SCHEDULER,
    ),
    Mutant("return now_ns - self._served_ns >= self._patience_ns", "return False", SCHEDULER),
    Mutant(" - max(self._free_ns - now_ns, 0) if idle", " if idle", SCHEDULER),
    # ring
    Mutant("self.slots[self._claims % len(self.slots)]", "self.slots[0]", SCHEDULER),
    Mutant("return slot, self._claims", "return slot, 1", SCHEDULER),
    Mutant("key=lambda flight: -flight.slot", "key=lambda flight: flight.slot", SCHEDULER),
    Mutant("flight.slot + 1, flight.length + flight.slack)", "flight.slot + 1, flight.length)", SCHEDULER),
    Mutant("return self.slots[0], self._claims", "return self.slots[0], 1", SCHEDULER),
    # sessions
    Mutant("if seq <= self._last_seq:", "if seq < self._last_seq:", SESSIONS),
    Mutant("if stamp_ns < self._last_stamp_ns:", "if False:", SESSIONS),
    Mutant("while self._times_ns[0] <= now_ns - self._window_ns:", "while False:", SESSIONS),
    Mutant(
        "min(self._earned_ns + max(now_ns - self._then_ns, 0), self._most_ns)",
        "self._earned_ns + max(now_ns - self._then_ns, 0)",
        SESSIONS,
    ),
    Mutant(
        "return not self.held and now_ns - self._heard_ns > most_ns",
        "return now_ns - self._heard_ns > most_ns",
        SESSIONS,
    ),
    Mutant("self.held, self._begun = False, True", "self._begun = True", SESSIONS),
    Mutant("if self.answers.guard.fault:", "if False:", SESSIONS),
    Mutant("self.answers.sent.halt(Reason.EPOCH_CHANGED)", "pass", SESSIONS),
    Mutant("if track is None or track.epoch != epoch:", "if track is None:", SESSIONS),
    Mutant(
        "self.fault = self._in_a_row >= INVALID_IN_A_ROW", "self.fault = self._in_a_row > INVALID_IN_A_ROW", SESSIONS
    ),
    Mutant("return self._in_a_row >= LATE_IN_A_ROW", "return self._in_a_row > LATE_IN_A_ROW", SESSIONS),
    Mutant("and last.seq + last.frames == event.seq", "", SESSIONS),
    Mutant("if command is Command.STOP or not self.answers.guard.fault:", "if True:", SESSIONS),
    Mutant("self.supersede(self._arrived)", "pass", SESSIONS),
    Mutant("and playing.seq > self.over", "", SESSIONS),
    Mutant("return not continues or 0 < self._begun <= continues", "return True", SESSIONS),
    Mutant("((lowest <= rows) & (rows <= highest)).all()", "((lowest <= rows) & (rows <= highest)).any()", SESSIONS),
    Mutant("self.supersede(self._ready.track if self._ready else None)", "pass", SESSIONS),
    Mutant("        self._withdraw_if_old(now_ns)\n", "", SESSIONS),
    Mutant("return 2 * abs(passed_ns - went_ns) <= went_ns", "return True", SESSIONS),
    Mutant("ahead = known_ns is not None and seen_ns < known_ns - TOLERANCE_NS", "ahead = False", SESSIONS),
    # admission
    Mutant(
        "return all(each.begun_fps >= SAME_RATE * fps for",
        "return any(each.begun_fps >= SAME_RATE * fps for",
        ADMISSION,
    ),
    Mutant("self._times.scaled(_slowed_percent(self._config.admission_headroom_percent))", "self._times", ADMISSION),
    Mutant("return whole * whole // (whole - headroom_percent)", "return whole + headroom_percent", ADMISSION),
    Mutant("(plan.forecast.fps < SAME_RATE * highest, *_youth(plan))", "_youth(plan)", ADMISSION),
    Mutant(
        "max(age_ns, plan.worst_age_ns) - self._reach_ns <= limit_ns",
        "max(age_ns, plan.worst_age_ns) <= limit_ns",
        ADMISSION,
    ),
    Mutant("        self._check_decoding(request, robot, others)\n", "", ADMISSION),
    Mutant("return sum(loads_ns) <= self._most_ns", "return True", ADMISSION),
    Mutant(
        "if len(self._callers) - len(self._given_up) >= self._most:", "if len(self._callers) >= self._most:", ADMISSION
    ),
    Mutant("for each in self._callers.values()) >= most:", "for each in self._callers.values()) > most:", ADMISSION),
    Mutant(
        "if len(self._callers) > 2 * self._most else None", "if len(self._callers) > self._most else None", ADMISSION
    ),
    Mutant("patience_ns = max(room_ns, 1) if asked.limit_ns else 0", "patience_ns = 0", ADMISSION),
    Mutant("return self.forecast.worst_age_ns + self._beside_ns", "return self.forecast.worst_age_ns", ADMISSION),
]
