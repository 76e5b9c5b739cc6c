"""The GPU suite: what a machine is, whether the kernels and the engine are right on it, and how fast they are.

One command, no network. It needs torch, triton, numpy, safetensors, tokenizers and pillow; what else a machine lacks
it takes from a folder of wheels. Each section is a process of its own, the most important first, within the time
given; what is found is written after each, and a section that fails, hangs or breaks the device stops no other.

    scripts/gpu-suite --out gpu-results --wheels wheels
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from edgeflow.bench.bars import figures
from edgeflow.bench.order import SECTIONS, Found, Order
from edgeflow.bench.random_policy import SIZES
from edgeflow.bench.report import report

FEWEST_FRAMES = 10  # K + 3: a pipe that is full for a few passes
FEWEST_S = 5.0  # nothing is started with less left
GRACE_S = 5.0  # beyond a section's own time, before it is killed
MINUTES = 10.0  # that the sections' shares are of
BAD = ("failed", "cut off")

Run = Callable[[Order], Found]


def main(arguments: Sequence[str] | None = None, run: Run | None = None) -> int:
    """Exit code 1 when a section failed or was cut off."""
    options = _options(arguments)
    out = Path(options.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="gpu-suite-") as folder:
        installed = install(Path(options.wheels), Path(folder)) if options.wheels else None
        started = monotonic()
        results: Found = {
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "device": options.device,
            "size": options.size,
            "sections": {},
        }
        order = Order("", options.device, options.size, options.frames, 0.0, str(out))
        for index, name in enumerate(options.sections, start=1):
            print(f"[{index}/{len(options.sections)}] {name}", file=sys.stderr, flush=True)
            left_s = 60 * options.minutes - (monotonic() - started)
            seconds = min(left_s, SECTIONS[name] * options.minutes / MINUTES)
            section = _section(replace(order, section=name, seconds=seconds), run or in_child(installed), left_s)
            results["sections"][name] = section
            results["figures"] = figures(results["sections"], options.size)
            results["seconds"] = monotonic() - started
            _write(out, results)
            order = replace(order, ceilings=_ceilings(results["sections"]))
    print((out / "gpu-suite.md").read_text())
    return int(any(section["status"] in BAD for section in results["sections"].values()))


def _section(order: Order, run: Run, left_s: float) -> Found:
    if left_s < FEWEST_S:
        return {"status": "skipped", "error": "no time left", "seconds": 0.0}
    return run(order)


def in_child(installed: Path | None) -> Run:
    """installed: a folder of packages for the sections."""
    environment = {**os.environ, "PYTHONPATH": python_path(installed)}

    def run(order: Order) -> Found:
        with TemporaryDirectory(prefix="gpu-suite-") as folder:
            result = Path(folder) / "result.json"
            command = [sys.executable, "-m", "edgeflow.bench.child", json.dumps(asdict(order)), str(result)]
            child = subprocess.Popen(command, env=environment, start_new_session=True)
            ended = _ended(child, order.seconds + GRACE_S)
            found: Found = json.loads(result.read_text()) if result.exists() else {"seconds": order.seconds}
            if found.get("status", "running") != "running":
                return found
            why = f"ended with code {child.returncode}" if ended else f"stopped after {order.seconds:.0f} s"
            return {**found, "status": "failed" if ended else "cut off", "error": why}

    return run


def python_path(installed: Path | None) -> str:
    """This process's, and before it the folder of packages."""
    paths = [str(installed or ""), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def _ended(child: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ended by itself; after `limit_s`, or an interrupt, it is killed with all that it started."""
    try:
        child.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def install(wheels: Path, folder: Path) -> Path:
    """All wheels of a folder, without asking any index, where this run alone sees them."""
    files = sorted(str(path) for path in wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"--wheels: no *.whl in {wheels}")
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    done = subprocess.run([*command, "--target", str(target), *files], check=False)
    if done.returncode:
        raise SystemExit(f"--wheels: pip could not install {', '.join(Path(name).name for name in files)}")
    return target


def _ceilings(sections: Found) -> tuple[float, float] | None:
    found = sections.get("ceilings", {}).get("found")
    return (found["copy bytes/s"], found["matrix FLOP/s"]) if found else None


def _write(out: Path, results: Found) -> None:
    (out / "gpu-suite.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "gpu-suite.md").write_text(report(results))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-suite", description="Check and measure this machine's GPU.")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="NAME")
    parser.add_argument(
        "--out", default="gpu-results", help="folder of gpu-suite.json, gpu-suite.md and what they name"
    )
    parser.add_argument("--wheels", default="", help="folder of wheels that are installed for this run only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--size", choices=list(SIZES), default="openvla-7b", help="tiny: a CPU runs it too")
    parser.add_argument("--frames", type=int, default=40, help="of each timing")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all sections together")
    parser.epilog = f"sections: {', '.join(SECTIONS)}"
    options = parser.parse_args(arguments)
    if options.frames < FEWEST_FRAMES:
        parser.error(f"--frames: at least {FEWEST_FRAMES}")
    return options


if __name__ == "__main__":
    sys.exit(main())
