"""The cost of recording: robots of a service that records beside those of one that does not, in turn.

    .venv/bin/python -m benchmarks.recording.overhead --json FILE

Each round measures a service three times, in changing order: twice without recording, and once with every camera. The
two without are alike, so that the ratio between them is the noise. Four robots send 640x480 JPEG images at 30 Hz to a
policy of two tokens. Latency is the age of an action when it arrives. Control's processor time per frame is noisier
than what recording adds to it, so the calls of the observer, in control, are timed by themselves, too.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.service import ServiceUnderTest, Surroundings
from benchmarks.command import keep, machine_facts, options
from tests.tiny_checkpoint import TinySize, write_checkpoint

ROBOTS, RATE_HZ = 4, 30
DISTINCT = 16
"""Images that robots send in turn."""
SIDES = ("off", "on", "off again")
SETTLED_S = 1.0
P99_BAR, OBSERVER_BAR_US = 1.05, 20.0


def main() -> None:
    """Measure and print; exit code 1 when recording costs more than the bars."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    arguments = parser.parse_args()
    rounds, facts = [], machine_facts()
    with tempfile.TemporaryDirectory(prefix="edgeflow-light-") as folder:
        checkpoint = write_checkpoint(Path(folder), TinySize(actions=2, layers=1, depth=2))
        config = {"model": str(checkpoint), "mode": "serial", "chat": {"enabled": False}, "max_sessions": ROBOTS}
        config |= OVERCOMMIT
        for number in range(arguments.rounds):
            order = SIDES[number % 3 :] + SIDES[: number % 3]
            measured = {side: _measured(config, side, arguments.seconds) for side in order}
            rounds.append(measured)
            print(json.dumps(measured), file=sys.stderr, flush=True)
    figures = {
        "age_p99_ratio": spread([each["on"]["age_p99_ms"] / _off(each, "age_p99_ms") for each in rounds]),
        "age_p50_ratio": spread([each["on"]["age_p50_ms"] / _off(each, "age_p50_ms") for each in rounds]),
        "observer_us": spread([each["on"]["observer_us"] for each in rounds]),
        "control_us": spread([each["on"]["control_us"] - _off(each, "control_us") for each in rounds]),
        "noise_of_age_p99_ratio": spread(
            [each["off again"]["age_p99_ms"] / each["off"]["age_p99_ms"] for each in rounds]
        ),
        "noise_of_control_us": spread([each["off again"]["control_us"] - each["off"]["control_us"] for each in rounds]),
    }
    for what, figure in figures.items():
        print(f"{what}: median {figure['median']:.3f}, quarters {figure['lower']:.3f} to {figure['upper']:.3f}")
    met = figures["age_p99_ratio"]["median"] <= P99_BAR and figures["observer_us"]["median"] <= OBSERVER_BAR_US
    print(f"bars: p99 ratio {P99_BAR}, observer {OBSERVER_BAR_US} us per frame: {'met' if met else 'missed'}")
    bars = {"age_p99_ratio": P99_BAR, "observer_us": OBSERVER_BAR_US}
    keep(arguments.json, {**facts, "rounds": rounds, "figures": figures, "bars": bars})
    raise SystemExit(0 if met else 1)


def _measured(config: Mapping[str, Any], side: str, seconds: float) -> dict[str, float]:
    """One service and one load test."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-recording-") as folder:
        settings = {**config, **({"recording": {"directory": folder}} if side == "on" else {})}
        told = Path(folder) / "observer"
        timed = (sys.executable, "-m", "benchmarks.recording.timed_service", str(told), "recording")
        with ServiceUnderTest(settings, around=Surroundings(under=timed)) as service:
            time.sleep(SETTLED_S)
            before = processor_s(service.pid)
            total = load(service.address, seconds)
            used_s = processor_s(service.pid) - before
            lost = service.metrics()["edgeflow_recording_records_lost_total"] if side == "on" else 0.0
        stored = sum(path.stat().st_size for path in Path(folder).glob("*.mcap"))
        observer_us = sum(json.loads(told.read_text()).values()) / 1000 / total["frames"]["offered"]
    frames = total["frames"]["acted"]
    return {
        "age_p50_ms": total["age_ms"]["p50"],
        "age_p99_ms": total["age_ms"]["p99"],
        "control_us": used_s / total["frames"]["offered"] * 1e6,
        "observer_us": observer_us,
        "acted": frames,
        "offered": total["frames"]["offered"],
        "lost_records": lost,
        "stored_mb": stored / 1e6,
    }


@contextmanager
def load_words(address: str, seconds: float, robots: int = ROBOTS, rate_hz: int = RATE_HZ) -> Iterator[list[str]]:
    """The command of a load test by so many robots, whose images are as large as a camera's."""
    words = [sys.executable, "-m", "edgeflow.cli", "loadtest", address, "--json", "--robots", f"{robots}"]
    words += ["--rate", f"{rate_hz}", "--duration", f"{seconds:g}s", "--camera", "640x480"]
    with tempfile.TemporaryDirectory(prefix="edgeflow-frames-") as folder:
        for number in range(DISTINCT):
            (Path(folder) / f"{number:02}.jpg").write_bytes(camera_image(number))
        yield [*words, "--set", f"frames={folder}"]


def camera_image(seed: int) -> bytes:
    """A 640x480 JPEG of about 50 kB: shades, edges and the noise of a sensor."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:480, :640]
    scene = 128 + 60 * np.sin((rows + 7 * seed) / 40) + 50 * ((columns // 80 + rows // 60) % 2)
    pixels = scene[..., None] * (1.0, 0.8, 0.6) + random.normal(0, 4, (480, 640, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def load(address: str, seconds: float, robots: int = ROBOTS, rate_hz: int = RATE_HZ) -> dict[str, Any]:
    """The figures of all robots of a load test."""
    with load_words(address, seconds, robots, rate_hz) as words:
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False)  # 1: the machine was late
    total: dict[str, Any] = json.loads(done.stdout)["total"]
    return total


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _off(measured: dict[str, dict[str, float]], what: str) -> float:
    return (measured["off"][what] + measured["off again"][what]) / 2


def spread(values: list[float]) -> dict[str, float]:
    """Median and quarters."""
    lower, _, upper = quantiles(values, n=4)
    return {"median": median(values), "lower": lower, "upper": upper}


if __name__ == "__main__":
    main()
