"""A service that exists for the live page only: the package's page files, and events of simulated robots.

Everything sent follows from the simulated time, which may run faster than life. So an hour of events takes a minute,
each stream can be opened at any time, and two viewers see the same.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.page.robots import SimulatedRobot, hostile_log
from edgeflow.service.gateway.page import page_routes
from edgeflow.service.http.server import HttpServer

BATCH_MS = 250
SECOND_MS = 1000
LIFETIME_MS = 600_000
"""After which a robot of a scene with churn leaves and another comes."""
SILENT_CHECK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PageScene:
    """A scene for the page."""

    robots: int
    hostile: bool = False
    """Names, instructions, reasons and log values are those that break a page."""
    churn: bool = False
    """Robots leave and come, but for the first."""
    speed: float = 1.0
    """Simulated seconds per second."""
    token: str = ""
    """Asked of every request of events and pictures; empty: none."""


class FakePageService:
    """Serves a scene on a free port of the loopback interface while the context lasts."""

    def __init__(self, scene: PageScene) -> None:
        self.scene = scene
        self.silent = False
        """Open streams send nothing more, and new ones neither."""
        self.refused: list[str] = []
        """Requests that no route answers."""
        self.rejected = 0
        """Requests without the token."""
        self._begun_ms = time.time() * 1000
        self._begun_s = time.monotonic()
        self._streamed_ms = 0
        self._pictures: dict[tuple[int, int], bytes] = {}

    async def __aenter__(self) -> FakePageService:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        routes = [
            *page_routes(documents=False),
            Route("/events", self._events),
            Route("/events/images/{session:int}/{camera:int}", self._picture),
            Route("/admin/v1/demo-robot", self._demo_robot),
            Route("/{path:path}", self._unknown, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        self._server = HttpServer(Starlette(routes=routes), listener)
        self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def minutes(self) -> float:
        """Simulated minutes that the page has been sent."""
        return self._streamed_ms / 60_000

    def _now_ms(self) -> int:
        """Simulated time since the start, in ms."""
        return int((time.monotonic() - self._begun_s) * 1000 * self.scene.speed)

    def _robots(self, at_ms: int) -> list[SimulatedRobot]:
        """The robots that are there."""
        scene = self.scene
        found = []
        for index in range(scene.robots):
            stagger_ms = LIFETIME_MS * index // max(scene.robots, 1)
            generation = (at_ms + stagger_ms) // LIFETIME_MS if scene.churn and index else 0
            session = 1 + index + scene.robots * generation
            found.append(SimulatedRobot(index=index, session=session, begun_ms=self._begun_ms, hostile=scene.hostile))
        return found

    async def _events(self, request: Request) -> Response:
        if (rejection := self._rejection(request)) is not None:
            return rejection
        details = frozenset(int(each) for each in request.query_params.getlist("detail"))
        return StreamingResponse(self._stream(details), media_type="text/event-stream")

    async def _stream(self, details: frozenset[int]) -> AsyncIterator[str]:
        await self._heard()
        at_ms = self._now_ms() // BATCH_MS * BATCH_MS
        robots = {robot.session: robot for robot in self._robots(at_ms)}
        yield event("hello", self._hello(at_ms))
        while True:
            until_ms = at_ms + BATCH_MS
            await asyncio.sleep(max(until_ms - self._now_ms(), 0) / 1000 / self.scene.speed)
            await self._heard()
            there = {robot.session: robot for robot in self._robots(until_ms)}
            yield "".join(self._batch(robots, there, details, (at_ms, until_ms)))
            at_ms, robots = until_ms, there
            self._streamed_ms = max(self._streamed_ms, at_ms)

    async def _heard(self) -> None:
        while self.silent:
            await asyncio.sleep(SILENT_CHECK_S)

    def _batch(
        self,
        robots: dict[int, SimulatedRobot],
        there: dict[int, SimulatedRobot],
        details: frozenset[int],
        span: tuple[int, int],
    ) -> Iterator[str]:
        """The events of a span: those that came, those that left, what all did."""
        at_ms, until_ms = span
        stamp = self._begun_ms + until_ms
        for session in robots.keys() - there.keys():
            yield event("closed", {"session": session, "time": stamp, "code": "OK", "reason": "CLOSED"})
        for session in there.keys() - robots.keys():
            yield event("opened", there[session].facts())
        updates = {str(each.session): each.update(at_ms, until_ms, each.session in details) for each in there.values()}
        if updates:
            yield event("update", {"time": stamp, "lost": 0, "sessions": updates})
        if until_ms % SECOND_MS == 0:
            yield event("service", self._service(until_ms))
        if until_ms % (5 * SECOND_MS) == 0:
            yield event("log", self._line(until_ms))

    def _hello(self, at_ms: int) -> dict[str, Any]:
        return {
            "time": self._begun_ms + at_ms,
            "version": "0.0.0",
            "service": self._service(at_ms),
            "sessions": [{**robot.facts(), "status": robot.status(at_ms)} for robot in self._robots(at_ms)],
            "log": [self._line(each) for each in range(at_ms - 60_000, at_ms, 5 * SECOND_MS)],
            "models": self._listed(),
            "may": {"operate": True, "chat": True, "demo": True},
            "addresses": {"grpc": "127.0.0.1:50051", "robots": "127.0.0.1:8002"},
            "tokens": bool(self.scene.token),
            "tls": False,
        }

    def _service(self, at_ms: int) -> dict[str, Any]:
        robots = self.scene.robots
        wave = math.sin(at_ms / 20_000)
        return {
            "state": "ready",
            "worker": {"state": "ready", "restarts": 0, "device": "cpu"},
            "standby": "ready",
            "passes": {"per_s": 70.0 * robots, "ms": 8.2 + wave, "forecast_ms": 8.0},
            "share": min(0.03 * robots + 0.02 * (1 + wave), 1.0),
            "share_left": max(0.8 - 0.04 * robots, 0.0),
            "chat": {"model": "assistant", "queue": 1, "most": 16, "running": True},
            "recording": "",
            "warnings": hostile_log(at_ms)["values"]["texts"] if self.scene.hostile else [],
        }

    def _line(self, at_ms: int) -> dict[str, Any]:
        if self.scene.hostile:
            return {"time": self._begun_ms + at_ms, **hostile_log(at_ms)}
        values = {"session": at_ms // 5000 % max(self.scene.robots, 1) + 1, "reason": "ACTION_TOO_OLD"}
        return {"time": self._begun_ms + at_ms, "event": "hold", "values": values}

    def _listed(self) -> list[dict[str, Any]]:
        facts = SimulatedRobot(index=2, session=0, begun_ms=0, hostile=self.scene.hostile).facts()
        cameras, vector = facts["cameras"], facts["state"][0]
        names = {"cameras": {each["name"]: each["name"] for each in cameras}, "state": {vector["name"]: vector["name"]}}
        address = f"ws://{self.address.removeprefix('http://')}"
        clients = {
            "openpi": {"clients": "openpi", "address": address, "fits": True, **names},
            "openvla": {"clients": "OpenVLA", "address": f"{self.address}/act", "fits": False, **names},
        }
        common = {"object": "model", "owned_by": "edgeflow", "created": 1}
        policy = {"cameras": cameras, "state": facts["state"], "actions": facts["actions"], "control_rate_hz": 20.0}
        return [
            {"id": facts["model"], **policy, "clients": clients, **common},
            {"id": "assistant", "max_model_len": 4096, "images": True, **common},
        ]

    async def _demo_robot(self, _: Request) -> Response:
        return JSONResponse({"running": False})

    async def _picture(self, request: Request) -> Response:
        """A picture that changes twice a second."""
        if (rejection := self._rejection(request)) is not None:
            return rejection
        key = request.path_params["session"], request.path_params["camera"]
        tag = f'"{self._now_ms() // 500}"'
        headers = {"etag": tag, "cache-control": "no-store"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        if key not in self._pictures:
            self._pictures[key] = _drawn(*key)
        return Response(self._pictures[key], media_type="image/jpeg", headers=headers)

    async def _unknown(self, request: Request) -> Response:
        self.refused.append(f"{request.method} {request.url.path}")
        return JSONResponse({"error": {"code": "NOT_FOUND", "message": "no such path"}}, status_code=404)

    def _rejection(self, request: Request) -> Response | None:
        if not self.scene.token or request.headers.get("authorization") == f"Bearer {self.scene.token}":
            return None
        self.rejected += 1
        error = {"code": "UNAUTHENTICATED", "message": "no token, or not one in force"}
        return JSONResponse({"error": error}, status_code=401, headers={"www-authenticate": "Bearer"})


def event(kind: str, data: dict[str, Any]) -> str:
    """An event of a stream."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _drawn(session: int, camera: int) -> bytes:
    """A JPEG of 320x240 with shades and a square."""
    rows, columns = np.mgrid[:240, :320]
    shade = 120 + 80 * np.sin((rows + 17 * session) / 30) * np.cos((columns + 29 * camera) / 40)
    shade[90:150, 40 + 11 * session % 200 : 100 + 11 * session % 200] = 230
    pixels = shade[..., None] * (0.9, 0.8 + 0.05 * camera, 0.7)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()
