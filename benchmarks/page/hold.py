"""The time from the page's HOLD button to the robot's HOLD, and the same without a page.

    .venv/bin/python -m benchmarks.page.hold --json FILE

A robot with the SDK sends images at 20 Hz to a service. Chromium shows it, and its mouse presses the button; then
POST /admin/v1/sessions/ID/hold is sent by itself. Both times end where the SDK calls the robot's program. Robot,
service and browser share the processors.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.chaos.robots import OVERCOMMIT
from benchmarks.chaos.sdk_robot import Fleet
from benchmarks.chaos.service import ServiceUnderTest, light_policy
from benchmarks.command import keep, machine_facts, options
from benchmarks.page.browser import Browser, browser, button
from edgeflow_client.connection.http import HttpService

RATE_HZ, POLL_S = 20.0, 0.002
HOLD, RESUME = button("HOLD"), button("Resume")
BAR_MS = 50.0
REASON = "OPERATOR_HOLD"
SESSIONS = "/admin/v1/sessions"
SPREAD_S = 0.05
"""Waited at random before a hold, so that holds meet frames at every point of their period."""


def main() -> None:
    """Measure and print; exit code 1 when a hold takes longer than the target."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=100, help="of holds, each way")
    arguments = parser.parse_args()
    facts = machine_facts()
    with light_policy(1, chat={"enabled": False}, **OVERCOMMIT) as config, ServiceUnderTest(config) as service:
        fleet = Fleet(service.address, 1, RATE_HZ, POLL_S)
        with fleet:
            http = HttpService("127.0.0.1", service.port("http"))
            path = f"{SESSIONS}/{http.call('GET', SESSIONS)['sessions'][0]['session']}"
            clicked = asyncio.run(_by_page(f"{http.address}/#robot-{Path(path).name}", fleet, arguments.count))
            asked = _by_http(http, path, fleet, arguments.count)
            fleet.finish()
    figures = {"page": _figures(clicked), "http": _figures(asked)}
    for what, each in figures.items():
        print(f"{what}: p50 {each['p50_ms']:.1f} ms, p99 {each['p99_ms']:.1f} ms, most {each['most_ms']:.1f} ms")
    met = figures["page"]["p99_ms"] <= BAR_MS
    print(f"p99 at most {BAR_MS:g} ms: {'met' if met else 'missed'}")
    keep(arguments.json, {**facts, "rate_hz": RATE_HZ, "figures": figures, "bar_ms": BAR_MS, "met": met})
    raise SystemExit(0 if met else 1)


async def _by_page(address: str, fleet: Fleet, count: int) -> list[float]:
    """Milliseconds of holds by the button."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-profile-") as folder:
        async with browser(Path(folder)) as tab:
            await tab.appear(1280, 800, dark=False)
            await tab.open(address)
            await tab.until(HOLD)
            found = []
            for number in range(count):
                found.append(await _click_hold(tab, fleet, number))
                if number % 20 == 0:
                    print(f"by the page: {number + 1} of {count}", file=sys.stderr, flush=True)
            return found


async def _click_hold(tab: Browser, fleet: Fleet, seed: int) -> float:
    await asyncio.sleep(SPREAD_S * _share(seed))
    pressed_ns = await tab.click(HOLD)
    took_ms = await asyncio.to_thread(_until_held, fleet, pressed_ns)
    await tab.until(RESUME)
    resumed_ns = await tab.click(RESUME)
    await asyncio.to_thread(fleet.wait, "act", resumed_ns)
    await tab.until(HOLD)
    return took_ms


def _by_http(http: HttpService, path: str, fleet: Fleet, count: int) -> list[float]:
    """Milliseconds of holds by a request."""
    found = []
    for number in range(count):
        time.sleep(SPREAD_S * _share(number))
        asked_ns = time.monotonic_ns()
        http.call("POST", f"{path}/hold", {"reason": "measured"})
        found.append(_until_held(fleet, asked_ns))
        resumed_ns = time.monotonic_ns()
        http.call("POST", f"{path}/resume", {})
        fleet.wait("act", resumed_ns)
    return found


def _until_held(fleet: Fleet, since_ns: int) -> float:
    """Milliseconds from a moment to the robot's HOLD by an operator."""
    change = fleet.wait("hold", since_ns)[0]
    if change.reason != REASON:
        raise RuntimeError(f"the robot holds for another reason: {change.reason}")
    return (change.at_ns - since_ns) / 1e6


def _share(seed: int) -> float:
    return float(np.random.default_rng(seed).random())


def _figures(times_ms: list[float]) -> dict[str, float]:
    return {
        "count": len(times_ms),
        "p50_ms": float(np.percentile(times_ms, 50)),
        "p99_ms": float(np.percentile(times_ms, 99)),
        "most_ms": max(times_ms),
    }


if __name__ == "__main__":
    main()
