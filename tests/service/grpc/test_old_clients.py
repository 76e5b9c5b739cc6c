"""An exchange recorded from a client that was built before observations had state vectors and answers had chunks."""

from __future__ import annotations

import grpc
import pytest

from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import StateSpec
from tests.service.grpc.test_observations import HORIZON, ROWS, wide_script
from tests.service.harness import serving
from tests.service.scripted import Script

OPEN = (
    "0a3e120d0a0577726973741004180220021a0873686f756c6465721a05656c626f772214677261737020746865207265642068616e646c65"
    "283230e0d4033801"
)
FRAMES = (
    "1233080110c0843d1a210a0577726973741218000102030405060708090a0b0c0d0e0f101112131415161722080000803e000000bf",
    "1235080210c0e5a8181a1a1218000102030405060708090a0b0c0d0e0f101112131415161722080000003f000000bf2a066c657420676f",
)
CLOSE = "2200"
JOINTS = PolicyInputs(
    cameras=(CameraNeed(name="image", named=False),),
    state=(StateSpec(name="observation.state", size=2, elements=("shoulder", "elbow")),),
)


def wide() -> Script:
    script = wide_script()
    script.inputs = JOINTS
    return script


@pytest.mark.parametrize("script", [Script(), wide()], ids=["one action", "chunks"])
async def test_a_recorded_exchange_is_answered_as_before(checkpoint, script: Script):
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.send(bytes.fromhex(OPEN))
        opened = (await robot.read()).opened
        assert (opened.session, opened.epoch, opened.mode, opened.model) == (1, 1, pb.MODE_SERIAL, "demo")
        assert [each.name for each in opened.schema.dimensions] == ["x", "y", "grip"]
        assert opened.valid_for_ms == 250 and opened.action_tokens == 3
        rows = ROWS if script.schema.horizon == HORIZON else [[0.25, -0.5, 1.0]]
        for seq, frame in enumerate(FRAMES, start=1):
            await robot.send(bytes.fromhex(frame))
            action = await robot.action(seq)
            assert list(action.values) in rows and len(action.values) == len(opened.schema.dimensions)
            assert (action.command, action.epoch, list(action.token_ids)) == (pb.COMMAND_ACT, seq, [7, 8, 9])
            assert (await robot.status(seq)).disposition == pb.DISPOSITION_ACTED
        await robot.send(bytes.fromhex(CLOSE))
        assert (await robot.rest())[0] is grpc.StatusCode.OK
        first, second = served.script.worker.submitted()
        assert first.payload == second.payload == bytes(range(24)) and first.sizes == [2, 4]
        assert (first.instruction, second.instruction) == ("grasp the red handle", "let go")
        assert (first.state, second.state) == (([], []) if not script.inputs.state else ([0.25, -0.5], [0.5, -0.5]))
