"""openpi's clients and a policy in a real worker: recorded answers, rejections, a worker that dies in between."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest

from tests.plugins.edgeflow_stub import DIE, REFUSE
from tests.recorded_sessions import recorded_checkpoint, recorded_session
from tests.service.frontends.robot_clients import openpi_robot, robots_address
from tests.service.harness import serving

OWN = SimpleNamespace(launch=None)  # the service starts its workers itself


@pytest.mark.oracle("wire")
async def test_a_recorded_session_and_a_worker_that_dies(tmp_path: Path, stub_plugin: None):
    session = recorded_session("openpi/libero")
    stub = recorded_checkpoint(tmp_path / "stub", session)
    async with serving(stub, OWN) as served, openpi_robot(robots_address(served)) as robot:
        assert robot.metadata["available_unnorm_keys"] == ["bridge_orig"]
        assert (robot.metadata["action_horizon"], robot.metadata["image_resolution"]) == (10, [48, 48])
        recorded = msgpack.unpackb(session.answered[0].answer)["actions"]
        seen = msgpack.unpackb(session.answered[0].request)
        for each in session.answered:
            await robot.socket.send(each.request)
            reply = msgpack.unpackb(await robot.socket.recv())
            assert reply["actions"] == msgpack.unpackb(each.answer)["actions"]
            assert reply["policy_timing"]["infer_ms"] > 0
        text = await robot.rejected(msgpack.packb({**seen, "unnorm_key": "other"}))
        assert text.startswith("REJECTED ") and "unnorm_key" in text and "bridge_orig" in text, text
        assert "the stub refuses" in await robot.rejected(msgpack.packb({**seen, "prompt": REFUSE}))
        assert (await robot.rejected(msgpack.packb({**seen, "prompt": DIE}))).startswith("HOLD WORKER_LOST: ")
        while isinstance(reply := await robot.ask(msgpack.packb(seen)), str):
            assert reply.startswith(("HOLD WORKER", "REJECTED NO_WORKER", "REJECTED WORKER")), reply
        assert np.array_equal(reply["actions"], np.frombuffer(recorded[b"data"], "<f4").reshape(10, 7))
        assert len(served.events("worker_lost")) == 1
