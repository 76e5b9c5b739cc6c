"""Decoding in the gateway: threads that cannot be stopped keep their turn and their credit, whoever leaves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.service.children.messages import ACTS_AT_ONCE, ActCancel
from edgeflow.service.frontends import control as control_module
from edgeflow.service.frontends.control import CheckedObservation, ControlView, ObservationDecoder
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.service.harness import eventually

SIDE = 400  # more pixels than are decoded at once
CALLER = Caller("192.0.2.1", "", "")


def opened(side: int = SIDE) -> OpenRequest:
    camera = CameraSpec("front", side, side, ImageFormat.RGB8)
    return OpenRequest(
        cameras=(camera,),
        instruction="go",
        control_period_ns=1_000_000_000,
        max_action_age_ns=None,
        mode=None,
        unnorm_key="",
        policy_cameras=(camera,),
    )


def frame(side: int = SIDE) -> CheckedFrame:
    return CheckedFrame(seq=1, stamp_ns=0, images=(bytes(side * side * 3),))


class HeldDecodings:
    """Decodings that wait until they are let go. now, most: how many run, and ran at a time."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = 0
        self.go = threading.Event()
        self._lock = threading.Lock()
        self._decoded = control_module._decoded

    def __call__(self, *observation):
        with self._lock:
            self.now += 1
            self.begun += 1
            self.most = max(self.most, self.now)
        try:
            assert self.go.wait(60)
            return self._decoded(*observation)
        finally:
            with self._lock:
                self.now -= 1


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HeldDecodings]:
    made = HeldDecodings()
    monkeypatch.setattr(control_module, "_decoded", made)
    yield made
    made.go.set()
    await eventually(lambda: made.now == 0)


class Deaf:
    """A link to a control that answers nothing."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message, descriptors=()) -> bool:
        self.sent.append(message)
        return True


async def left(task: asyncio.Task) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def control(link: Deaf, **settings) -> ControlView:
    return ControlView(link, ServiceConfig.model_validate({"decode_threads": 1, **settings}))  # type: ignore[arg-type]


async def test_no_more_decodings_run_than_there_are_threads_when_clients_leave(slow: HeldDecodings):
    decoder = ObservationDecoder(2)
    for _ in range(10):
        begun = slow.begun
        asking = asyncio.create_task(decoder.begin(frame(), opened()))
        await asyncio.sleep(0)
        if begun < 2:
            job = await asking
            shielded = asyncio.ensure_future(asyncio.shield(job))
            await eventually(lambda begun=begun: slow.begun > begun)
            shielded.cancel()
        else:
            await left(asking)
    assert (slow.begun, slow.most) == (2, 2)
    slow.go.set()
    pixels, took_ns = await (await decoder.begin(frame(), opened()))
    assert took_ns > 0 and pixels.descriptor > 0
    assert slow.most == 2
    decoder.close()


async def test_the_credit_of_a_client_that_left_is_free_once_its_thread_is_done(slow: HeldDecodings):
    seen = CheckedObservation(opened=opened(), frame=frame(), received_ns=0)
    link = Deaf()
    made = control(link, timing={"act_timeout_ms": 100})
    asked = [asyncio.create_task(made.act(seen, CALLER)) for _ in range(ACTS_AT_ONCE)]
    await eventually(lambda: slow.begun == 1)
    for task in asked[1:]:
        await left(task)
    others = [asyncio.create_task(made.act(seen, CALLER)) for _ in range(ACTS_AT_ONCE - 1)]
    await left(asked[0])
    with pytest.raises(ResourceExhausted):
        await made.act(seen, CALLER)
    for task in others:
        await left(task)
    assert link.sent == [] and slow.begun == 1
    slow.go.set()
    last = [asyncio.create_task(made.act(seen, CALLER)) for _ in range(ACTS_AT_ONCE)]
    await eventually(lambda: len(link.sent) == ACTS_AT_ONCE)
    for task in last:
        await left(task)
    assert [type(message) for message in link.sent[ACTS_AT_ONCE:]] == [ActCancel] * ACTS_AT_ONCE
    made.close()


async def test_a_small_observation_is_decoded_at_once(slow: HeldDecodings):
    slow.go.set()
    decoder = ObservationDecoder(1)
    job = await decoder.begin(frame(2), opened(2))
    assert job.done() and (await job)[1] >= 0
    decoder.close()
