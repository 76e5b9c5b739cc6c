"""The GPU suite: identifies a machine, checks kernels, engine and service on it, and measures their speed.

One command, no network. Python with torch, triton and numpy suffices; everything else comes from a folder of wheels
(scripts/gpu-wheels). Each section is a separate process with a share of the time, the most important first. Its
findings are written at once, and a section that fails, hangs or breaks the device does not stop the others.

    scripts/gpu-suite --out gpu-results --wheels wheels
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from edgeflow.lab.gpu.section_order import LEFT_OUT, SECTIONS, SIZES, Found, Order, end_of

FEWEST_FRAMES = 10  # K + 3: the pipeline is full for a few passes
FEWEST_S = 10.0  # a section is not started with less
SPARE_S = 10.0  # of the call's time, for the suite's own end
MINUTES = 10.0
BAD = ("failed", "cut off")
NEEDED = ("torch", "numpy", "pydantic", "safetensors", "tokenizers", "PIL")

Run = Callable[[Order], Found]


def main(arguments: Sequence[str] | None = None, run: Run | None = None, started: float | None = None) -> int:
    """Run the sections and write the report; exit code 1 if a section failed or was interrupted.

    started: when the call's time started, in monotonic seconds; now by default. run: the function that runs a section;
    in a separate process by default.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    ends = (monotonic() if started is None else started) + 60 * options.minutes - SPARE_S
    if problem := _problem(options):
        parser.error(problem)
    out = Path(options.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    with _packages(options.wheels) as installed:
        if lacking := [name for name in NEEDED if find_spec(name) is None]:
            parser.error(f"this Python lacks {', '.join(lacking)}: see scripts/gpu-wheels and --wheels")
        results = _run_sections(options, out, run or in_child(installed), ends)
    print(json.dumps(results, indent=2) if options.json else (out / "gpu-suite.md").read_text())
    return int(any(section["status"] in BAD for section in results["sections"].values()))


def _run_sections(options: argparse.Namespace, out: Path, run: Run, ends: float) -> Found:
    """Run all sections, one after another; the files in `out` are written after each."""
    from edgeflow.lab.gpu.bars import figures  # imported here: it needs packages that may be among the wheels

    begun = monotonic()
    results: Found = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": options.device,
        "size": options.size,
        "sections": {},
    }
    chosen = options.sections or [name for name in SECTIONS if name != "verify" or options.bundles]
    shares = {name: SECTIONS[name] for name in chosen}
    order = Order(
        section="",
        device=options.device,
        size=options.size,
        frames=options.frames,
        ends=ends,
        out=str(out),
        bundles=str(Path(options.bundles).absolute()) if options.bundles else "",
    )
    for index, name in enumerate(shares, start=1):
        print(f"[{index}/{len(shares)}] {name}", file=sys.stderr, flush=True)
        results["sections"][name] = _section(replace(order, section=name), shares, run, ends)
        results["figures"] = figures(results["sections"], options.size)
        results["seconds"] = monotonic() - begun
        (out / "gpu-suite.json").write_text(json.dumps(results, indent=2) + "\n")
        (out / "gpu-suite.md").write_text(report(results))
        order = replace(order, ceilings=_ceilings(results["sections"]))
    return results


def _section(order: Order, shares: Mapping[str, float], run: Run, ends: float) -> Found:
    now = monotonic()
    if ends - now < FEWEST_S:
        return {"status": "skipped", "error": "no time left", "seconds": 0.0}
    return run(replace(order, ends=max(end_of(order.section, shares, now, ends), now + FEWEST_S)))


def in_child(installed: Path | None) -> Run:
    """The function that runs a section in a separate process.

    installed: folder of packages for that process.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(installed)}

    def run(order: Order) -> Found:
        started = monotonic()
        with TemporaryDirectory(prefix="gpu-suite-") as folder:
            result = Path(folder) / "result.json"
            command = [sys.executable, "-m", "edgeflow.lab.gpu.section_process", json.dumps(asdict(order)), str(result)]
            # its own session: killing the process group also ends the services that a section started
            child = subprocess.Popen(command, env=environment, start_new_session=True)
            ended = _ended(child, order.ends - started)
            found: Found = json.loads(result.read_text()) if result.exists() else {}
        found["seconds"] = monotonic() - started
        if found.get("status", "running") != "running":
            return found  # also if it was killed afterwards, such as while CUDA shut down
        why = f"ended with code {child.returncode}" if ended else f"stopped after {found['seconds']:.0f} s"
        return {**found, "status": "failed" if ended else "cut off", "error": why}

    return run


def python_path(installed: Path | None) -> str:
    """PYTHONPATH of the sections: the folder of packages before this process's own."""
    paths = [str(installed or ""), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def _ended(child: subprocess.Popen[bytes], limit_s: float) -> bool:
    """True if a process ended by itself; after `limit_s`, or on an interrupt, it and its children are killed."""
    try:
        child.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextmanager
def _packages(wheels: str) -> Iterator[Path | None]:
    """The folder of the installed wheels, which this process can import from inside the context; None
    without wheels.
    """
    if not wheels:
        yield None
        return
    with TemporaryDirectory(prefix="gpu-suite-") as folder:
        installed = install(Path(wheels), Path(folder))
        sys.path.insert(0, str(installed))
        try:
            yield installed
        finally:
            sys.path.remove(str(installed))


def install(wheels: Path, folder: Path) -> Path:
    """Install all wheels of a folder into another one, without any index; SystemExit 2 if that fails."""
    files = sorted(str(path) for path in wheels.glob("*.whl"))
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    done = subprocess.run([*command, "--target", str(target), *files], check=False)
    if done.returncode:
        print(f"--wheels: pip could not install {', '.join(Path(name).name for name in files)}", file=sys.stderr)
        raise SystemExit(2)
    return target


def _ceilings(sections: Found) -> tuple[float, float] | None:
    found = sections.get("ceilings", {}).get("found")
    return (found["copy bytes/s"], found["matrix FLOP/s"]) if found else None


def report(results: Found) -> str:
    """The report: figures with their bars, how each section ended, and its findings."""
    lines = [f"# GPU suite: {results['size']} on {_device(results)}", ""]
    lines += [f"Started {results['started']}, {results['seconds']:.0f} s in all.", ""]
    lines += ["## Figures", "", *_table(results["figures"]), "", "## Sections", ""]
    sections = results["sections"]
    lines += _table([_summary(name, section) for name, section in sections.items()])
    for name, section in sections.items():
        if section.get("found"):
            lines += ["", f"## {name}", *_body(section["found"])]
    return "\n".join(lines) + "\n"


def _device(results: Found) -> str:
    facts = results["sections"].get("facts", {}).get("found", {})
    return str(facts.get("device", facts.get("profile", results["device"])))


def _summary(name: str, section: Found) -> Found:
    late = section.get("found", {}).get(LEFT_OUT)
    why = section.get("error") or (f"no time for {', '.join(late)}" if late else None)
    return {"section": name, "result": section["status"], "seconds": section["seconds"], "why": why}


def _body(found: Found) -> Iterator[str]:
    """The single values, then a table per list."""
    found = {name: value for name, value in found.items() if name != LEFT_OUT}
    tables = {name: value for name, value in found.items() if isinstance(value, list)}
    if len(tables) < len(found):
        yield ""
    for name, value in found.items():
        if name not in tables:
            yield f"- {name}: {_text(value)}"
    for name, rows in tables.items():
        yield from ("", f"### {name}", "", *(_table(rows) or ["None."]))


def _table(rows: Sequence[Found]) -> list[str]:
    """A table with every column that occurs in any row."""
    if not rows:
        return []
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return head + [f"| {' | '.join(_text(row.get(name)) for name in columns)} |" for row in rows]


def _text(value: Any) -> str:
    """A cell: four digits of a number that is not whole; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value).replace("|", " ").replace("\n", " ")


def _parser() -> argparse.ArgumentParser:
    shares = ", ".join(f"{name} {seconds:g}" for name, seconds in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-suite",
        description="Check and measure this machine's GPU, without network. Writes gpu-suite.md and gpu-suite.json.",
        epilog=f"Sections and the seconds each may take of ten minutes: {shares}. What one leaves goes to the next. "
        "Exit code 0: every section ended well, or was skipped, or had to leave something out for lack of time; "
        "1: one failed or was cut off; 2: wrong usage. A bar that is missed does not change the exit code.",
    )
    parser.add_argument(
        "--sections", nargs="+", choices=list(SECTIONS), metavar="NAME", help="run these, in this order"
    )
    parser.add_argument("--out", default="gpu-results", help="folder of the report and the files it names")
    parser.add_argument("--wheels", default="", help="folder of wheels that are installed for this run only")
    parser.add_argument("--bundles", default="", help="folder of recorded checkpoints that the section verify checks")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help="tiny runs on a CPU too, and measures nothing")
    parser.add_argument("--frames", type=int, default=40, help=f"frames per timing, at least {FEWEST_FRAMES}")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for the whole call, the start included")
    parser.add_argument("--json", action="store_true", help="print gpu-suite.json instead of gpu-suite.md")
    return parser


def _problem(options: argparse.Namespace) -> str:
    """The error in the options, or ""."""
    if options.frames < FEWEST_FRAMES:
        return f"--frames: at least {FEWEST_FRAMES}"
    if options.wheels and not [*Path(options.wheels).glob("*.whl")]:
        return f"--wheels: no *.whl in {options.wheels}"
    if options.bundles and not Path(options.bundles).is_dir():
        return f"--bundles: no folder {options.bundles}"
    return ""


def _process_started() -> float:
    """The start of this process in monotonic seconds; now, if the system does not report it."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return monotonic()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return monotonic() - age_s


if __name__ == "__main__":
    sys.exit(main(started=_process_started()))
