"""The tests that take too long for `make test-all`, in parts of at most an hour.

scripts/nightly --list
scripts/nightly --part limits --part stress --out build/nightly
scripts/nightly --scale 0.1

Without --part: all parts, one after another. --scale: a factor of all counts and times that can be chosen. Each part
writes PART.json, with its steps and the facts of the machine, and a log per step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.command import machine_facts
from benchmarks.fuzz.explore import TARGETS
from edgeflow_client.loadtest.terminal import table_console

ROOT = Path(__file__).parents[2]
PROPERTIES = (
    "tests/client/test_targets.py",  # 100,000 pushes
    "tests/service/sessions/test_session_properties.py",
    "tests/service/http/test_api_schema.py",
    "tests/service/chat/test_chat_schema.py",
    "tests/service/frontends/grpc/test_codec.py",
    "tests/scheduler/test_properties.py",
    "tests/ipc/test_foreign_bytes.py",
    "tests/models/test_chat.py",  # with every wrong value of every name
)
NUMBERS = (
    "tests/engine",
    "tests/models",
    "tests/policies",
    "tests/lab/verify/policies",
    "tests/lab/training/test_gate_twins.py",
)
"""Tests whose float32 sums depend on the processor."""
PYTHON = (sys.executable, "-m")
PYTEST = (*PYTHON, "pytest", "-q")
ARCHIVE = "build/images/nightly-{}.tar"
CHAOS = (*PYTHON, "benchmarks.chaos")
AXE = ("env", "npm", "install", "--silent", "--no-save", "--prefix", "build/axe", "axe-core@4")
WITHOUT_FUSE = ("recorder killed", "service killed", "all killed", "disk full", "directory removed")


@dataclass(frozen=True, slots=True)
class NightlyStep:
    """A command, followed by arguments that depend on the run."""

    name: str
    command: tuple[str, ...]
    count: tuple[str, float] | None = None
    """An option and its number at scale 1; at least 1 at any other scale."""
    result: bool = True
    """True if it can write its figures with --json."""

    def words(self, scale: float, out: Path) -> list[str]:
        """The command line of a run."""
        words = [*self.command]
        if self.count is not None:
            option, number = self.count
            scaled = number * scale
            words.append(f"{option}={max(round(scaled), 1) if isinstance(number, int) else scaled:g}")
        if self.result:
            words.append(f"--json={out / self.name}.json")
        return words


def _chaos(scenario: str, *options: str, count: tuple[str, float] | None = ("--trials", 5)) -> NightlyStep:
    return NightlyStep(f"chaos-{scenario}", (*CHAOS, scenario, *options), count)


def _front_ends(section: str, count: tuple[str, float] | None) -> NightlyStep:
    return NightlyStep(f"front-ends-{section}", (*PYTHON, "benchmarks.front_ends", section), count)


def _image(target: str, *options: str) -> tuple[str, ...]:
    return ("scripts/build-image", target, "--archive", ARCHIVE.format(target), *options)


IMAGE_SPEED = NightlyStep(
    "image-speed", (*PYTHON, "benchmarks.images.overhead", ARCHIVE.format("cpu")), ("--seconds", 10.0)
)


@dataclass(frozen=True, slots=True)
class NightlyPart:
    """Steps that belong together."""

    name: str
    minutes: int
    """Rough duration in minutes at scale 1 on two cores."""
    steps: tuple[NightlyStep, ...]


PARTS = (
    NightlyPart("tests", 25, (NightlyStep("suite-in-one-process", (*PYTEST, "-n0"), result=False),)),
    NightlyPart(
        "cases",
        15,
        (
            NightlyStep("clients", ("scripts/clients",), result=False),
            NightlyStep("cases", (*PYTEST, "-m", "night"), result=False),
        ),
    ),
    NightlyPart("lerobot", 20, (NightlyStep("lerobot", ("scripts/lerobot-check",), result=False),)),
    NightlyPart("monitoring", 2, (NightlyStep("monitoring", ("scripts/monitoring-check",), result=False),)),
    NightlyPart(
        "recording",
        25,
        (
            NightlyStep("recording-exact", (*PYTHON, "benchmarks.recording.exact"), ("--answers", 20_000)),
            NightlyStep("recording-overhead", (*PYTHON, "benchmarks.recording.overhead"), ("--seconds", 20.0)),
            NightlyStep("recording-faults", (*PYTHON, "benchmarks.recording.faults", *WITHOUT_FUSE)),
        ),
    ),
    NightlyPart(
        "page",
        20,
        (
            NightlyStep("page-chromium", ("scripts/test-tools",), result=False),
            NightlyStep("page-axe", AXE, result=False),
            NightlyStep("page-checks", (*PYTHON, "benchmarks.page.checks", "--screenshots", "build/nightly/page")),
            NightlyStep("page-hold", (*PYTHON, "benchmarks.page.hold"), ("--count", 100)),
            NightlyStep("page-shown", (*PYTHON, "benchmarks.page.shown")),
            NightlyStep("page-overhead", (*PYTHON, "benchmarks.page.overhead"), ("--seconds", 14.0)),
        ),
    ),
    NightlyPart("kernels", 10, (NightlyStep("triton", (*PYTEST, "tests/kernels/every_triton.py"), result=False),)),
    *(
        NightlyPart(suite, 40, (NightlyStep(f"fresh-{suite}", ("scripts/fresh-machine", suite), result=False),))
        for suite in ("bookworm", "trixie", "forky")
    ),
    *(
        NightlyPart(
            f"image-{target}",
            minutes,
            (
                NightlyStep(
                    f"image-{target}-base", ("scripts/bare-system", suite, f"build/base/{suite}"), result=False
                ),
                NightlyStep(f"image-{target}-build", _image(target, "--base", f"build/base/{suite}"), result=False),
                NightlyStep(f"image-{target}-checks", (*PYTHON, "benchmarks.images.checks", ARCHIVE.format(target))),
                *steps,
            ),
        )
        for target, suite, minutes, steps in (
            ("cpu", "bookworm", 12, (IMAGE_SPEED,)),
            ("jetson", "bookworm", 12, ()),
            ("cuda", "noble", 30, ()),
        )
    ),
    NightlyPart(
        "processors",
        30,
        tuple(
            NightlyStep(f"vectors-{name}", ("env", f"ATEN_CPU_CAPABILITY={name}", *PYTEST, *NUMBERS), result=False)
            for name in ("avx2", "default")
        ),
    ),
    NightlyPart("frames", 15, (NightlyStep("bad-frames", (*PYTHON, "benchmarks.fuzz.bad_frames"), ("--count", 1000)),)),
    NightlyPart("limits", 20, (NightlyStep("limits", (*PYTHON, "benchmarks.fuzz.limits"), ("--count", 1000)),)),
    NightlyPart(
        "properties",
        40,
        (
            NightlyStep(
                "properties",
                (*PYTEST, "--timeout=3000", "--hypothesis-profile=nightly", *PROPERTIES),
                result=False,
            ),
        ),
    ),
    NightlyPart("stress", 50, (NightlyStep("stress", (*PYTHON, "benchmarks.fuzz.stress"), ("--minutes", 50.0)),)),
    NightlyPart(
        "fuzz",
        10 * len(TARGETS),
        tuple(NightlyStep(f"fuzz-{target}", ("scripts/fuzz", target), ("--minutes", 8.0)) for target in TARGETS),
    ),
    NightlyPart(
        "strangers",
        50,
        (
            _chaos("strangers", count=("--trials", 3)),
            _chaos("bodies"),
            _chaos("children", count=("--trials", 3)),
            _chaos("cheat", count=("--trials", 4)),
        ),
    ),
    NightlyPart(
        "front-ends",
        50,
        (
            _front_ends("bad-frames", count=("--count", 200)),
            _front_ends("late-answers", count=("--seconds", 180.0)),
            _front_ends("half-open", count=None),
            _front_ends("under-attack", count=("--trials", 4)),
            _front_ends("churn", count=("--count", 20_000)),
        ),
    ),
    NightlyPart("processes", 20, (_chaos("sigterm"), _chaos("front-kill"), _chaos("worker-kill"))),
    NightlyPart("resources", 40, (_chaos("resources", count=("--trials", 3)),)),
    NightlyPart("soak", 55, (_chaos("mixed", count=("--minutes", 30.0)), _chaos("soak", count=("--frames", 100_000)))),
)


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """One step."""

    step: str
    exit_code: int
    seconds: int
    log: str
    """File with its output."""


def run(step: NightlyStep, scale: float, out: Path) -> NightlyResult:
    """Run a step to its end, and record its exit code."""
    log = out / f"{step.name}.log"
    start = time.monotonic()
    with log.open("wb") as stream:
        done = subprocess.run(step.words(scale, out), cwd=ROOT, stdout=stream, stderr=stream, check=False)
    return NightlyResult(step.name, done.returncode, round(time.monotonic() - start), str(log))


def run_part(part: NightlyPart, scale: float, out: Path, console: Console) -> list[NightlyResult]:
    """Run the steps of a part and write its file."""
    results = []
    for step in part.steps:
        with console.status(step.name):
            results.append(run(step, scale, out))
        verdict = "FAILED" if results[-1].exit_code else "passed"
        console.print(f"{part.name}: {step.name} {verdict} in {results[-1].seconds} s")
    passed = not any(result.exit_code for result in results)
    head = {"part": part.name, "passed": passed, "scale": scale, "machine": machine_facts()}
    document = {**head, "steps": [asdict(result) for result in results]}
    (out / f"{part.name}.json").write_text(json.dumps(document, indent=2) + "\n")
    return results


def main() -> int:
    """Run the chosen parts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {part.name: part for part in PARTS}
    parser.add_argument("--part", action="append", choices=list(known), help="only this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the parts, and run nothing")
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts and times")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "nightly", help="folder of logs and results")
    arguments = parser.parse_args()
    if arguments.list:
        parts = ((part.name, str(part.minutes), ", ".join(step.name for step in part.steps)) for part in PARTS)
        _print(("part", "minutes, about", "steps"), parts)
        return 0
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [known[name] for name in arguments.part or known]
    results = [result for part in chosen for result in run_part(part, arguments.scale, out, Console())]
    verdicts = ("failed" if result.exit_code else "passed" for result in results)
    lines = ((each.step, verdict, str(each.seconds), each.log) for each, verdict in zip(results, verdicts, strict=True))
    _print(("step", "result", "seconds", "log"), lines)
    return int(any(result.exit_code for result in results))


def _print(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    table_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
