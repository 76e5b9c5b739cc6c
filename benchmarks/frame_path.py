"""The modules that a frame passes, in control and in the worker, by tracing a running service.

    python -m benchmarks.frame_path [--model demo] [--frames 20] [--json FILE]

Both processes are profiled from their start. A module counts if one of its functions ran while a robot sent frames and
not while the same robot sent none: what the clock runs beside the frames (ticks, health) is left out.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat

ROOT = Path(__file__).parents[1]
SETTLE_S = 12.0  # until the worker in reserve has started
PERIOD_S = 0.2
SIDE = 128
HOOK = """
import mmap, os, sys, threading
folder = os.environ["FRAME_PATH_FOLDER"]
with open(folder + "/on", "r+b") as file:
    on = mmap.mmap(file.fileno(), 1)
seen = set()
def called(frame, event, argument):
    if on[0] and event == "call":
        code, window = frame.f_code, on[0]
        if (code, window) not in seen and ("/edgeflow/" in code.co_filename or "/edgeflow_client/" in code.co_filename):
            seen.add((code, window))
            with open(f"{folder}/{os.getpid()}", "a") as out:
                out.write(f"{window} {code.co_filename} {code.co_firstlineno}\\n")
threading.setprofile(called)
sys.setprofile(called)
"""
"""A sitecustomize that profiles its process while the byte in `on` is IDLE or FRAMES."""
IDLE, FRAMES = 1, 2


def traced(model: str, frames: int) -> dict[str, list[str]]:
    """The modules of each process that took part, by the process's name."""
    with tempfile.TemporaryDirectory(prefix="frame-path-") as name:
        folder = Path(name)
        (folder / "on").write_bytes(b"\0")
        (folder / "sitecustomize.py").write_text(HOOK)
        path = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "FRAME_PATH_FOLDER": name}
        ready = folder / "ready.json"
        command = [sys.executable, "-m", "edgeflow", "serve", "--model", model, "--ready-file", str(ready)]
        command += ["--grpc-port", "0", "--http-port", "0", "--health-port", "0", "--robots-port", "0"]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as service:
            try:
                while not ready.exists() and service.poll() is None:
                    time.sleep(0.1)
                time.sleep(SETTLE_S)
                drive(f"127.0.0.1:{json.loads(ready.read_text())['grpc']}", frames, folder / "on")
                files = sorted(
                    (each for each in folder.iterdir() if each.name.isdigit()), key=lambda each: each.stat().st_size
                )
                by_name = {process_name(each.name): each for each in files}  # of two workers the one that serves
                return {name: modules(by_name[name]) for name in ("control", "worker")}
            finally:
                service.terminate()


def drive(address: str, frames: int, switch: Path) -> None:
    """Send frames, nothing, and frames again; the processes are traced from the pause on."""
    camera = CameraSpec(name="main", width=SIDE, height=SIDE, format=ImageFormat.RGB8)
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    with (
        switch.open("r+b") as file,
        mmap.mmap(file.fileno(), 1) as on,
        RobotClient(address, cameras=[camera], instruction="pick up the cube", control_period_s=PERIOD_S) as client,
    ):
        for window in (0, IDLE, FRAMES):
            on[0] = window
            for _ in range(frames):
                if window != IDLE:
                    client.push({"main": image})
                time.sleep(PERIOD_S)
        on[0] = 0


def process_name(pid: str) -> str:
    """Control, worker, or a number."""
    line = Path(f"/proc/{pid}/cmdline").read_text()
    return "control" if "serve\0" in line else "worker" if "edgeflow.worker.start" in line else pid


def modules(recorded: Path) -> list[str]:
    """Modules that a process ran only for frames, relative to the repository."""
    ran: dict[str, set[tuple[str, str]]] = {"1": set(), "2": set()}
    for line in recorded.read_text().splitlines():
        window, path, number = line.split()
        ran[window].add((os.path.relpath(path, ROOT), number))
    return sorted({path for path, _ in ran[str(FRAMES)] - ran[str(IDLE)]})


def main() -> None:
    """Trace, and print the modules of each process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = traced(options.model, options.frames)
    for process, names in found.items():
        print(f"{process}: {len(names)} modules", *names, sep="\n  ")
    together = {name for names in found.values() for name in names}
    print(f"{len(together)} modules in all")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
