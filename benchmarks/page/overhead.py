"""The cost of a viewer: robots of a service whose live page is open beside those of one that nobody looks at, in turn.

    .venv/bin/python -m benchmarks.page.overhead --json FILE

Each round measures a service three times, in changing order: twice without a viewer, and once with one that reads the
events and pictures of 20 robots as the page does. The two without are alike, so that the ratio between them is the
noise. Robots send 640x480 JPEG images to a policy of two tokens. Control's processor time per frame is noisier than
what a viewer adds to it, so the calls of the observer, in control, are timed by themselves, too. At the end the page
itself is open once, in Chromium on the same processors.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.service import ServiceUnderTest, Surroundings
from benchmarks.command import keep, machine_facts, options
from benchmarks.page.browser import chromium
from benchmarks.recording.overhead import load, processor_s, spread
from tests.tiny_checkpoint import TinySize, write_checkpoint

ROBOTS, RATE_HZ = 20, 5
ON, OFF, OFF_AGAIN, PAGE = "on", "off", "off again", "page"
SIDES = (OFF, ON, OFF_AGAIN)
SETTLED_S = 1.0
BARS = {"latency_p99_ratio": 1.05, "observer_us": 20.0, "gateway_share": 0.10}


def main() -> None:
    """Measure and print; exit code 1 when a viewer costs more than the targets."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=14.0, help="of each measurement")
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
            print(json.dumps({"round": number + 1, **measured}), file=sys.stderr, flush=True)
        in_chromium = _measured(config, PAGE, arguments.seconds) if chromium() else None
    figures = {name: spread(values) for name, values in _compared(rounds).items()}
    for what, figure in figures.items():
        print(f"{what}: median {figure['median']:.3f}, quarters {figure['lower']:.3f} to {figure['upper']:.3f}")
    met = {what: figures[what]["median"] <= bar for what, bar in BARS.items()}
    print("; ".join(f"{what} at most {bar:g}: {'met' if met[what] else 'missed'}" for what, bar in BARS.items()))
    found = {"robots": ROBOTS, "rate_hz": RATE_HZ, "rounds": rounds, "in_chromium": in_chromium}
    keep(arguments.json, {**facts, **found, "figures": figures, "bars": BARS, "met": met})
    raise SystemExit(0 if all(met.values()) else 1)


def _compared(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, list[float]]:
    """A value per round: with a viewer against the mean of both without, and of those one against the other."""

    def off(each: dict[str, dict[str, Any]], what: str) -> float:
        return float(each[OFF][what] + each[OFF_AGAIN][what]) / 2

    return {
        "latency_p99_ratio": [each[ON]["latency_p99_ms"] / off(each, "latency_p99_ms") for each in rounds],
        "latency_p50_ratio": [each[ON]["latency_p50_ms"] / off(each, "latency_p50_ms") for each in rounds],
        "observer_us": [each[ON]["observer_us"] - off(each, "observer_us") for each in rounds],
        "control_us": [each[ON]["control_us"] - off(each, "control_us") for each in rounds],
        "gateway_share": [each[ON]["gateway_share"] for each in rounds],
        "gateway_share_without": [off(each, "gateway_share") for each in rounds],
        "noise_of_latency_p99_ratio": [
            each[OFF_AGAIN]["latency_p99_ms"] / each[OFF]["latency_p99_ms"] for each in rounds
        ],
        "noise_of_latency_p50_ratio": [
            each[OFF_AGAIN]["latency_p50_ms"] / each[OFF]["latency_p50_ms"] for each in rounds
        ],
        "noise_of_control_us": [each[OFF_AGAIN]["control_us"] - each[OFF]["control_us"] for each in rounds],
    }


def _measured(config: Mapping[str, Any], side: str, seconds: float) -> dict[str, Any]:
    """One service and one load test."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-viewer-") as folder:
        told = Path(folder) / "observer"
        timed = (sys.executable, "-m", "benchmarks.recording.timed_service", str(told), "watch")
        with ServiceUnderTest(dict(config), around=Surroundings(under=timed)) as service:
            gateway = service.child("gateway") or 0
            with _viewer(service, side) as seen:
                time.sleep(SETTLED_S)
                before, gateway_before, begun = processor_s(service.pid), processor_s(gateway), time.monotonic()
                total = load(service.address, seconds, ROBOTS, RATE_HZ)
                used_s, gateway_s = processor_s(service.pid) - before, processor_s(gateway) - gateway_before
                wall_s = time.monotonic() - begun
            frames = service.metrics()["edgeflow_frames_total"]
        spent_us = {name: spent / 1000 / frames for name, spent in json.loads(told.read_text()).items()}
    return {
        "latency_p50_ms": total["age_ms"]["p50"],
        "latency_p99_ms": total["age_ms"]["p99"],
        "control_us": used_s / frames * 1e6,
        "observer_us": sum(spent_us.values()),
        "methods_us": spent_us,
        "gateway_share": gateway_s / wall_s,
        "acted": total["frames"]["acted"],
        "offered": total["frames"]["offered"],
        "frames": frames,
        "seen": seen,
    }


@contextmanager
def _viewer(service: ServiceUnderTest, side: str) -> Iterator[dict[str, int]]:
    """A viewer beside the context, where the side has one; what it received when the context has ended."""
    seen: dict[str, int] = {}
    if side not in (ON, PAGE):
        yield seen
        return
    words = [sys.executable, "-m", "benchmarks.page.viewer", f"http://127.0.0.1:{service.port('http')}"]
    process = subprocess.Popen([*words, *(["--chromium"] if side == PAGE else [])], stdout=subprocess.PIPE, text=True)
    try:
        yield seen
        process.terminate()
        seen.update(json.loads(process.communicate(timeout=30)[0]))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
