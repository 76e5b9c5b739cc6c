"""Control's side of live pages: it forgets a gateway that hangs, and sends few pictures."""

from __future__ import annotations

import io
from typing import Any

import msgpack
import pytest

from edgeflow.ipc.packets import read_sealed
from edgeflow.service.children import watching
from edgeflow.service.children.messages import Watch, Watched
from edgeflow.service.children.watching import FORGET_NS, PICTURE_NS, PageWatch
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.watching import SessionWatch
from edgeflow_client.clock import ManualClock
from tests.service.harness import JPEG, eventually, serving

ASKED = Watch(on=True, whole=True, details=[], pictures=[])


class ReadingGateway:
    """A supervisor whose gateway reads, if `reads`."""

    def __init__(self) -> None:
        self.reads = True
        self.batches: list[tuple[int, dict[str, Any], bytes]] = []

    def send(self, message: Watched, descriptors: list[int]) -> bool:
        if self.reads:
            data = read_sealed(descriptors[0], 1 << 20)
            batch = msgpack.unpackb(data[: message.map_bytes], strict_map_key=False)
            self.batches.append((message.number, batch, data[message.map_bytes :]))
        return self.reads


def page_watch(sessions: SessionWatch, clock: ManualClock, log: EventLog | None = None) -> PageWatch:
    return PageWatch(sessions, lambda: {"state": "ready"}, clock, log or EventLog(clock, io.StringIO()))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BATCH_S", 0.002)


@pytest.mark.usefixtures("hurried")
async def test_a_gateway_without_a_word_is_forgotten():
    clock, gateway = ManualClock(), ReadingGateway()
    sessions = SessionWatch(dict, lambda: None)
    watch = page_watch(sessions, clock)
    watch.take(gateway, ASKED)  # type: ignore[arg-type]
    await eventually(lambda: len(gateway.batches) > 3)
    assert sessions._on
    clock.advance_ns(FORGET_NS + 1)
    await eventually(lambda: not sessions._on)
    sent = len(gateway.batches)
    watch.take(gateway, Watch(on=True, whole=False, details=[], pictures=[]))  # type: ignore[arg-type]
    await eventually(lambda: len(gateway.batches) > sent)
    assert "whole" in gateway.batches[sent][1]  # watching began anew
    watch.take(gateway, Watch(on=False, whole=False, details=[], pictures=[]))  # type: ignore[arg-type]
    assert not sessions._on and watch._timer is None


async def test_a_hold_is_told_soon_however_many_robots_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watching, "LONGEST_S", 3600.0)
    monkeypatch.setattr(SessionWatch, "count", 1_000_000)
    gateway, sessions = ReadingGateway(), SessionWatch(dict, lambda: None)
    watch = page_watch(sessions, ManualClock())
    watch.take(gateway, ASKED)  # type: ignore[arg-type]
    assert len(gateway.batches) == 1
    sessions.urgent()
    await eventually(lambda: len(gateway.batches) == 2)
    watch.stop()


@pytest.mark.usefixtures("hurried")
async def test_batches_that_the_gateway_does_not_take_leave_a_gap():
    clock, gateway = ManualClock(), ReadingGateway()
    watch = page_watch(SessionWatch(dict, lambda: None), clock)
    watch.take(gateway, ASKED)  # type: ignore[arg-type]
    gateway.reads = False
    await eventually(lambda: watch._number > 3)
    gateway.reads = True
    await eventually(lambda: len(gateway.batches) > 1)
    watch.stop()
    numbers = [number for number, _, _ in gateway.batches]
    assert numbers[0] == 1 and numbers[1] > 3


async def test_log_lines_come_once():
    clock, gateway = ManualClock(), ReadingGateway()
    log = EventLog(clock, io.StringIO())
    log.event("before", text="a")
    watch = page_watch(SessionWatch(dict, lambda: None), clock, log)
    watch.take(gateway, ASKED)  # type: ignore[arg-type]
    log.event("after", text="b")
    watch._step()
    watch._step()
    watch.stop()
    lines = [[(event, values) for _, _, event, values in batch.get("log", [])] for _, batch, _ in gateway.batches]
    assert lines == [[("before", '{"text": "a"}')], [("after", '{"text": "b"}')], []]


async def test_a_camera_s_pictures_are_sent_when_wanted_and_at_most_twice_per_second(checkpoint):
    async with serving(checkpoint) as served:
        clock, gateway = ManualClock(), ReadingGateway()
        watch = page_watch(served.service._watch, clock)
        robot = served.robot()
        number = (await robot.open()).session
        wanted = Watch(on=True, whole=True, details=[], pictures=[[number, 0], [number, 9], [77, 0]])

        async def pictures(seq: int, asked: Watch) -> list[list[Any]]:
            await robot.frame(seq)
            await robot.action(seq)
            watch.take(gateway, asked)  # type: ignore[arg-type]
            return gateway.batches[-1][1]["pictures"]

        assert await pictures(1, ASKED) == []
        (head,) = await pictures(2, wanted)
        assert head[:4] == [number, 0, 2, "jpeg"] and gateway.batches[-1][2] == JPEG
        assert await pictures(3, wanted) == []
        clock.advance_ns(PICTURE_NS)
        assert [head[2] for head in await pictures(4, wanted)] == [4]
        clock.advance_ns(PICTURE_NS)
        watch.take(gateway, wanted)  # type: ignore[arg-type]
        assert gateway.batches[-1][1]["pictures"] == []  # the same frame again
        watch.stop()
