"""What control takes from a gateway: only what a gateway sends, and no more of it than it may."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.ipc.packets import seal
from edgeflow.service.children.messages import ACTS_AT_ONCE, Act, ActCancel, ActDone, ActRejected
from edgeflow.service.children.single_actions import SingleActions
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.security.auth import Authenticator, Caller, Role, TokenEntry, digest
from edgeflow.service.sessions import plane as plane_module
from edgeflow_client.errors import WorkerError
from edgeflow_client.types import CameraSpec, Command, ImageFormat, Mode, StateSpec
from tests.service.harness import eventually, serving
from tests.service.scripted import Script

CAMERA = CameraSpec("image", 2, 2, ImageFormat.RGB8)
OPENED = OpenRequest(
    cameras=(CAMERA,),
    instruction="go",
    control_period_ns=1_000_000_000,
    max_action_age_ns=60_000_000_000,
    mode=None,
    unnorm_key="",
    policy_cameras=(CAMERA,),
)
ACT = Act(request=1, opened=OPENED, state=[], caller=Caller("192.0.2.1"), received_ns=0, decode_ns=5)
PIXELS = bytes(range(12))


class SentAnswers:
    """A supervisor that remembers what its gateway would hear."""

    name = "gateway"

    def __init__(self) -> None:
        self.messages: list[ActDone | ActRejected] = []

    def send(self, message, descriptors=()) -> bool:
        self.messages.append(message)
        return True


@contextlib.asynccontextmanager
async def single_actions(
    checkpoint, authenticator: Authenticator | None = None, script: Script | None = None
) -> AsyncIterator[tuple]:
    async with serving(checkpoint, script) as served:
        service = served.service
        made = SingleActions(service.plane, authenticator or service._authenticator, service._log)
        yield made, SentAnswers(), served
        made.cancel_all()


def changed(**changes) -> Act:
    return replace(ACT, opened=replace(OPENED, **changes))


def ask(made: SingleActions, sent: SentAnswers, message: Act, *parts: bytes) -> None:
    made.act(sent, message, [seal(part) for part in parts])  # type: ignore[arg-type]


async def test_an_observation_becomes_an_action(checkpoint):
    async with single_actions(checkpoint) as (made, sent, served):
        ask(made, sent, ACT, PIXELS)
        await eventually(lambda: bool(sent.messages))
        (done,) = sent.messages
        assert isinstance(done, ActDone)
        assert (done.request, done.action.command, done.action.timings.decode_ns) == (1, Command.ACT, 5)
        assert done.action.max_age_ms == 60_000
        await eventually(lambda: served.metric("edgeflow_sessions") == 0)  # the answer goes first


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (ACT, ()),
        (ACT, (PIXELS, PIXELS)),
        (ACT, (PIXELS[:-1],)),
        (ACT, (PIXELS + b"x",)),
        (replace(ACT, opened=replace(OPENED, cameras=())), (PIXELS,)),
        (changed(cameras=(replace(CAMERA, width=1 << 20),)), (PIXELS,)),
        (changed(cameras=(replace(CAMERA, width=1 << 14, height=1),)), (bytes(3 << 14),)),
        (changed(cameras=(replace(CAMERA, width=-1, height=-1),)), (PIXELS[:3],)),
        (changed(cameras=(replace(CAMERA, name=""),)), (PIXELS,)),
        (changed(cameras=(CAMERA, CAMERA)), (PIXELS,)),
        (changed(instruction=""), (PIXELS,)),
        (changed(instruction="a" * 5000), (PIXELS,)),
        (changed(control_period_ns=0), (PIXELS,)),
        (changed(control_period_ns=1 << 62), (PIXELS,)),
        (changed(max_action_age_ns=-1), (PIXELS,)),
        (changed(max_action_age_ns=60_001_000_000), (PIXELS,)),
        (changed(state=(StateSpec(name="a", size=257),)), (PIXELS,)),
        (changed(state=(StateSpec(name="a" * 65, size=1),)), (PIXELS,)),
        (changed(state=(StateSpec(name="a", size=1),)), (PIXELS,)),
        (replace(ACT, state=[0.5]), (PIXELS,)),
        (replace(changed(state=(StateSpec(name="a", size=1),)), state=[math.nan]), (PIXELS,)),
        (changed(policy_numbers=(0,)), (PIXELS,)),
        (changed(unnorm_key="a" * 65), (PIXELS,)),
        (changed(depth=2), (PIXELS,)),
        (changed(max_passes=1), (PIXELS,)),
        (changed(mode=Mode.SPECULATIVE, tolerance_bins=3), (PIXELS,)),
        (changed(mode=Mode.SPECULATIVE, tolerance_bins=-1), (PIXELS,)),
        (changed(mode=Mode.SPECULATIVE, max_passes=-1), (PIXELS,)),
    ],
)
async def test_a_message_that_no_gateway_sends_ends_it(checkpoint, message: Act, parts: tuple[bytes, ...]):
    async with single_actions(checkpoint) as (made, sent, _):
        with pytest.raises(WorkerError):
            ask(made, sent, message, *parts)
        assert sent.messages == []


@pytest.mark.parametrize(
    "inputs",
    [
        PolicyInputs(cameras=(CameraNeed(name="top"),)),
        PolicyInputs(cameras=(CameraNeed(name="image", named=False),), state=(StateSpec(name="state", size=2),)),
        PolicyInputs(cameras=(), state=()),
    ],
)
async def test_an_observation_matched_with_an_earlier_policy_is_rejected(checkpoint, inputs: PolicyInputs):
    async with single_actions(checkpoint) as (made, sent, served):
        plane = served.service.plane
        plane.worker = replace(plane.worker, inputs=inputs)
        ask(made, sent, ACT, PIXELS)
        (rejected,) = sent.messages
        assert (rejected.code, rejected.reason) == ("UNAVAILABLE", "WORKER_RESTARTING") and rejected.retry_after_ms


async def test_an_observation_is_matched_once_in_control(checkpoint, monkeypatch):
    async with single_actions(checkpoint) as (made, sent, _):
        calls = []
        matched = plane_module.matched
        monkeypatch.setattr(plane_module, "matched", lambda *parts: calls.append(parts) or matched(*parts))
        ask(made, sent, ACT, PIXELS)
        await eventually(lambda: bool(sent.messages))
        assert isinstance(sent.messages[0], ActDone) and len(calls) == 1


async def test_observations_beyond_the_gateway_s_credit_are_rejected(checkpoint):
    script = Script(hold=True)
    async with single_actions(checkpoint, script=script) as (made, sent, _):
        for number in range(ACTS_AT_ONCE):
            ask(made, sent, replace(ACT, request=number), PIXELS)
        ask(made, sent, replace(ACT, request=ACTS_AT_ONCE), PIXELS)
        (rejected,) = sent.messages
        assert isinstance(rejected, ActRejected)
        assert (rejected.request, rejected.code, rejected.reason) == (ACTS_AT_ONCE, "RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert rejected.retry_after_ms > 0
        with pytest.raises(WorkerError):
            ask(made, sent, replace(ACT, request=0), PIXELS)
        for _ in range(10 * ACTS_AT_ONCE):
            made.cancel(ActCancel(0))
            ask(made, sent, replace(ACT, request=0), PIXELS)
        assert len(made._tasks) == 2 * ACTS_AT_ONCE, "those that were cancelled end in the loop's next turns"


async def test_credit_is_free_before_the_gateway_has_its_answer(checkpoint):
    async with single_actions(checkpoint) as (made, _sent, _):
        more = iter(range(ACTS_AT_ONCE, 2 * ACTS_AT_ONCE))

        class Eager(SentAnswers):
            def send(self, message, descriptors=()) -> bool:
                number = next(more, None)
                if number is not None:
                    ask(made, self, replace(ACT, request=number), PIXELS)
                return super().send(message)

        eager = Eager()
        for number in range(ACTS_AT_ONCE):
            ask(made, eager, replace(ACT, request=number), PIXELS)
        await eventually(lambda: len(eager.messages) == 2 * ACTS_AT_ONCE)
        assert "QUEUE_FULL" not in [getattr(each, "reason", "") for each in eager.messages]
        assert made._running == {}


async def test_the_credit_of_a_client_that_left_is_free_at_once(checkpoint):
    async with single_actions(checkpoint, script=Script(hold=True)) as (made, sent, _):
        for number in range(ACTS_AT_ONCE):
            ask(made, sent, replace(ACT, request=number), PIXELS)
        made.cancel(ActCancel(0))
        ask(made, sent, replace(ACT, request=ACTS_AT_ONCE), PIXELS)
        made.cancel_all()
        ask(made, sent, replace(ACT, request=1), PIXELS)
        assert sent.messages == [], "another gateway counts from the start"


async def test_a_token_that_is_revoked_meanwhile_is_rejected(checkpoint):
    entry = TokenEntry(principal="arm-1", sha256=digest("t"), roles=[Role.CONTROL])
    async with serving(checkpoint) as served:
        authenticator = Authenticator([entry], served.service.metrics, served.service._log)
        made, sent = SingleActions(served.service.plane, authenticator, served.service._log), SentAnswers()
        known = replace(ACT, caller=Caller("192.0.2.1", "arm-1", digest("t")))
        ask(made, sent, known, PIXELS)
        await eventually(lambda: len(sent.messages) == 1)
        authenticator.replace([])
        ask(made, sent, known, PIXELS)
        await eventually(lambda: len(sent.messages) == 2)
        rejected = sent.messages[1]
        assert isinstance(rejected, ActRejected)
        assert (rejected.code, rejected.reason) == (grpc.StatusCode.PERMISSION_DENIED.name, "REVOKED")
