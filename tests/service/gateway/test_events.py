"""Live pages: the stream of events, the pictures, and that nothing happens while nobody watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
import simplejpeg

from edgeflow.ipc.packets import close_all, seal
from edgeflow.service.children.messages import Watch, Watched
from edgeflow.service.gateway import events
from edgeflow.service.gateway.events import GatewayMetrics, Viewer, Viewers
from edgeflow.service.security.auth import Caller
from edgeflow.version import __version__
from edgeflow_client.errors import ResourceExhausted, Unavailable
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import HEIGHT, JPEG, WIDTH, RunningService, WireRobot, eventually, serving
from tests.service.protected import write_tokens


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


def observed(served: RunningService) -> bool:
    """True while control collects for pages."""
    return served.service._watch._on


async def test_hello_is_complete_and_a_session_shows_in_order(checkpoint):
    async with serving(checkpoint, timing__silent_hold_ms=60_000) as served:
        early = served.robot()
        number = (await early.open(instruction="push the cup")).session
        assert not observed(served)
        async with watching(served) as page:
            name, hello = await page.next()
            assert name == "hello" and hello["version"] == __version__ and hello["tokens"] is hello["tls"] is False
            assert hello["may"] == {"operate": True, "chat": False, "demo": False}
            assert (
                hello["addresses"]["grpc"] == served.service.status.grpc_address and hello["models"][0]["id"] == "demo"
            )
            assert hello["service"]["worker"]["state"] == hello["service"]["state"] == "ready"
            assert hello["service"]["chat"] is None and hello["service"]["standby"] == "off"
            assert "session_opened" in [line["event"] for line in hello["log"]]
            (shown,) = hello["sessions"]
            assert (shown["session"], shown["peer"], shown["front"]) == (number, "127.0.0.1", "")
            assert shown["cameras"] == [{"name": "wrist", "width": WIDTH, "height": HEIGHT}]
            assert [each["name"] for each in shown["actions"]] == ["x", "y", "grip"]
            assert (shown["status"]["state"], shown["status"]["instruction"]) == ("waiting", "push the cup")

            robot = served.robot()
            number = (await robot.open(control_period_ms=20)).session
            await acts(robot, 1, 2, 3)
            opened = await page.until("opened")
            assert opened["session"] == number
            answers, frames = [], 0
            while len(answers) < 3:
                update = await page.update(number, "frames")
                assert update["state"] == "acting"
                answers, frames = answers + update["answers"], frames + update["frames"]
            assert [(seq, *rest) for seq, _, *rest in answers] == [(seq, 3, "") for seq in (1, 2, 3)]
            assert frames == 3
            served.script.valid = False
            await robot.frame(4)
            await robot.hold("POLICY_OUTPUT_INVALID")
            update = await page.update(number, "events")
            assert (update["state"], update["reason"]) == ("hold", "POLICY_OUTPUT_INVALID")
            assert [(each["kind"], each["reason"]) for each in update["events"]] == [("hold", "POLICY_OUTPUT_INVALID")]
            assert update["outcomes"] == [["dropped", "POLICY_OUTPUT_INVALID", 1]]
            await robot.send(pb.ClientMessage(close=pb.Close()))
            await robot.rest()
            assert await page.until("closed") | {"time": 0} == {
                "session": number, "time": 0, "code": "OK", "reason": "client_closed",
            }  # fmt: skip
            lines = [data for name, data in page.seen if name == "log" and data["values"].get("session") == number]
            assert [line["event"] for line in lines] == ["session_opened", "hold", "session_closed"]
            assert observed(served)
        await eventually(lambda: not observed(served))


async def test_latency_is_what_the_robot_measured(checkpoint):
    async with serving(checkpoint) as served, watching(served) as page:
        robot = served.robot()
        number = (await robot.open()).session
        await acts(robot, 1)
        await acts(robot, 2, arrived=pb.Arrived(seq=1, age_ns=70_000_000))
        await acts(robot, 3, arrived=pb.Arrived(seq=2, age_ns=80_000_000))
        found: list[list[float]] = []
        while len(found) < 3:
            found += (await page.update(number, "answers"))["answers"]
    assert [(seq, latency) for seq, latency, *_ in found[:2]] == [(1, 70.0), (2, 80.0)]
    assert found[2][1] not in (70.0, 80.0)  # the service's own, since no frame reported it


async def test_texts_of_robots_cross_whole(checkpoint):
    hostile = "</script><img src=x onerror=alert(1)> \u202e\u05e9\u05dcdata: {}" + "x" * 400
    async with serving(checkpoint) as served:
        robot = served.robot()
        number = (await robot.open()).session
        async with watching(served) as page:
            await page.until("hello")
            await acts(robot, 1, instruction=hostile)
            assert (await page.update(number, "answers"))["instruction"] == hostile


async def test_two_viewers_see_the_details_that_each_asked_for(checkpoint):
    async with serving(checkpoint) as served:
        robots = [served.robot(), served.robot()]
        first, second = [(await each.open()).session for each in robots]
        async with watching(served, f"?detail={first}") as one, watching(served, f"?detail={second}") as other:
            for page in (one, other):
                await page.until("hello")
            await eventually(lambda: served.service._watch.details == {first, second})
            for robot in robots:
                await acts(robot, 1)
            for page, mine, others in ((one, first, second), (other, second, first)):
                chunks: list[dict[str, Any]] = []
                seen: set[str] = set()
                while not (chunks and str(others) in seen):
                    found = (await page.until("update"))["sessions"]
                    seen |= found.keys()
                    assert "detail" not in found.get(str(others), {})
                    chunks += found.get(str(mine), {"detail": {"chunks": []}})["detail"]["chunks"]
                assert [(chunk["seq"], chunk["values"]) for chunk in chunks] == [(1, [[0.25, -0.5, 1.0]])]


async def test_pictures_come_as_they_were_sent(checkpoint):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http, timeout=30) as http:
        robot = served.robot()
        raw = pb.Camera(name="raw", width=640, height=4, format=pb.IMAGE_FORMAT_RGB8)
        wrist = pb.Camera(name="wrist", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG)
        number = (await robot.open(cameras=[wrist, raw])).session
        images = [pb.Image(data=JPEG), pb.Image(data=bytes([200]) * 640 * 4 * 3)]
        asked = [asyncio.create_task(http.get(f"/events/images/{number}/{camera}")) for camera in (0, 1)]
        await eventually(lambda: observed(served))
        await acts(robot, 1, images=images)
        jpeg, encoded = await asyncio.gather(*asked)
        assert (jpeg.status_code, jpeg.content, jpeg.headers["content-type"]) == (200, JPEG, "image/jpeg")
        assert jpeg.headers["cache-control"] == "no-store"
        assert jpeg.headers["cross-origin-resource-policy"] == "same-origin"
        assert "sandbox" in jpeg.headers["content-security-policy"]
        pixels = simplejpeg.decode_jpeg(encoded.content)
        assert pixels.shape == (2, 320, 3) and abs(int(pixels.mean()) - 200) < 3
        again = await http.get(f"/events/images/{number}/0", headers={"if-none-match": jpeg.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for path in (f"{number}/2", "99/0", f"{1 << 70}/0", "9" * 5000 + "/0", "1/-1"):
            assert (await http.get(f"/events/images/{path}")).status_code == 404


async def test_a_token_needs_a_role_and_its_end_is_the_stream_s(checkpoint, tmp_path: Path):
    path = tmp_path / "tokens.json"
    entries = [("secret", "eve", "observe"), ("other", "bob", "control")]
    async with (
        serving(checkpoint, tokens_file=write_tokens(path, *entries)) as served,
        httpx.AsyncClient(base_url=served.http, timeout=30) as http,
    ):
        for token, status in ((None, 401), ("other", 403)):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            for route in ("/events", "/events/images/1/0"):
                assert (await http.get(route, headers=headers)).status_code == status
        headers = {"authorization": "Bearer secret"}
        async with http.stream("GET", "/events", headers=headers) as answer:
            page = EventReader(answer.aiter_lines())
            hello = await page.until("hello")
            assert hello["tokens"] and hello["may"] == {"operate": False, "chat": False, "demo": False}
            write_tokens(path, entries[1])
            with pytest.raises(StopAsyncIteration):
                while True:
                    await page.next()


async def test_a_stream_does_not_delay_the_end_of_the_service(checkpoint):
    async with serving(checkpoint, timing__drain_ms=20_000) as served, watching(served) as page:
        await page.until("hello")
        stopping = asyncio.create_task(served.service.stop())
        with pytest.raises((StopAsyncIteration, httpx.RemoteProtocolError)):
            while True:
                await page.next()
        await asyncio.wait_for(stopping, 10)


async def test_a_lost_gateway_ends_watching(checkpoint):
    async with serving(checkpoint) as served:
        with contextlib.suppress(httpx.RemoteProtocolError, StopAsyncIteration):
            async with watching(served) as page:
                await page.until("hello")
                served.children.newest["gateway"].close()
                while True:
                    await page.next()
        await eventually(lambda: not observed(served))


async def test_bad_details_are_rejected(checkpoint):
    async with serving(checkpoint) as served, httpx.AsyncClient(base_url=served.http) as http:
        for query in ("?detail=x", "?detail=-1", "?" + "detail=1&" * 5):
            answer = await http.get(f"/events{query}")
            assert (answer.status_code, answer.json()["error"]["field"]) == (400, "detail")
        assert (await http.head("/events")).status_code == 200


class Mirror:
    """Viewers whose control is the test."""

    def __init__(self) -> None:
        self.asked: list[Watch] = []
        self.metrics = GatewayMetrics()
        self.tasks: list[asyncio.Task[None]] = []
        self.viewers = Viewers(
            lambda message: self.asked.append(message) or True,  # type: ignore[func-returns-value]
            lambda work: self.tasks.append(asyncio.create_task(work)),
            self.metrics,
            stays=lambda _: True,
            own=dict,
            models=list,
        )

    async def viewer(self, cut: Callable[[], None] = lambda: None) -> Viewer:
        """A viewer that has begun."""
        made = Viewer(Caller("127.0.0.1"), frozenset(), cut)
        opening = asyncio.create_task(self.viewers.open(made, {}))
        if not self.viewers.sessions:
            await eventually(lambda: bool(self.asked))
            self.batch(1, whole=[{"session": 1, "cameras": [], "status": {"state": "acting"}}])
        await opening
        return made

    def batch(self, number: int, **parts: Any) -> None:
        data = msgpack.packb({"time": 0, "sessions": {}, "pictures": [], **parts})
        descriptors = [seal(data)]
        self.viewers.take(Watched(number=number, map_bytes=len(data)), descriptors)
        close_all(descriptors)

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()


async def test_a_viewer_that_does_not_read_is_cut_and_no_other():
    mirror, cuts = Mirror(), []
    slow, quick = await mirror.viewer(lambda: cuts.append("slow")), await mirror.viewer(lambda: cuts.append("quick"))
    reading = quick.texts()
    assert "hello" in await anext(reading)
    for number in range(2, 2 + events.MOST_QUEUED):
        mirror.batch(number, sessions={1: {"state": "hold"}})
        assert '"hold"' in await anext(reading)
    assert cuts == ["slow"]
    assert mirror.metrics.registry.get_sample_value("edgeflow_page_viewers_cut_total") == 1
    assert mirror.metrics.registry.get_sample_value("edgeflow_page_viewers") == 1
    mirror.viewers.close(slow)
    mirror.close()


async def test_lost_batches_are_counted_and_what_they_hid_is_told():
    mirror = Mirror()
    viewer = await mirror.viewer()
    texts = viewer.texts()
    await anext(texts)
    mirror.asked.clear()
    mirror.batch(4, sessions={1: {"state": "hold"}})
    assert '"lost": 2' in await anext(texts)
    assert mirror.metrics.registry.get_sample_value("edgeflow_page_batches_lost_total") == 2
    await eventually(lambda: bool(mirror.asked) and mirror.asked[-1].whole)
    mirror.batch(5, whole=[{"session": 2, "cameras": [], "status": {}}])
    told = await anext(texts)
    assert told.index("event: opened") < told.index("event: closed") and list(mirror.viewers.sessions) == [2]
    mirror.close()


async def test_a_mirror_that_control_no_longer_feeds_is_not_shown_as_new(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "SILENT_S", 0.05)
    monkeypatch.setattr(events, "FIRST_S", 0.05)
    mirror = Mirror()
    await mirror.viewer()
    await asyncio.sleep(0.1)
    late = Viewer(Caller("127.0.0.1"), frozenset(), lambda: None)
    with pytest.raises(Unavailable):
        await mirror.viewers.open(late, {})
    await eventually(lambda: mirror.asked[-1].whole)
    mirror.close()


async def test_viewers_are_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "MOST_VIEWERS", 1)
    mirror = Mirror()
    viewer = await mirror.viewer()
    with pytest.raises(ResourceExhausted):
        await mirror.viewer()
    mirror.viewers.close(viewer)
    await eventually(lambda: not mirror.asked[-1].on)
    mirror.close()
