"""The tests that take too long for `make test`, one step after another, with a summary.

scripts/nightly --count 1000 --minutes 10 --out build/nightly
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fuzz.explore import TARGETS
from benchmarks.machine import machine_facts
from edgeflow.console import table_console

ROOT = Path(__file__).parents[2]
PROPERTIES = (
    "tests/service/test_session_properties.py",
    "tests/service/test_api_schema.py",
    "tests/service/chat/test_chat_schema.py",
    "tests/service/test_codec.py",
    "tests/scheduler/test_properties.py",
    "tests/ipc/test_foreign_bytes.py",
)
CHAOS = ("sigterm", "front-kill", "worker-kill")  # their bounds on time, which the suite leaves out


@dataclass(frozen=True, slots=True)
class Result:
    """One step. log: the file with its output."""

    step: str
    exit_code: int
    seconds: int
    log: str


def steps(count: int, minutes: float, out: Path) -> dict[str, list[str]]:
    """Name and command of each step."""
    python = sys.executable
    plan = {
        "suite-in-one-process": [python, "-m", "pytest", "-q", "-n0"],
        "bad-frames": [python, "-m", "benchmarks.fuzz.bad_frames", f"--count={count}", f"--json={out}/bad-frames.json"],
        "limits": [python, "-m", "benchmarks.fuzz.limits", f"--count={count}", f"--json={out}/limits.json"],
        "properties": [python, "-m", "pytest", "-q", "--timeout=3000", "--hypothesis-profile=nightly", *PROPERTIES],
    }
    plan["stress"] = [python, "-m", "benchmarks.fuzz.stress", f"--minutes={6 * minutes}", f"--json={out}/stress.json"]
    for target in TARGETS:
        plan[f"fuzz-{target}"] = ["scripts/fuzz", target, f"--minutes={minutes}", f"--json={out}/fuzz.json"]
    for scenario in CHAOS:
        command = [python, "-m", "benchmarks.chaos", scenario, "--trials=5", f"--json={out}/chaos-{scenario}.json"]
        plan[f"chaos-{scenario}"] = command
    return plan


def run(name: str, command: list[str], out: Path) -> Result:
    """Run a step to its end, whatever its exit code."""
    log = out / f"{name}.log"
    start = time.monotonic()
    with log.open("wb") as stream:
        done = subprocess.run(command, cwd=ROOT, stdout=stream, stderr=stream, check=False)
    return Result(name, done.returncode, round(time.monotonic() - start), str(log))


def main() -> int:
    """Run all steps; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="bad frames of each kind, bombs, oversized messages")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="of fuzzing, each target; six times as many of stress"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "nightly", help="folder of logs and results")
    parser.add_argument("--step", action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plan = steps(arguments.count, arguments.minutes, out)
    console = Console()
    results = []
    for name in arguments.step or plan:
        with console.status(name):
            results.append(run(name, plan[name], out))
        console.print(f"{name}: {'passed' if results[-1].exit_code == 0 else 'FAILED'} in {results[-1].seconds} s")
    table = Table("step", "result", "seconds", "log")
    for result in results:
        table.add_row(result.step, "failed" if result.exit_code else "passed", str(result.seconds), result.log)
    table_console().print(table)
    document = {"machine": machine_facts(), "steps": [asdict(result) for result in results]}
    (out / "summary.json").write_text(json.dumps(document, indent=2) + "\n")
    return int(any(result.exit_code for result in results))


if __name__ == "__main__":
    sys.exit(main())
