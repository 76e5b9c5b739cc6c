"""Pictures of robots' cameras for live pages: asked for one by one, at most as often as control sends them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeflow.service.http.bodies import parse_number
from edgeflow.service.http.middleware import EVENT_IMAGES
from edgeflow_client.errors import NotFound, ResourceExhausted
from edgeflow_client.reasons import Reason

if TYPE_CHECKING:
    from edgeflow.service.gateway.events import Viewers

WANTED_S = 3.0  # after it was asked for
WAIT_S = 1.5  # for the first one
MOST_WANTED = 128
RGB8 = "rgb8"
QUALITY = 80
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""A robot's bytes are a picture or nothing, and for the pages of this service only."""
Key = tuple[int, int]  # session and index of the camera


@dataclass(slots=True)
class CameraPicture:
    """The newest picture of a camera."""

    seq: int
    data: bytes
    """A JPEG."""

    @property
    def tag(self) -> str:
        return f'"{self.seq}"'


class Pictures:
    """The newest picture of each camera that was asked for. changed: called when another one is wanted."""

    def __init__(self, changed: Callable[[], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        self._now_s = now_s
        self._until_s: dict[Key, float] = {}
        self._newest: dict[Key, CameraPicture] = {}
        self._arrived = asyncio.Event()

    def wanted(self) -> list[list[int]]:
        """Session and camera of the pictures asked for lately; older ones are forgotten."""
        now_s = self._now_s()
        for key in [key for key, until_s in self._until_s.items() if until_s < now_s]:
            del self._until_s[key]
            self._newest.pop(key, None)
        return [list(key) for key in self._until_s]

    def take(self, heads: list[list[Any]], data: memoryview) -> None:
        """Pictures of control. heads: session, camera, frame, format, width, height and bytes of each."""
        for session, camera, seq, kind, width, height, size in heads:
            image, data = bytes(data[:size]), data[size:]
            if (session, camera) in self._until_s:
                self._newest[session, camera] = CameraPicture(
                    seq, _jpeg(image, width, height) if kind == RGB8 else image
                )
        if heads:
            self._arrived.set()
            self._arrived = asyncio.Event()

    def forget(self, session: int, camera: int | None = None) -> None:
        """Forget a camera of a session, or all of a session that was closed."""
        for key in [key for key in self._until_s if key[0] == session and camera in (None, key[1])]:
            del self._until_s[key]
            self._newest.pop(key, None)

    def want(self, key: Key) -> None:
        """Ask for a camera's pictures for some time."""
        new = key not in self._until_s
        if new and len(self._until_s) >= MOST_WANTED:
            raise ResourceExhausted("too many pictures are asked for", reason=Reason.QUEUE_FULL, retry_after_ms=1000)
        self._until_s[key] = self._now_s() + WANTED_S
        if new:
            self._changed()

    async def newest(self, key: Key) -> CameraPicture | None:
        """The newest picture; the first one is waited for, for a while."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._first(key), WAIT_S)
        return self._newest.get(key)

    async def _first(self, key: Key) -> None:
        while key not in self._newest:
            await self._arrived.wait()


def picture_routes(watched: Callable[[], Viewers]) -> list[Route]:
    """The route of the pictures. watched: the viewers, with their mirror of the sessions."""

    async def event_image(request: Request) -> Response:
        """The newest picture of a camera, by session and index; 304 if the caller has it, 204 if none came yet."""
        viewers = watched()
        session, camera = (parse_number(request.path_params[each]) for each in ("session", "camera"))
        if session is None or camera is None:
            raise _unknown()
        viewers.pictures.want((session, camera))
        await viewers.complete()
        found = viewers.sessions.get(session)
        if found is None or camera >= len(found["cameras"]):
            viewers.pictures.forget(session, camera)
            raise _unknown()
        picture = await viewers.pictures.newest((session, camera))
        if picture is None:
            return Response(status_code=204, headers=HEADERS)
        headers = HEADERS | {"etag": picture.tag}
        if request.headers.get("if-none-match") == picture.tag:
            return Response(status_code=304, headers=headers)
        return Response(picture.data, headers=headers, media_type="image/jpeg")

    return [Route(EVENT_IMAGES, event_image, methods=["GET"])]


def _unknown() -> NotFound:
    return NotFound("no open session has this number and this camera", field="session")


def _jpeg(data: bytes, width: int, height: int) -> bytes:
    pixels = np.frombuffer(data, np.uint8).reshape(height, width, 3)
    encoded: bytes = simplejpeg.encode_jpeg(pixels, quality=QUALITY)
    return encoded
