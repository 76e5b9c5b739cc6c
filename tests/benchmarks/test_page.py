"""The simulated service of the page's checks sends what its scenes promise."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import httpx

from benchmarks.page.fake import FakePageService, PageScene
from benchmarks.page.robots import TEXTS


async def first_events(address: str, count: int, query: str = "") -> list[tuple[str, dict]]:
    found: list[tuple[str, dict]] = []
    async with httpx.AsyncClient() as http, http.stream("GET", f"{address}/events{query}") as answer:
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                found.append((kind, json.loads(line[6:])))
                if len(found) == count:
                    break
    return found


async def test_an_hour_passes_in_a_minute_and_robots_come_and_go():
    async with FakePageService(PageScene(robots=3, churn=True, speed=6000.0)) as service:
        events = await asyncio.wait_for(first_events(service.address, 2400, "?detail=1"), 30)
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "hello" and {"opened", "closed", "update", "service", "log"} <= set(kinds)
    updates = [value for kind, value in events if kind == "update"]
    assert all(later["time"] - earlier["time"] == 250 for earlier, later in pairwise(updates))
    answered = sum(len(each["sessions"]["1"]["answers"]) for each in updates)
    assert answered / (len(updates) / 4) > 4.9 and service.minutes > 5
    assert updates[-1]["sessions"]["1"]["detail"]["executed"]


async def test_hostile_texts_reach_the_page_as_they_are():
    async with FakePageService(PageScene(robots=8, hostile=True)) as service:
        ((_, hello),) = await first_events(service.address, 1)
    assert {each["status"]["instruction"] for each in hello["sessions"]} == set(TEXTS)
