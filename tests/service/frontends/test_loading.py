"""Robots' own clients before the model is loaded, while a pass runs, and while the service stops."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from edgeflow.service.app import Service
from edgeflow.service.children.messages import Drain
from edgeflow.service.observe.log import EventLog
from edgeflow.service.worker.process import Launched
from edgeflow_client.clock import MonotonicClock
from tests.service.frontends.robot_clients import (
    OpenpiRobot,
    expected,
    observation,
    openpi_robot,
    robots_address,
    small_stub,
)
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import config, eventually, serving
from tests.service.inline import InlineChildren
from tests.service.scripted import Script, ScriptedWorker


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_stub(tmp_path_factory.mktemp("stub"))


class SlowWorker(ScriptedWorker):
    """Loads until `loaded` is set."""

    def __init__(self, script: Script, sock: socket.socket, loaded: threading.Event) -> None:
        super().__init__(script, sock)
        self._loaded = loaded

    def _run(self) -> None:
        self._loaded.wait(60)
        super()._run()


@dataclass
class Loading:
    """A service that starts: its address for robots, and the moment from which its model is loaded."""

    script: Script
    loaded: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def launch(self) -> Launched:
        ours, theirs = socket.socketpair()
        worker = SlowWorker(self.script, theirs, self.loaded)
        self.script.workers.append(worker)
        worker.start()
        return Launched(ours, worker)


@contextlib.asynccontextmanager
async def loading(checkpoint: Path, script: Script, **settings: Any) -> AsyncIterator[Loading]:
    configured = config(model=str(checkpoint), alias="demo", **settings)
    inline, state = InlineChildren(configured), Loading(script)
    log = EventLog(MonotonicClock(), io.StringIO())
    service = Service(configured, lambda _: None, log, state.launch, inline.launch)
    start = asyncio.create_task(service.start())
    try:
        await eventually(lambda: bool(service.status.robots_address))
        state.address = service.status.robots_address
        yield state
    finally:
        state.loaded.set()
        with contextlib.suppress(BaseException):
            await start
        await service.stop()


async def test_clients_that_connect_while_a_model_loads_are_answered_once_it_is(checkpoint, stub: Path):
    """The upgrade is answered at once; metadata follows with the model, and no observation gets old in the meantime."""
    async with loading(checkpoint, stub_script(stub), max_action_age_ms=1000) as service:  # noqa: SIM117
        async with connect(f"ws://{service.address}/", compression=None, proxy=None) as early:
            await (await early.ping())
            hasty = asyncio.create_task(early.recv())
            await asyncio.wait({hasty}, timeout=0.1)
            assert not hasty.done()
            async with httpx.AsyncClient(base_url=f"http://{service.address}") as http:
                alive = await http.get("/healthz")
                assert (alive.status_code, alive.text) == (200, "OK\n")
                body = {"image": np.zeros((16, 16, 3), int).tolist(), "instruction": "go"}
                answer = await http.post("/act", json=body)
                assert answer.status_code == 503 and isinstance(answer.json()["error"], dict)
            service.loaded.set()
            assert isinstance(await hasty, bytes)
            robot = OpenpiRobot(early, {})
            assert np.array_equal(await robot.act(grey=3), expected(3))


async def test_an_observation_from_before_the_model_was_loaded_is_as_old_as_it_is(checkpoint, stub: Path):
    async with (
        loading(checkpoint, stub_script(stub), max_action_age_ms=80) as service,
        connect(f"ws://{service.address}/", compression=None, proxy=None) as socket,
    ):
        robot = OpenpiRobot(socket, {})
        await robot.send(observation(grey=1))
        await (await socket.ping())
        await asyncio.sleep(0.1)  # older than the limit
        service.loaded.set()
        assert "action_horizon" in await robot.read()
        assert (await robot.read()).startswith("HOLD ACTION_TOO_OLD: ")
        assert np.array_equal(await robot.act(grey=3), expected(3))


async def test_a_client_that_leaves_while_a_model_loads_leaves_nothing(checkpoint, stub: Path):
    async with loading(checkpoint, stub_script(stub), limits__http_connections_per_address=2) as service:
        for _ in range(6):
            async with connect(f"ws://{service.address}/", compression=None, proxy=None):
                pass
        service.loaded.set()
        async with openpi_robot(service.address) as robot:
            assert robot.metadata["action_horizon"] == 2
            assert np.array_equal(await robot.act(grey=4), expected(4))


async def test_pings_are_answered_while_a_pass_runs(checkpoint, stub: Path):
    script = stub_script(stub)
    async with serving(checkpoint, script) as served, openpi_robot(robots_address(served)) as robot:
        await robot.act()
        script.hold = True
        await robot.send(observation(grey=5))
        await eventually(lambda: bool(script.worker.held))
        for _ in range(3):
            await asyncio.wait_for(await robot.socket.ping(), 10)
        script.worker.release()
        reply = await robot.read()
        assert np.array_equal(reply["actions"], expected(5))


async def test_a_request_in_flight_is_answered_while_the_service_stops(checkpoint, stub: Path):
    script = stub_script(stub)
    async with serving(checkpoint, script, timing__drain_ms=20_000) as served:
        address = robots_address(served)
        async with openpi_robot(address) as busy, openpi_robot(address) as idle:
            await busy.act()
            script.hold = True
            await busy.send(observation(grey=6))
            await eventually(lambda: bool(script.worker.held))
            front = served.children.newest["robots"]
            stopping = asyncio.create_task(served.service.stop())
            await eventually(lambda: front._draining)
            with pytest.raises(InvalidStatus) as rejected:
                async with connect(f"ws://{address}/", compression=None, proxy=None):
                    pass
            assert rejected.value.response.status_code == 503
            assert (await idle.rejected(observation())).startswith("HOLD DRAINING: ")
            assert not stopping.done()
            script.worker.release()
            reply = await busy.read()
            assert np.array_equal(reply["actions"], expected(6))
            await stopping
            with pytest.raises(ConnectionClosed):
                await idle.socket.recv()


async def test_a_reply_has_left_before_the_process_says_that_it_is_done(checkpoint, stub: Path):
    """Control kills it then."""
    script = stub_script(stub)
    async with serving(checkpoint, script) as served, openpi_robot(robots_address(served)) as robot:
        await robot.act()
        front = served.children.newest["robots"]
        (connection,) = front._http._server.server_state.connections
        order: list[str] = []
        write, send = connection.transport.write, front._link.send

        def written(data: bytes) -> None:
            order.append("reply")
            write(data)

        def sent(message: Any, *rest: Any) -> bool:
            order.append(type(message).__name__)
            return bool(send(message, *rest))

        script.hold = True
        await robot.send(observation(grey=1))
        await eventually(lambda: bool(script.worker.held))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "transport", Spy(connection.transport, written))
            patch.setattr(front._link, "send", sent)
            front._handle(Drain(1000), [])
            script.worker.release()
            await eventually(lambda: "Drained" in order)
            assert order.index("reply") < order.index("Drained")
        await robot.read()


class Spy:
    """A transport whose writes are seen."""

    def __init__(self, transport: Any, write: Any) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
