"""Control's side of live pages: batches of what happens, for the gateway, while somebody watches there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from edgeflow.ipc.framing import Payload
from edgeflow.ipc.packets import Sealed, seal_parts
from edgeflow.service.children.messages import Watch, Watched
from edgeflow.service.children.supervisor import ChildSupervisor
from edgeflow.service.observation.requests import recorded_cameras, recorded_images
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.watching import SessionWatch
from edgeflow_client.clock import Clock
from edgeflow_client.types import CameraSpec, ImageFormat

BATCH_S = 0.25  # between batches, for so many sessions:
SESSIONS = 5  # with more, batches come less often, since each session in a batch costs
LONGEST_S = 1.0
SERVICE_NS = 900_000_000  # between descriptions of the service
FORGET_NS = 3_000_000_000  # without a word of the gateway
PICTURE_NS = 500_000_000  # between two pictures of a camera
MOST_PICTURES = 128
MOST_PICTURE_BYTES = 16 << 20  # of a batch; further pictures come with the next one
RAW_SIDE = 320  # pixels of a raw image's longer side, at most, once rows and columns are left out


class PageWatch:
    """Sends the gateway batches between its Watch and its farewell; runs on the loop.

    service: describes the service. A batch that the gateway does not take is lost: its number shows the gap.
    """

    def __init__(
        self, sessions: SessionWatch, service: Callable[[], dict[str, Any]], clock: Clock, log: EventLog
    ) -> None:
        self._sessions = sessions
        self._service = service
        self._clock = clock
        self._log = log
        self._gateway: ChildSupervisor | None = None
        self._asked: Watch | None = None
        self._heard_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0
        self._line = 0  # the newest line of the log that was sent
        self._whole = False
        self._described_ns = 0
        sessions.urgent = self._hurry
        self._pictures: dict[tuple[int, int], tuple[int, int]] = {}  # by session and camera: the last frame, and when

    def take(self, gateway: ChildSupervisor, message: Watch) -> None:
        """The gateway watches, or says farewell."""
        if not message.on:
            self.stop()
            return
        self._gateway, self._asked, self._heard_ns = gateway, message, self._clock.now_ns()
        self._sessions.details = frozenset(message.details)
        self._whole = self._whole or message.whole
        if self._timer is None:
            self._sessions.start()
            self._whole = True
        if self._timer is None or message.whole:
            self._step()

    def stop(self) -> None:
        """Nobody watches: collect and send nothing more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._gateway = self._asked = None
        self._sessions.stop()
        self._pictures.clear()

    def _step(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._gateway is None or self._asked is None or self._clock.now_ns() - self._heard_ns > FORGET_NS:
            self.stop()
            return
        self._timer = asyncio.get_running_loop().call_later(self._batch_s, self._step)
        try:
            self._send(self._gateway, self._asked)
        except Exception as error:  # a page costs no robot its session
            self.stop()
            self._log.incident("watch", error)

    @property
    def _batch_s(self) -> float:
        return min(BATCH_S * max(1, -(-self._sessions.count // SESSIONS)), LONGEST_S)

    def _hurry(self) -> None:
        """A robot holds: send the next batch BATCH_S after the last one, however many robots there are."""
        if self._timer is not None and self._batch_s > BATCH_S:
            loop = asyncio.get_running_loop()
            due_s = max(loop.time(), self._timer.when() - self._batch_s + BATCH_S)
            if due_s < self._timer.when():
                self._timer.cancel()
                self._timer = loop.call_at(due_s, self._step)

    def _send(self, gateway: ChildSupervisor, asked: Watch) -> None:
        self._number += 1
        whole, self._whole = self._whole, False
        batch = self._sessions.batch(whole=whole)
        lines = self._log.since(0 if whole else self._line)
        if lines:
            self._line = lines[-1].number
            batch["log"] = [[each.number, round(1000 * each.time_s), each.event, _json(each.values)] for each in lines]
        if whole or self._clock.now_ns() - self._described_ns > SERVICE_NS:
            self._described_ns = self._clock.now_ns()
            batch["service"] = self._service()
        batch["pictures"], images = self._newest_pictures(asked.pictures[:MOST_PICTURES])
        packed = msgpack.packb(batch, unicode_errors="replace")
        try:
            sealed: Sealed = seal_parts([packed, *images])
        except OSError:
            return  # no memory or no descriptors: this batch is lost
        gateway.send(Watched(number=self._number, map_bytes=len(packed)), [sealed.descriptor])
        sealed.close()

    def _newest_pictures(self, wanted: list[list[int]]) -> tuple[list[list[Any]], list[Payload]]:
        """Pictures that are wanted and due: session, camera, frame, format, width, height and bytes of each."""
        now_ns, taken_bytes = self._clock.now_ns(), 0
        heads: list[list[Any]] = []
        images: list[Payload] = []
        for session, index in (each for each in wanted if len(each) == 2):
            opened, frame = self._sessions.request(session), self._sessions.newest(session)
            seq, sent_ns = self._pictures.get((session, index), (0, -PICTURE_NS))
            if opened is None or frame is None or frame.seq == seq or now_ns - sent_ns < PICTURE_NS:
                continue
            cameras, found = recorded_cameras(opened.request), recorded_images(frame)
            if not 0 <= index < min(len(cameras), len(found)) or taken_bytes > MOST_PICTURE_BYTES:
                continue
            camera = cameras[index]
            image, width, height = _picture(camera, found[index])
            self._pictures[session, index] = (frame.seq, now_ns)
            taken_bytes += len(image)
            heads.append([session, index, frame.seq, camera.format.value, width, height, len(image)])
            images.append(image)
        return heads, images


def _picture(camera: CameraSpec, image: Payload) -> tuple[Payload, int, int]:
    """A JPEG as it came; of a raw image every n-th row and column. With width and height."""
    if camera.format is not ImageFormat.RGB8:
        return image, camera.width, camera.height
    step = -(-max(camera.width, camera.height) // RAW_SIDE)
    pixels = np.frombuffer(image, np.uint8).reshape(camera.height, camera.width, 3)[::step, ::step]
    height, width, _ = pixels.shape
    return pixels.tobytes(), width, height


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, default=str)
