"""Rate and median latency as the live page shows them, against those that load tests measured.

    .venv/bin/python -m benchmarks.page.shown --json FILE

Robots of several rates, each a load test, drive one policy, whose pass takes 100 ms. Chromium shows the page of the
service, and the numbers of each robot's card are read once a second. Each reading is compared with the actions that the
robot received in the ten seconds before, by its own clock.
"""

from __future__ import annotations

import asyncio
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median_high
from typing import Any

from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.service import ServiceUnderTest, Surroundings
from benchmarks.command import keep, machine_facts, options
from benchmarks.page.browser import Browser, browser
from tests.stub_policy import environment, stub_checkpoint

RATES_HZ = (0.7, 1.1, 1.7)
"""Frames per second of the robots: no two of them meet in each period, and most frames find the device free."""
PASS_S = 0.1
BAR = 0.02
WARM_UP_S = 30.0
"""Before the page is read."""
READ_EVERY_S = 1.0
WINDOW_S = 10.0
"""Over which the page takes rates and medians."""
BATCH_S = 0.25
"""Between the service's reports to the page, whose newest is half of it old."""
CARDS = """
[...document.querySelectorAll("#cards > .card")].map(card => {
  const figures = [...card.querySelectorAll(".figure")];
  const number = label => {
    const found = figures.find(each => each.querySelector(".label").textContent === label);
    return Number.parseFloat(found.querySelector("strong").textContent);
  };
  return [card.querySelector(".title").textContent.slice(1), number("Rate"), number("Latency")];
})
"""
"""Session, rate and latency that each card shows."""


@dataclass(frozen=True, slots=True)
class CardReading:
    """The numbers of a card."""

    at_s: float
    """Wall time."""
    rate_hz: float
    latency_ms: float


def main() -> None:
    """Measure and print; exit code 1 when what is shown differs by more than the target."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="of the load tests")
    arguments = parser.parse_args()
    facts = machine_facts()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeflow-shown-")))
        model = stub_checkpoint(folder / "stub", pass_s=PASS_S)
        config = {"model": str(model), "chat": {"enabled": False}, "max_sessions": len(RATES_HZ), **OVERCOMMIT}
        around = Surroundings(environment=environment())
        service = stack.enter_context(ServiceUnderTest(config, around=around))
        rows = asyncio.run(_rows(service, folder, arguments.seconds))
    for row in rows:
        print(json.dumps(row))
    worst = {what: max(abs(row[f"{what}_deviation"]) for row in rows) for what in ("rate", "latency")}
    met = all(each <= BAR for each in worst.values())
    verdict = "met" if met else "missed"
    print(f"worst: rate {worst['rate']:.2%}, latency {worst['latency']:.2%}; at most {BAR:.0%}: {verdict}")
    found = {"pass_ms": 1000 * PASS_S, "rows": rows, "worst": worst, "bar": BAR, "met": met}
    keep(arguments.json, {**facts, **found})
    raise SystemExit(0 if met else 1)


async def _rows(service: ServiceUnderTest, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """A row per robot."""
    async with browser(folder / "profile") as tab:
        await tab.appear(1280, 800, dark=False)
        await tab.open(f"http://127.0.0.1:{service.port('http')}")
        tests = [asyncio.to_thread(_load, service.address, rate, seconds, folder / f"{rate}") for rate in RATES_HZ]
        reading = asyncio.create_task(_readings(tab, seconds))
        arrivals = await asyncio.gather(*tests)
        opened, shown = await reading
        return [_row(rate, opened[rate], arrivals[index], shown[rate]) for index, rate in enumerate(RATES_HZ)]


async def _readings(tab: Browser, seconds: float) -> tuple[dict[float, float], dict[float, list[CardReading]]]:
    """By the rate of the robot: the wall time at which its session was opened, and readings of its card."""
    await asyncio.sleep(WARM_UP_S)
    sessions = (await tab.evaluate("fetch('/admin/v1/sessions').then(answer => answer.json())"))["sessions"]
    rates = {str(each["session"]): round(1000 / each["period_ms"], 1) for each in sessions}
    opened = {rates[str(each["session"])]: each["opened"] / 1000 for each in sessions}
    found: dict[float, list[CardReading]] = defaultdict(list)
    until = time.monotonic() + seconds - WARM_UP_S
    while time.monotonic() < until:
        for session, rate, latency in await tab.evaluate(CARDS):
            if rate is None or latency is None:
                raise RuntimeError(f"the card of session {session} shows no number: {rate}, {latency}")
            found[rates[session]].append(CardReading(time.time(), rate, latency))
        print(f"{until - time.monotonic():.0f} s left", file=sys.stderr, flush=True)
        await asyncio.sleep(READ_EVERY_S)
    return opened, found


def _load(address: str, rate_hz: float, seconds: float, folder: Path) -> list[tuple[float, float]]:
    """Actions that a robot received: when, in seconds after its first frame was due, and their age in ms."""
    words = [sys.executable, "-m", "edgeflow.cli", "loadtest", address, "--rate", f"{rate_hz}"]
    words += ["--duration", f"{seconds:g}s", "--camera", "320x240", "--out", str(folder)]
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)  # 1: the machine was late
    with (folder / "frames.csv").open() as stream:
        frames = list(csv.DictReader(stream))
    first_ms = float(frames[0]["due_ms"])
    acted = [(float(each["due_ms"]) - first_ms, float(each["age_ms"])) for each in frames if each["fate"] == "acted"]
    return [((due_ms + age_ms) / 1000, age_ms) for due_ms, age_ms in acted]


def _row(
    rate_hz: float, opened_s: float, arrivals: Sequence[tuple[float, float]], shown: Sequence[CardReading]
) -> dict[str, Any]:
    """A robot: means over the readings of its card, and over what it measured in the window of each reading."""
    measured = []
    for each in shown:
        end_s = each.at_s - opened_s - BATCH_S / 2
        ages_ms = [age_ms for at_s, age_ms in arrivals if end_s - WINDOW_S < at_s <= end_s]
        measured.append((len(ages_ms) / WINDOW_S, median_high(ages_ms)))
    rate, latency = (fmean(each) for each in zip(*measured, strict=True))
    rate_shown, latency_shown = fmean(each.rate_hz for each in shown), fmean(each.latency_ms for each in shown)
    return {
        "offered_hz": rate_hz,
        "rate_hz": rate,
        "rate_shown_hz": rate_shown,
        "rate_deviation": rate_shown / rate - 1,
        "latency_ms": latency,
        "latency_shown_ms": latency_shown,
        "latency_deviation": latency_shown / latency - 1,
        "readings": len(shown),
    }


if __name__ == "__main__":
    main()
