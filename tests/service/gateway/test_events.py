"""Live pages: the stream of events, the pictures, and that nothing happens while nobody watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import RunningService, WireRobot, serving


class EventReader:
    """Reads a stream of events, and remembers them."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self.seen: list[tuple[str, Any]] = []
        self._lines = lines

    async def next(self) -> tuple[str, Any]:
        name = (await asyncio.wait_for(anext(self._lines), 20)).removeprefix("event: ")
        data = json.loads((await anext(self._lines)).removeprefix("data: "))
        assert await anext(self._lines) == ""
        self.seen.append((name, data))
        return name, data

    async def until(self, wanted: str) -> Any:
        while True:
            name, data = await self.next()
            if name == wanted:
                return data

    async def update(self, session: int, key: str) -> dict[str, Any]:
        """The next update of a session with something under `key`."""
        while True:
            data = await self.until("update")
            update = data["sessions"].get(str(session), {})
            if update.get(key):
                return update


@contextlib.asynccontextmanager
async def watching(served: RunningService, query: str = "") -> AsyncIterator[EventReader]:
    async with (
        httpx.AsyncClient(base_url=served.http, timeout=30) as http,
        http.stream("GET", f"/events{query}") as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        yield EventReader(answer.aiter_lines())


async def acts(robot: WireRobot, *seqs: int, **changes: Any) -> None:
    for seq in seqs:
        await robot.frame(seq, **changes)
        await robot.action(seq)


async def test_hello_is_complete_and_a_session_shows_from_opening_to_end(checkpoint):
    async with serving(checkpoint) as served:
        early = served.robot()
        first = (await early.open(instruction="push the <b>cup</b>")).session
        async with watching(served) as page:
            name, hello = await page.next()
            assert name == "hello" and hello["tokens"] is hello["tls"] is False
            print(json.dumps(hello, indent=1))
            assert [each["session"] for each in hello["sessions"]] == [first]
            robot = served.robot()
            number = (await robot.open()).session
            await acts(robot, 1, 2, 3)
            opened = await page.until("opened")
            print(opened)
            update = await page.update(number, "answers")
            print(update)
            await robot.send(pb.ClientMessage(close=pb.Close()))
            await robot.rest()
            closed = await page.until("closed")
            print(closed)
