"""Small faults in scheduler, sessions, ring and admission, each of which the tests named beside it must find.

python -m benchmarks.mutants                 run all of them in a copy of the tree: some minutes
python -m benchmarks.mutants budget epoch    only those whose text contains one of these words

Exit code 1 when one survives. A fault replaces a piece of code that occurs once in the package, wherever that is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edgeflow"
IGNORED = shutil.ignore_patterns("__pycache__", "*.safetensors")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A small fault in the package, and the tests that must find it."""

    old: str
    """A piece of code that occurs once in the package."""
    new: str
    """The faulty code in its place."""
    tests: str
    """A file of tests, at least one of which must fail."""

    @property
    def file(self) -> Path:
        """The only file with the piece of code, relative to the root; ValueError where there is not exactly one."""
        found = {path: path.read_text().count(self.old) for path in PACKAGE.rglob("*.py")}
        if sum(found.values()) != 1:
            raise ValueError(f"{self.old!r} occurs {sum(found.values())} times")
        return max(found, key=found.__getitem__).relative_to(ROOT)


MUTANTS = [
    # scheduler
    Mutant(
        "rows + wanted <= self.limits.row_budget", "rows <= self.limits.row_budget", "tests/scheduler/test_scheduler.py"
    ),
    Mutant(
        "(each.deadline_ns, each.last_pass, each.session)",
        "(each.last_pass, each.deadline_ns, each.session)",
        "tests/scheduler/test_pace.py",
    ),
    Mutant(
        "self._free_rings.append(queue.ring.slots[0] // self.limits.stages)",
        "self._free_rings.append(0)",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "queue is None or epoch <= queue.epoch",
        "queue is None or epoch < queue.epoch",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "left.append(Departure(self._waiting.ref, Leaving.SUPERSEDED))", "pass", "tests/scheduler/test_scheduler.py"
    ),
    Mutant("flight.speculation and newer and 0 <", "flight.speculation and 0 <", "tests/scheduler/test_scheduler.py"),
    Mutant("flight.slack -= segment.drafts", "flight.slack = 0", "tests/scheduler/test_scheduler.py"),
    Mutant("certain=flight.slack == 0", "certain=True", "tests/scheduler/test_scheduler.py"),
    Mutant("guess=None if flight.stage else flight.guess", "guess=flight.guess", "tests/scheduler/test_scheduler.py"),
    Mutant(
        "rounds_of(self._pace.depth, self.stages) - 1",
        "rounds_of(self._pace.depth, self.stages)",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "return now_ns - self._idle_since_ns >= self._drain_after_ns",
        "return True",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "drain_ns = self._idle_since_ns + self._drain_after_ns",
        "drain_ns = self._idle_since_ns",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant("return -(-stages // depth)", "return stages // depth", "tests/scheduler/test_pace.py"),
    Mutant(
        "if newest.speculation and flight.frame.seq < newest.frame.seq",
        "if newest.speculation and flight.frame.seq > newest.frame.seq",
        "tests/scheduler/test_scheduler.py",
    ),
    Mutant(
        "until_ns = min(until_ns, max(pass_at_ns - now_ns, 0))",
        "until_ns = max(until_ns, max(pass_at_ns - now_ns, 0))",
        "tests/scheduler/test_gaps.py",
    ),
    Mutant("return now_ns - self._served_ns >= self._patience_ns", "return False", "tests/scheduler/test_gaps.py"),
    Mutant(" - self._gaps.busy_ns(now_ns) if idle", " if idle", "tests/scheduler/test_turns.py"),
    # ring
    Mutant("self.slots[self._claims % len(self.slots)]", "self.slots[0]", "tests/scheduler/test_ring.py"),
    Mutant("return slot, self._claims", "return slot, 1", "tests/scheduler/test_ring.py"),
    Mutant("key=lambda flight: -flight.slot", "key=lambda flight: flight.slot", "tests/scheduler/test_scheduler.py"),
    Mutant(
        "flight.slot + 1, flight.length + flight.slack)",
        "flight.slot + 1, flight.length)",
        "tests/scheduler/test_ring.py",
    ),
    Mutant("return self.slots[0], self._claims", "return self.slots[0], 1", "tests/scheduler/test_ring.py"),
    # sessions
    Mutant("if seq <= self._last_seq:", "if seq < self._last_seq:", "tests/service/sessions/test_rules.py"),
    Mutant("if stamp_ns < self._last_stamp_ns:", "if False:", "tests/service/sessions/test_rules.py"),
    Mutant(
        "while self._times_ns[0] <= now_ns - self._window_ns:", "while False:", "tests/service/sessions/test_rules.py"
    ),
    Mutant(
        "min(self._earned_ns + max(now_ns - self._then_ns, 0), self._most_ns)",
        "self._earned_ns + max(now_ns - self._then_ns, 0)",
        "tests/service/sessions/test_rules.py",
    ),
    Mutant(
        "return not self.held and now_ns - self._heard_ns > most_ns",
        "return now_ns - self._heard_ns > most_ns",
        "tests/service/sessions/test_session.py",
    ),
    Mutant("self.held, self._begun = False, True", "self._begun = True", "tests/service/sessions/test_session.py"),
    Mutant(
        "if self.answers.invalid.fault:\n            self._silence",
        "if False:\n            self._silence",
        "tests/service/sessions/test_session.py",
    ),
    Mutant("self.answers.halt(Reason.EPOCH_CHANGED)", "pass", "tests/service/sessions/test_continued.py"),
    Mutant(
        "self.fault = self._in_a_row >= INVALID_IN_A_ROW",
        "self.fault = self._in_a_row > INVALID_IN_A_ROW",
        "tests/service/sessions/test_session.py",
    ),
    Mutant(
        "return self._late_in_a_row >= LATE_IN_A_ROW",
        "return self._late_in_a_row > LATE_IN_A_ROW",
        "tests/service/sessions/test_session.py",
    ),
    Mutant("and last.seq + last.frames == event.seq", "", "tests/service/sessions/test_rules.py"),
    Mutant(
        "if command is Command.STOP or not self._answers.invalid.fault:",
        "if True:",
        "tests/service/sessions/test_session.py",
    ),
    Mutant("self.supersede(self._arrived)", "pass", "tests/service/sessions/test_floods.py"),
    Mutant("and playing.seq > self.halted_at", "", "tests/service/sessions/test_continued.py"),
    Mutant(
        "return not continues or 0 < self._begun <= continues",
        "return True",
        "tests/service/sessions/test_continued.py",
    ),
    Mutant(
        "((lowest <= rows) & (rows <= highest)).all()",
        "((lowest <= rows) & (rows <= highest)).any()",
        "tests/service/sessions/test_rules.py",
    ),
    Mutant(
        "self.supersede(self.ready.track if self.ready else None)", "pass", "tests/service/sessions/test_session.py"
    ),
    Mutant(
        "            self.holds.withdraw_if_old(ready, now_ns, delay_ns)\n",
        "",
        "tests/service/sessions/test_session.py",
    ),
    Mutant(
        "if self.operator is not None and command is Command.HOLD:",
        "if False:",
        "tests/service/sessions/test_orders.py",
    ),
    Mutant(
        "return 2 * abs(passed_ns - went_ns) <= went_ns", "return True", "tests/service/sessions/test_wrong_stamps.py"
    ),
    Mutant(
        "ahead = known_ns is not None and seen_ns < known_ns - TOLERANCE_NS",
        "ahead = False",
        "tests/service/sessions/test_rules.py",
    ),
    # admission
    Mutant(
        "return all(each.begun_fps >= SAME_RATE * fps for",
        "return any(each.begun_fps >= SAME_RATE * fps for",
        "tests/service/sessions/test_admission.py",
    ),
    Mutant(
        "self._times.scaled(_slowed_percent(self._config.admission_headroom_percent))",
        "self._times",
        "tests/service/sessions/test_admission.py",
    ),
    Mutant(
        "(plan.forecast.fps < SAME_RATE * highest, *_youth(plan))",
        "_youth(plan)",
        "tests/service/sessions/test_admission.py",
    ),
    Mutant(
        "max(age_ns, plan.worst_age_ns) - self._reach_ns <= limit_ns",
        "max(age_ns, plan.worst_age_ns) <= limit_ns",
        "tests/service/sessions/test_admission_programs.py",
    ),
    Mutant("        self._check_decoding(request, robot, others)\n", "", "tests/service/sessions/test_decoding.py"),
    Mutant("return sum(loads_ns) <= self._most_ns", "return True", "tests/service/sessions/test_decoding.py"),
    Mutant(
        "if len(self._callers) - len(self._released) >= self._most:",
        "if len(self._callers) >= self._most:",
        "tests/service/sessions/test_capacity.py",
    ),
    Mutant(
        "for each in self._callers.values()) >= most:",
        "for each in self._callers.values()) > most:",
        "tests/service/sessions/test_capacity.py",
    ),
    Mutant(
        "if len(self._callers) > 2 * self._most else None",
        "if len(self._callers) > self._most else None",
        "tests/service/sessions/test_capacity.py",
    ),
    Mutant(
        "patience_ns = max(room_ns, 1) if asked.limit_ns else 0",
        "patience_ns = 0",
        "tests/service/sessions/test_admission_drafts.py",
    ),
    Mutant(
        "return self.forecast.worst_age_ns + self._beside_ns",
        "return self.forecast.worst_age_ns",
        "tests/service/sessions/test_decoding.py",
    ),
]


class Copy:
    """A copy of the tree in which faults are tried."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("edgeflow", "client", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def fails(self, tests: Sequence[str]) -> bool:
        """True if a test fails; RuntimeError where pytest ends in another way."""
        options = ("-q", "-x", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=0")
        path = os.pathsep.join((str(self._folder), str(self._folder / "client")))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stdout + done.stderr)
        return done.returncode == 1

    def survives(self, mutant: Mutant) -> bool:
        """True if the tests do not find the fault."""
        path = self._folder / mutant.file
        text = path.read_text()
        path.write_text(text.replace(mutant.old, mutant.new))
        try:
            return not self.fails((mutant.tests,))
        finally:
            path.write_text(text)


def main() -> int:
    """Try the faults, all or those with one of the words; 1 when one survives or the tests fail without a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the code or of the file of tests")
    words = parser.parse_args().words
    chosen = [each for each in MUTANTS if not words or any(word in each.old or word in each.tests for word in words)]
    if not chosen:
        parser.error(f"no fault has one of the words {' '.join(words)}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        if copy.fails(sorted({each.tests for each in chosen})):
            print("the tests fail without a fault")
            return 1
        survivors = 0
        for number, mutant in enumerate(chosen, start=1):
            survived = copy.survives(mutant)
            survivors += survived
            print(f"{number:2}/{len(chosen)} {'SURVIVES' if survived else 'dies'}: {mutant.old.strip()}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} die")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
