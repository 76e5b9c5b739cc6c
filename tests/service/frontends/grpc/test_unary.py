"""Control.Act: a session for one frame."""

from __future__ import annotations

import time
from dataclasses import replace

import grpc
import pytest

from edgeflow.contract import Pace
from edgeflow.ipc.messages import CloseSession, OpenSession
from edgeflow.service.frontends.grpc.codec import ParsedMessage, check_act
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.single import act_once
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import JPEG, eventually, frame_message, open_message, serving
from tests.service.scripted import Script


def request(data: bytes = JPEG, **changes) -> pb.ActRequest:
    return pb.ActRequest(open=open_message(**changes), frame=frame_message(0, data))


async def test_one_frame_gets_one_action_and_the_session_ends(checkpoint):
    async with serving(checkpoint) as served:
        answer = await served.act(request(control_period_ms=0))
        assert list(answer.action.values) == [0.25, -0.5, 1.0]
        assert [d.name for d in answer.schema.dimensions] == ["x", "y", "grip"]
        seen = served.script.worker.seen
        assert [m.pace for m in seen if isinstance(m, OpenSession)] == [Pace(1)]
        await eventually(lambda: any(isinstance(m, CloseSession) for m in seen))
        assert served.metric("edgeflow_sessions") == 0


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        (b"\xff", "INVALID_ARGUMENT", "message"),
        (request(b"text"), "INVALID_ARGUMENT", "frame.images[0].data"),
        (request(JPEG[:-200]), "DATA_LOSS", "frame.images[0].data"),
        (request(model="no"), "NOT_FOUND", "open.model"),
        (request(instruction=""), "INVALID_ARGUMENT", "open.instruction"),
    ],
)
async def test_a_bad_request_is_a_typed_status(checkpoint, message, code, field):
    async with serving(checkpoint) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.act(message)
        assert caught.value.code().name == code
        assert caught.value.details().startswith(field)


async def test_an_invalid_policy_output_is_hold(checkpoint):
    async with serving(checkpoint, Script(valid=False)) as served:
        answer = await served.act(request())
        assert (answer.action.command, answer.action.reason) == (pb.COMMAND_HOLD, "POLICY_OUTPUT_INVALID")


async def test_no_answer_in_time(checkpoint):
    async with serving(checkpoint, Script(hold=True), timing__act_timeout_ms=100) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.act(request())
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_worker_lost_meanwhile(checkpoint):
    script = Script(values=lambda frame: script.worker.kill() or [0.0] * 3)
    async with serving(checkpoint, script) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.act(request())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_message_above_the_limit_is_rejected_by_the_library(checkpoint):
    async with serving(checkpoint, limits__message_bytes=10_000) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.act(bytes(20_000))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


SECOND_NS = 1_000_000_000


async def test_pixels_decoded_elsewhere_skip_the_decoder_and_the_time_spent_there_counts(checkpoint):
    async with serving(checkpoint) as served:
        plane, caller = served.service.plane, Caller("", "gateway")
        opened, checked = check_act(ParsedMessage(request(), None), "demo", plane.config.limits)
        frame = replace(checked, images=(), pixels=(b"decoded",), decode_ns=5_000_000)
        received_ns = time.monotonic_ns() - SECOND_NS // 5
        action, _ = await act_once(plane, opened, frame, caller, received_ns=received_ns)
        (submitted,) = served.script.worker.submitted()
        assert submitted.payload == b"decoded" and submitted.waited_ns >= SECOND_NS // 5
        assert action.timings.decode_ns == 5_000_000 and action.server_ns >= SECOND_NS // 5


@pytest.mark.parametrize(("ago_s", "counted_s"), [(-60, 0), (3600, 10)])
async def test_a_time_of_receipt_that_cannot_be_is_bounded(checkpoint, ago_s: int, counted_s: int):
    async with serving(checkpoint) as served:
        plane, caller = served.service.plane, Caller("", "gateway")
        opened, frame = check_act(ParsedMessage(request(max_action_age_ms=60_000), None), "demo", plane.config.limits)
        received_ns = time.monotonic_ns() - ago_s * SECOND_NS
        action, _ = await act_once(plane, opened, frame, caller, received_ns=received_ns)
        assert counted_s <= action.server_ns / SECOND_NS < counted_s + 5
