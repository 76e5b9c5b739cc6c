"""Coverage-guided fuzzing of robots' input: the message parser and validator, the image checks, the HTTP bodies,
messages on openpi's websocket.

    scripts/fuzz parser --minutes 10
    scripts/fuzz image --minutes 10 --json FILE

It starts from the seeds and the corpus in tests/fuzz; an input that breaks something is written to tests/fuzz/corpus,
where the test suite replays it. Exit code 1 when one was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
TARGETS = ("parser", "image", "body", "chat", "openpi", "act")
MAX_BYTES = 8192
SECONDS_PER_INPUT = 5
SEED = "seed-"
KEPT = 30
STATUS = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+)")
DONE = re.compile(r"Done (\d+) runs")


@dataclass(frozen=True, slots=True)
class FuzzFigures:
    """Figures of a run."""

    target: str
    date: str
    python: str
    load_average: float
    """Load average of the machine at the start."""
    seconds: int
    executions: int
    per_second: int
    edges: int
    """Number of covered edges of edgeflow's code."""
    features: int
    kept: int
    """Number of inputs with new coverage."""
    findings: tuple[str, ...]


def main() -> int:
    """Fuzz one target; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="put the figures into this file")
    parser.add_argument("--keep", action="store_true", help=f"add the {KEPT} smallest new inputs to the corpus")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.worker:
        return _fuzz(arguments.target, rest)
    figures = explore(arguments.target, int(arguments.minutes * 60), arguments.seed, arguments.keep)
    print(json.dumps(asdict(figures), indent=2))
    if arguments.json:
        known = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        arguments.json.write_text(json.dumps({**known, arguments.target: asdict(figures)}, indent=2) + "\n")
    return 1 if figures.findings else 0


def explore(target: str, seconds: int, seed: int, keep: bool) -> FuzzFigures:
    """Run the fuzzer in a separate process, show its output, and read its figures."""
    load = round(os.getloadavg()[0], 2)
    before = {path.name for path in (CORPUS / target).iterdir()}
    with tempfile.TemporaryDirectory() as directory:
        grown = Path(directory)
        options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={CORPUS / target}/"]
        start = time.monotonic()
        log = _run(target, [*options, str(grown), str(CORPUS / target)])
        took = max(round(time.monotonic() - start), 1)
        fresh = [path for path in grown.iterdir() if not path.name.startswith(SEED)]
        fresh.sort(key=lambda path: path.stat().st_size)
        for path in fresh[:KEPT] if keep else ():
            shutil.copyfile(path, CORPUS / target / path.name)
    found = {path.name for path in (CORPUS / target).iterdir()} - before
    findings = sorted(name for name in found if name.startswith(("crash-", "timeout-", "oom-", "slow-unit-")))
    *_, (_, edges, features) = STATUS.findall(log)
    runs = int((DONE.findall(log) or [found[0] for found in STATUS.findall(log)])[-1])
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    counts = (load, took, runs, runs // took, int(edges), int(features), len(fresh))
    return FuzzFigures(target, now, platform.python_version(), *counts, tuple(findings))


def _run(target: str, options: list[str]) -> str:
    command = [sys.executable, "-m", "benchmarks.fuzz.explore", target, "--worker"]
    options = [f"-max_len={MAX_BYTES}", f"-timeout={SECONDS_PER_INPUT}", "-rss_limit_mb=1500", *options]
    process = subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace")
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "pulse" in line or "DONE" in line or "ERROR" in line or "Exception" in line:
            print(line.rstrip(), file=sys.stderr)
    process.wait()
    return "".join(lines)


def _fuzz(target: str, options: list[str]) -> int:
    import atheris

    with atheris.instrument_imports(include=["edgeflow.service", "edgeflow_client.errors"]):
        from tests.fuzz.targets import TARGETS as FUNCTIONS
        from tests.fuzz.targets import seeds

    grown = next(Path(option) for option in options if not option.startswith("-"))
    for number, data in enumerate(seeds(target)):
        (grown / f"{SEED}{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], *options], FUNCTIONS[target])
    atheris.Fuzz()  # leaves the process
    return 0


if __name__ == "__main__":
    sys.exit(main())
