"""Robots' own clients as sessions: silence, epochs, capacity, HOLD and STOP, forced faults, and late answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from edgeflow.service.frontends import sessions as robot_sessions
from edgeflow_client.types import Mode
from tests.plugins.edgeflow_stub import BEYOND, NAN
from tests.service.frontends.robot_clients import (
    OpenpiRobot,
    expected,
    observation,
    openpi_robot,
    robots_address,
    small_stub,
)
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import RunningService, eventually, serving

QUICK = {"timing__silent_hold_ms": 50, "timing__silent_free_ms": 60, "timing__silent_end_ms": 400}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_stub(tmp_path_factory.mktemp("stub"), control_rate_hz=200.0)


def ended(served: RunningService) -> int:
    return len(served.events("session_closed"))


def holds(served: RunningService) -> dict[str, float]:
    """HOLD and STOP by reason, without those of robots that left."""
    family = next(each for each in served.service.metrics.registry.collect() if each.name == "edgeflow_safe_action")
    counted = {each.labels["reason"]: each.value for each in family.samples if each.name.endswith("_total")}
    return {reason: count for reason, count in counted.items() if count and reason != "CLIENT_GONE"}


async def timing(robot: OpenpiRobot, **changes: Any) -> dict[str, Any]:
    reply = await robot.ask(observation(**changes))
    assert isinstance(reply, dict), reply
    return reply["server_timing"]


async def test_silence_is_normal_and_a_session_that_ends_in_it_continues_in_a_new_epoch(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), **QUICK) as served, openpi_robot(robots_address(served)) as robot:
        first = await timing(robot)
        plane = served.service.plane
        (runner,) = plane._runners.values()
        await eventually(lambda: runner.session.parked)
        assert ended(served) == 0, "parked, not ended"
        second = await timing(robot)
        assert (first["epoch"], second["epoch"], second["seq"]) == (1, 1, 2)
        await eventually(lambda: ended(served) == 1)
        assert not plane._runners
        third = await timing(robot)
        assert (third["epoch"], third["seq"]) == (2, 1)
        assert holds(served) == {}
        assert served.events("session_closed")[0]["reason"] == "silent"


async def test_a_new_prompt_or_other_inputs_begin_a_new_epoch(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub)) as served, openpi_robot(robots_address(served)) as robot:
        large = np.zeros((24, 32, 3), np.uint8)
        changes: list[dict[str, Any]] = [
            {},
            {"grey": 9},
            {"prompt": "come"},
            {"prompt": "come", "observation/image": large},
            {"prompt": "come", "observation/image": large, "unnorm_key": "action"},
            {"prompt": "come", "observation/image": large, "unnorm_key": "action", "other": np.zeros(4)},
        ]
        epochs = [(await timing(robot, **each))["epoch"] for each in changes]
        assert epochs == [1, 1, 2, 3, 4, 4]
        assert await robot.ask({"endpoint": "reset"}) == "reset successful"
        assert (await timing(robot, **changes[-1]))["epoch"] == 5


async def test_each_connection_is_a_session_with_its_own_capacity(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), max_sessions=2) as served:
        address = robots_address(served)
        async with openpi_robot(address) as one:
            async with openpi_robot(address) as two, openpi_robot(address) as three:
                assert np.array_equal(await one.act(grey=1), expected(1))
                assert np.array_equal(await two.act(grey=2), expected(2))
                text = await three.rejected(observation())
                assert text.startswith("REJECTED SESSIONS_TAKEN: "), text
                opened = served.events("session_opened")
                assert len(opened) == 2 and len({each["session"] for each in opened}) == 2
                await two.socket.close()
                await eventually(lambda: ended(served) == 1)
                assert np.array_equal(await three.act(grey=3), expected(3))
            await eventually(lambda: ended(served) == 2)
        await eventually(lambda: ended(served) == 3)
        assert holds(served) == {}


async def test_a_silent_robot_frees_its_capacity(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), max_sessions=1, timing__silent_free_ms=100) as served:
        address = robots_address(served)
        async with openpi_robot(address) as silent, openpi_robot(address) as other:
            await silent.act()
            (runner,) = served.service.plane._runners.values()
            await eventually(lambda: runner.session.parked)
            assert np.array_equal(await other.act(grey=4), expected(4))
            text = await silent.rejected(observation())
            assert text.startswith("HOLD SESSIONS_TAKEN: "), text
            await other.socket.close()
            await eventually(lambda: ended(served) == 1)
            assert np.array_equal(await silent.act(grey=5), expected(5))


async def test_a_client_that_leaves_while_its_request_waits_ends_its_session(checkpoint, stub: Path):
    script = stub_script(stub)
    async with serving(checkpoint, script) as served:
        async with openpi_robot(robots_address(served)) as robot:
            await robot.act()
            script.hold = True
            await robot.send(observation(grey=1))
            await eventually(lambda: bool(script.worker.held))
            robot.socket.transport.abort()
            await eventually(lambda: ended(served) == 1)
        assert not served.service.plane._runners


async def test_outputs_beyond_the_limits_hold_and_three_in_a_row_stop(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub)) as served, openpi_robot(robots_address(served)) as robot:
        assert (await robot.rejected(observation(prompt=NAN))).startswith("HOLD POLICY_OUTPUT_INVALID: ")
        assert (await robot.rejected(observation(prompt=BEYOND))).startswith("HOLD POLICY_OUTPUT_INVALID: ")
        assert np.array_equal(await robot.act(grey=1), expected(1))
        for _ in range(2):
            assert (await robot.rejected(observation(prompt=NAN))).startswith("HOLD POLICY_OUTPUT_INVALID: ")
        assert (await robot.rejected(observation(prompt=NAN))).startswith("STOP POLICY_OUTPUT_INVALID: ")
        for prompt in ("go", NAN):
            assert (await robot.rejected(observation(prompt=prompt))).startswith("STOP FAULT: ")
        assert await robot.ask({"endpoint": "reset"}) == "reset successful"
        assert np.array_equal(await robot.act(grey=2), expected(2))


async def test_a_lost_worker_holds_and_the_next_one_answers(checkpoint, stub: Path):
    script = stub_script(stub)
    async with serving(checkpoint, script) as served, openpi_robot(robots_address(served)) as robot:
        before = await timing(robot)
        script.hold = True
        await robot.send(observation(grey=1))
        await eventually(lambda: bool(script.worker.held))
        script.worker.kill()
        assert (await robot.read()).startswith("HOLD WORKER_LOST: ")
        script.hold = False
        while isinstance(reply := await robot.ask(observation(grey=2)), str):
            assert reply.startswith(("HOLD WORKER_RESTARTING: ", "HOLD WORKER_LOST: ")), reply
        assert np.array_equal(reply["actions"], expected(2))
        assert reply["server_timing"]["epoch"] >= before["epoch"]


async def test_a_worker_that_hangs_is_one_that_is_lost(checkpoint, stub: Path):
    script = stub_script(stub)
    async with (
        serving(checkpoint, script, timing__worker_progress_ms=300) as served,
        openpi_robot(robots_address(served)) as robot,
    ):
        await robot.act()
        script.worker.deaf = True
        assert (await robot.rejected(observation())).startswith("HOLD WORKER_LOST: ")


async def test_forced_answers(checkpoint, stub: Path):
    faults = [
        {"answer": "hold", "session": 1, "first": 2, "last": 2},
        {"answer": "reject", "session": 1, "first": 3, "last": 3},
        {"answer": "stop", "session": 1, "first": 4, "last": 4},
        {"answer": "delay", "session": 2, "delay_ms": 120},
    ]
    async with serving(checkpoint, stub_script(stub), frontends__faults=faults) as served:
        async with openpi_robot(robots_address(served)) as robot:
            assert np.array_equal(await robot.act(grey=1), expected(1))
            assert (await robot.rejected(observation())).startswith("HOLD FORCED: ")
            assert (await robot.rejected(observation())).startswith("REJECTED FORCED: ")
            assert (await robot.rejected(observation())).startswith("STOP FORCED: ")
            assert (await robot.rejected(observation())).startswith("STOP FAULT: ")
            assert await robot.ask({"endpoint": "reset"}) == "reset successful"
            assert np.array_equal(await robot.act(grey=5), expected(5))
        async with openpi_robot(robots_address(served)) as robot:
            found = await timing(robot, grey=1)
            assert found["infer_ms"] >= 120 and found["age_ms"] >= 120
        assert any("forced" in event["text"] for event in served.events("warning"))


async def test_a_late_answer_is_never_that_of_the_next_request(checkpoint, stub: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(robot_sessions, "SLACK_S", 0.05)
    faults = [{"answer": "delay", "first": 1, "last": 1, "delay_ms": 300}]
    script = stub_script(stub)
    async with serving(checkpoint, script, timing__act_timeout_ms=100, frontends__faults=faults) as served:
        async with openpi_robot(robots_address(served)) as robot:
            assert "ACT_TIMEOUT" in await robot.rejected(observation(grey=1))
            for grey in range(2, 5):
                assert np.array_equal(await robot.act(grey=grey), expected(grey))
        async with openpi_robot(robots_address(served)) as robot:
            script.hold = True
            for grey in (6, 7):
                assert "ACT_TIMEOUT" in await robot.rejected(observation(grey=grey))
            await robot.send(observation(grey=8))
            await eventually(lambda: bool(script.worker.held))
            script.hold = False
            while script.worker.held:
                script.worker.release()
            reply = await robot.read()
            if isinstance(reply, dict):
                assert np.array_equal(reply["actions"], expected(8))
            else:
                assert "ACT_TIMEOUT" in reply
            for grey in range(9, 12):
                assert np.array_equal(await robot.act(grey=grey), expected(grey))


async def test_a_flood_of_resets_harms_nobody(checkpoint, stub: Path):
    """Control ends a robots' process that sends too many messages; a robot cannot make it do so."""
    async with serving(checkpoint, stub_script(stub)) as served:
        address = robots_address(served)
        async with openpi_robot(address) as robot, openpi_robot(address) as wild:
            await robot.act()
            await wild.act()
            front = served.children.newest["robots"]
            sent = []
            send = front._link.send
            front._link.send = lambda message, *rest: sent.append(message) or send(message, *rest)
            for _ in range(20):
                for _ in range(15):
                    await wild.send({"endpoint": "reset"})
                for _ in range(15):
                    assert await wild.read() == "reset successful"
            assert sum(type(each).__name__ == "ResetRobot" for each in sent) == 1
            assert np.array_equal(await robot.act(grey=3), expected(3))
            assert np.array_equal(await wild.act(grey=3), expected(3))
            for _ in range(50):
                await wild.send({"endpoint": "reset"})
            with pytest.raises(ConnectionClosed, match="more than 16 messages"):
                while True:
                    await wild.read()
            assert np.array_equal(await robot.act(grey=4), expected(4))


@pytest.mark.parametrize("rows", [0, 4])
async def test_the_period_is_the_time_that_a_client_executes_rows(checkpoint, tmp_path: Path, rows: int):
    stub = small_stub(tmp_path, horizon=8, control_rate_hz=20.0)
    async with (
        serving(checkpoint, stub_script(stub), frontends__openpi__rows=rows, mode="pipelined") as served,
        openpi_robot(robots_address(served)) as robot,
    ):
        await robot.act()
        (runner,) = served.service.plane._runners.values()
        assert runner.session.request.control_period_ns == (rows or 4) * 50_000_000
        assert runner.plan.mode is Mode.AUTO and runner.plan.pace.depth <= 1
        assert runner.session.request.chunks


async def test_the_period_may_be_configured(checkpoint, stub: Path):
    async with (
        serving(checkpoint, stub_script(stub), frontends__openpi__period_ms=777) as served,
        openpi_robot(robots_address(served)) as robot,
    ):
        await robot.act()
        (runner,) = served.service.plane._runners.values()
        assert runner.session.request.control_period_ns == 777_000_000


async def test_robots_beside_each_other_get_their_own_answers(checkpoint, stub: Path):
    async with serving(checkpoint, stub_script(stub), max_sessions=4) as served:
        address = robots_address(served)

        async def live(number: int) -> None:
            async with openpi_robot(address) as robot:
                for step in range(6):
                    grey = number * 6 + step
                    assert np.array_equal(await robot.act(grey=grey), expected(grey))

        await asyncio.gather(*map(live, range(4)))
        assert holds(served) == {}
