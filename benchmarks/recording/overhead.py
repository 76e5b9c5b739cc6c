"""The cost of recording: robots of a service that records beside those of one that does not, in turn.

    .venv/bin/python -m benchmarks.recording.overhead --json FILE

Each round measures a service three times, in changing order: twice without recording, and once with every camera. The
two without are alike, so that the ratio between them is the noise. Four robots send 640x480 JPEG images at 30 Hz.
Latency is the age of an action when it arrives; control's time is the processor time of its process per frame.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from benchmarks.command import keep, machine_facts, options

ROBOTS, RATE_HZ = 4, 30
SIDES = ("off", "on", "off again")
SETTLED_S = 1.0
P99_BAR, CONTROL_BAR_US = 1.05, 20.0


def main() -> None:
    """Measure and print; exit code 1 when recording costs more than the bars."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--demo", action="store_true", help="serve the embedded demo instead of a light policy")
    arguments = parser.parse_args()
    rounds, facts = [], machine_facts()
    with light_policy(ROBOTS) as light:
        config = {"max_sessions": ROBOTS, **OVERCOMMIT} if arguments.demo else light
        for number in range(arguments.rounds):
            order = SIDES[number % 3 :] + SIDES[: number % 3]
            measured = {side: _measured(config, side, arguments.seconds) for side in order}
            rounds.append(measured)
            print(json.dumps(measured), file=sys.stderr, flush=True)
    figures = {
        "age_p99_ratio": _spread([each["on"]["age_p99_ms"] / _off(each, "age_p99_ms") for each in rounds]),
        "age_p50_ratio": _spread([each["on"]["age_p50_ms"] / _off(each, "age_p50_ms") for each in rounds]),
        "control_us": _spread([each["on"]["control_us"] - _off(each, "control_us") for each in rounds]),
        "noise_of_age_p99_ratio": _spread(
            [each["off again"]["age_p99_ms"] / each["off"]["age_p99_ms"] for each in rounds]
        ),
        "noise_of_control_us": _spread(
            [each["off again"]["control_us"] - each["off"]["control_us"] for each in rounds]
        ),
    }
    for what, figure in figures.items():
        print(f"{what}: median {figure['median']:.3f}, quarters {figure['lower']:.3f} to {figure['upper']:.3f}")
    met = figures["age_p99_ratio"]["median"] <= P99_BAR and figures["control_us"]["median"] <= CONTROL_BAR_US
    print(f"bars: p99 ratio {P99_BAR}, control {CONTROL_BAR_US} us per frame: {'met' if met else 'missed'}")
    bars = {"age_p99_ratio": P99_BAR, "control_us": CONTROL_BAR_US}
    keep(arguments.json, {**facts, "rounds": rounds, "figures": figures, "bars": bars})
    raise SystemExit(0 if met else 1)


def _measured(config: Mapping[str, Any], side: str, seconds: float) -> dict[str, float]:
    """One service and one load test."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-recording-") as folder:
        settings = {**config, **({"recording": {"directory": folder}} if side == "on" else {})}
        with ServiceUnderTest(settings) as service:
            time.sleep(SETTLED_S)
            before = _processor_s(service.pid)
            total = _load(service.address, seconds)
            used_s = _processor_s(service.pid) - before
            lost = service.metrics()["edgeflow_recording_records_lost_total"] if side == "on" else 0.0
        stored = sum(path.stat().st_size for path in Path(folder).iterdir())
    frames = total["frames"]["acted"]
    return {
        "age_p50_ms": total["age_ms"]["p50"],
        "age_p99_ms": total["age_ms"]["p99"],
        "control_us": used_s / total["frames"]["offered"] * 1e6,
        "acted": frames,
        "offered": total["frames"]["offered"],
        "lost_records": lost,
        "stored_mb": stored / 1e6,
    }


def load_words(address: str, seconds: float) -> list[str]:
    """The command of a load test by these robots."""
    words = [sys.executable, "-m", "edgeflow.cli", "loadtest", address, "--json", "--robots", f"{ROBOTS}"]
    return [*words, "--rate", f"{RATE_HZ}", "--duration", f"{seconds:g}s", "--camera", "640x480"]


def _load(address: str, seconds: float) -> dict[str, Any]:
    done = subprocess.run(load_words(address, seconds), stdout=subprocess.PIPE, check=False)  # 1: the machine was late
    total: dict[str, Any] = json.loads(done.stdout)["total"]
    return total


def _processor_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _off(measured: dict[str, dict[str, float]], what: str) -> float:
    return (measured["off"][what] + measured["off again"][what]) / 2


def _spread(values: list[float]) -> dict[str, float]:
    lower, _, upper = quantiles(values, n=4)
    return {"median": median(values), "lower": lower, "upper": upper}


if __name__ == "__main__":
    main()
