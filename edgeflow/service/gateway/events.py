"""GET /events: what happens to sessions and service, as server-sent events for live pages.

Control sends batches while somebody watches (children/watching.py). A mirror of them is kept here, so that each viewer
begins with a complete picture; each batch becomes text once for all viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgpack
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from edgeflow.ipc.packets import read_sealed
from edgeflow.service.children.messages import Watch, Watched
from edgeflow.service.gateway.pictures import Pictures
from edgeflow.service.http.answers import ABORT, CALLER
from edgeflow.service.http.bodies import parse_number
from edgeflow.service.http.middleware import EVENTS
from edgeflow.service.observe.log import TAIL_LINES
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import InvalidArgument, ResourceExhausted, Unavailable, WorkerError
from edgeflow_client.reasons import Reason

MOST_VIEWERS = 16
MOST_DETAILS = 4
MOST_QUEUED = 16  # batches for a viewer that does not read; then it is cut
MEDIA_TYPE = "text/event-stream"
LEAST_S = 0.02  # between two messages to control
REMIND_S = 1.0  # between repetitions of what is watched
FIRST_S = 3.0  # for control's first batch
SILENT_S = 2.0  # control sends a batch each second: without one, what is here is old
MOST_BATCH_BYTES = 64 << 20
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "x-accel-buffering": "no"}
Event = tuple[str, Any]  # its name and data


class GatewayMetrics(ProcessMetrics):
    """The metrics of the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self.viewers = self._gauge("page_viewers", "Open streams of live pages")
        self.viewers_cut = self._counter("page_viewers_cut", "Streams of live pages ended because nobody read them")
        self.batches_lost = self._counter("page_batches_lost", "Batches for live pages that the gateway did not take")


class Viewer:
    """An open stream. details: sessions whose chunks and states it wants. cut: ends its connection."""

    def __init__(self, caller: Caller, details: frozenset[int], cut: Callable[[], None]) -> None:
        self.caller = caller
        self.details = details
        self.cut = cut
        self.begun = False
        """`hello` was put; nothing comes before it."""
        self._texts: deque[str] = deque()
        self._news = asyncio.Event()
        self._over = False

    def put(self, text: str) -> bool:
        """Add a text; False if too many wait already."""
        if len(self._texts) >= MOST_QUEUED:
            return False
        self._texts.append(text)
        self._news.set()
        return True

    def end(self) -> None:
        """End after the texts that wait."""
        self._over = True
        self._news.set()

    async def texts(self) -> AsyncIterator[str]:
        """The texts, until the end."""
        while True:
            while self._texts:
                yield self._texts.popleft()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()


class Viewers:
    """All open streams, and a mirror of what control shows.

    send: to control. spawn: runs a task. stays: whether a caller may still watch. own: the gateway's part of the
    description of the service. models: the entries of /v1/models.
    """

    def __init__(
        self,
        send: Callable[[Watch], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        metrics: GatewayMetrics,
        *,
        stays: Callable[[Caller], bool],
        own: Callable[[], dict[str, Any]],
        models: Callable[[], Sequence[dict[str, Any]]],
    ) -> None:
        self.pictures = Pictures(self.remind)
        self.sessions: dict[int, dict[str, Any]] = {}
        """Facts of the open sessions, each with its status."""
        self._send = send
        self._spawn = spawn
        self._metrics = metrics
        self._stays = stays
        self._own = own
        self._models = models
        self._viewers: set[Viewer] = set()
        self._reminding = self._draining = False
        self._due: asyncio.TimerHandle | None = None
        self._told_s = self._heard_s = 0.0
        self._number = 0  # of the last batch; 0 = none
        self._begun = False  # the mirror holds something
        self._complete = asyncio.Event()
        self._log: deque[dict[str, Any]] = deque(maxlen=TAIL_LINES)
        self._line = 0
        self._service: dict[str, Any] = {}
        self._addresses: dict[str, str] = {}
        self._models_text = ""

    @property
    def watches(self) -> bool:
        """True while there are viewers, or somebody asks for pictures."""
        return bool(self._viewers) or bool(self.pictures.wanted())

    async def complete(self) -> None:
        """Wait until the mirror is complete; Unavailable if control sends nothing: old states must not look new."""
        if asyncio.get_running_loop().time() - self._heard_s > SILENT_S:
            self._complete.clear()
        self._begin()
        try:
            await asyncio.wait_for(self._complete.wait(), FIRST_S)
        except asyncio.TimeoutError:
            raise Unavailable("no news of the service arrive here: try again", reason=Reason.NO_ANSWER) from None

    async def open(self, viewer: Viewer, head: dict[str, Any]) -> None:
        """Begin a viewer with `hello`. head: its own part of that. ResourceExhausted if there are too many."""
        if self._draining:
            raise Unavailable("the service is stopping", reason=Reason.DRAINING)
        if len(self._viewers) >= MOST_VIEWERS:
            text = f"{MOST_VIEWERS} live pages are open: close one"
            raise ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=1000)
        self._viewers.add(viewer)
        self._metrics.viewers.set(len(self._viewers))
        try:
            await self.complete()
        except BaseException:
            self.close(viewer)
            raise
        viewer.put(_written("hello", self._hello(head)))
        viewer.begun = True
        self.remind()

    def close(self, viewer: Viewer) -> None:
        """A viewer has left. Idempotent."""
        if viewer in self._viewers:
            self._viewers.discard(viewer)
            self._metrics.viewers.set(len(self._viewers))
            self.remind()

    def drain(self) -> None:
        """The service stops: all streams end."""
        self._draining = True
        for viewer in self._viewers:
            viewer.end()

    def remind(self) -> None:
        """Tell control what is watched, now or LEAST_S after the last time: viewers may come and go quickly."""
        if self._reminding and self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(self._told_s + LEAST_S, loop.time()), self._tell)

    def _tell(self) -> None:
        self._due, self._told_s = None, asyncio.get_running_loop().time()
        if not self.watches:
            self._send(Watch(on=False, whole=False, details=[], pictures=[]))
            self._forget()
            return
        details = sorted({number for viewer in self._viewers for number in viewer.details})
        whole = not self._complete.is_set()
        self._send(Watch(on=True, whole=whole, details=details, pictures=self.pictures.wanted()))

    def take(self, message: Watched, descriptors: list[int]) -> None:
        """A batch of control."""
        if len(descriptors) != 1 or not self.watches:
            return
        data = read_sealed(descriptors[0], MOST_BATCH_BYTES)
        if message.map_bytes > len(data):
            raise WorkerError("a batch is shorter than it says")
        batch = msgpack.unpackb(data[: message.map_bytes], strict_map_key=False)
        self.pictures.take(batch["pictures"], memoryview(data)[message.map_bytes :])
        self._heard_s = asyncio.get_running_loop().time()
        lost = max(message.number - self._number - 1, 0) if self._number else 0
        self._number = message.number
        if lost:
            self._metrics.batches_lost.inc(lost)
        if "whole" in batch:
            self._complete.set()
            self._begun = True
        elif lost:
            self._complete.clear()  # sessions may have come and gone
            self.remind()
        if self._begun:
            self._show(batch, lost)

    def _begin(self) -> None:
        """Begin to watch, unless this is so already."""
        if not self._reminding:
            self._reminding = True
            self._spawn(self._keep_reminding())
        if not self._complete.is_set():
            self.remind()

    async def _keep_reminding(self) -> None:
        while self.watches:
            await asyncio.sleep(REMIND_S)
            for viewer in self._viewers:
                if not self._stays(viewer.caller):  # its token was revoked or has expired
                    viewer.end()
            self.remind()
        self._reminding = False

    def _forget(self) -> None:
        """Forget the mirror, which changes no more."""
        self._begun, self._number = False, 0
        self._complete.clear()
        self.sessions.clear()
        self._log.clear()
        self._line = 0

    def _show(self, batch: dict[str, Any], lost: int) -> None:
        """Update the mirror and tell all viewers."""
        events = list(self._changes(batch))
        updates = {number: each for number, each in batch["sessions"].items() if number in self.sessions}
        for number, update in updates.items():
            status = self.sessions[number]["status"]
            self.sessions[number]["status"] = {name: update.get(name, value) for name, value in status.items()}
        for name, data in events:
            if name == "closed":
                self.sessions.pop(data["session"], None)
        before = [_written(*each) for each in events if each[0] != "closed"]
        after = [_written(*each) for each in events if each[0] == "closed"]
        details = {number: json.dumps(each.pop("detail")) for number, each in updates.items() if "detail" in each}
        plain = {number: json.dumps(each) for number, each in updates.items()}
        head = f'"time": {int(batch["time"])}, "lost": {lost}'
        made: dict[frozenset[int], str] = {}
        for viewer in [each for each in self._viewers if each.begun]:
            wanted = viewer.details.intersection(details)
            if wanted not in made:
                update = [_update(head, plain, details, wanted)] if plain or lost else []
                made[wanted] = "".join([*before, *update, *after])
            if made[wanted] and not viewer.put(made[wanted]):
                self._cut(viewer)

    def _cut(self, viewer: Viewer) -> None:
        """End a viewer that does not read; the others are not disturbed."""
        self._metrics.viewers_cut.inc()
        self.close(viewer)
        viewer.end()
        viewer.cut()

    def _changes(self, batch: dict[str, Any]) -> Iterable[Event]:
        """The events of a batch besides its update, which also change the mirror."""
        opened, closed = batch.get("opened", []), batch.get("closed", [])
        if "whole" in batch:
            whole = {each["session"]: each for each in batch["whole"]}
            opened = [each for number, each in whole.items() if number not in self.sessions]
            told = {each["session"] for each in closed}
            gone = [number for number in self.sessions if number not in whole and number not in told]
            closed = [*closed, *({"session": each, "time": batch["time"], "code": "", "reason": ""} for each in gone)]
            self.sessions = whole
        else:
            self.sessions.update((each["session"], each) for each in opened)
        yield from (("opened", each) for each in opened)
        for each in closed:
            self.pictures.forget(each["session"])
            yield "closed", each
        for number, time_ms, event, values in batch.get("log", []):
            if number > self._line:
                self._line = number
                line = {"time": time_ms, "event": event, "values": json.loads(values)}
                self._log.append(line)
                yield "log", line
        if "service" in batch:
            self._addresses = batch["service"].pop("addresses")
            self._service = batch["service"]
            yield "service", self._service | self._own()
            models = list(self._models())
            text, before = json.dumps(models), self._models_text
            self._models_text = text
            if before and text != before:
                yield "models", models

    def _hello(self, head: dict[str, Any]) -> dict[str, Any]:
        return {
            **head,
            "service": self._service | self._own(),
            "sessions": list(self.sessions.values()),
            "log": list(self._log),
            "models": list(self._models()),
            "addresses": self._addresses,
        }


class EventStream(StreamingResponse):
    """The stream of one viewer."""

    def __init__(self, viewers: Viewers, viewer: Viewer) -> None:
        super().__init__(viewer.texts(), headers=HEADERS, media_type=MEDIA_TYPE)
        self._viewers = viewers
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._viewers.close, self._viewer)
            await super().__call__(scope, receive, send)


def event_routes(watched: Callable[[], Viewers], head: Callable[[Caller], dict[str, Any]]) -> list[Route]:
    """The route of the stream. watched: the viewers. head: the part of `hello` that depends on the caller."""

    async def events(request: Request) -> Response:
        """Sessions and service as they change, as server-sent events for live pages."""
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        details = _details(request.query_params.getlist("detail"))
        cut = request.scope.get("state", {}).get(ABORT, lambda: None)
        viewers = watched()
        viewer = Viewer(request.scope[CALLER], details, cut)
        await viewers.open(viewer, head(viewer.caller))
        return EventStream(viewers, viewer)

    return [Route(EVENTS, events, methods=["GET"])]


def _details(asked: Sequence[str]) -> frozenset[int]:
    numbers = [parse_number(each) for each in asked[: MOST_DETAILS + 1]]
    if len(numbers) > MOST_DETAILS or None in numbers:
        raise InvalidArgument(f"takes up to {MOST_DETAILS} numbers of sessions", field="detail")
    return frozenset(each for each in numbers if each is not None)


def _update(head: str, plain: dict[int, str], details: dict[int, str], wanted: frozenset[int]) -> str:
    """The text of an update, with the details that a viewer wants."""
    parts = [
        f'"{number}": {text[:-1]}, "detail": {details[number]}}}' if number in wanted else f'"{number}": {text}'
        for number, text in plain.items()
    ]
    return f'event: update\ndata: {{{head}, "sessions": {{{", ".join(parts)}}}}}\n\n'


def _written(name: str, data: Any) -> str:
    """An event as text. JSON is ASCII here, so that no character of a robot's ends a line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
