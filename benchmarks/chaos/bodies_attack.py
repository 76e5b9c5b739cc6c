"""Strangers that send large bodies which say little, from as many connections as an address may have."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection

from benchmarks.chaos.robots import run_until_stopped

ACT_PATH, CHAT_PATH = "/v1/act", "/v1/chat/completions"
KEYS = 844_991  # as in the attack that ended the service
PARTS = 65_000
LARGE_BYTES = 8 << 20
BELOW_BYTES = 1_400_000  # the most that /v1/act reads with default limits is 1,463,637
TOGETHER_S = 1.0  # last bytes of all connections leave when the clock passes a multiple of this
TAIL_BYTES = 16
PATIENCE_S = 15.0
REST_S = 0.01  # after a connection that was not accepted
NICE = 10  # real strangers use the processors of other machines
NO_ANSWER = 0
HELD_BACK, AT_ONCE = True, False


def keys_body(keys: int, most_bytes: int) -> bytes:
    """A JSON object with this many keys, or fewer if it would be larger than that."""
    parts, size = [], 2
    for index in range(keys):
        part = b'"%x":0' % index
        size += len(part) + 1
        if size > most_bytes:
            break
        parts.append(part)
    return b"{" + b",".join(parts) + b"}"


def parts_body(parts: int) -> bytes:
    """A conversation whose only message has this many empty parts."""
    message = {"role": "user", "content": [{}] * parts}
    return json.dumps({"messages": [message], "max_tokens": 1}, separators=(",", ":")).encode()


SHAPES = {
    "8 MiB of keys": (ACT_PATH, lambda: keys_body(KEYS, LARGE_BYTES), HELD_BACK),
    "1.4 MB of keys": (ACT_PATH, lambda: keys_body(KEYS, BELOW_BYTES), HELD_BACK),
    "empty parts": (CHAT_PATH, lambda: parts_body(PARTS), AT_ONCE),
}


class Sender:
    """A connection that sends one body after another; `answers` counts their statuses, NO_ANSWER included."""

    def __init__(self, port: int, source: str, path: str, body: bytes, held_back: bool) -> None:
        self.answers: Counter[int] = Counter()
        self.stopped = threading.Event()
        self._port, self._source = port, source
        self._path, self._body, self._held_back = path, body, held_back

    def run(self) -> None:
        """Send until `stopped`."""
        while not self.stopped.is_set():
            status = self._one()
            self.answers[status] += 1
            if status == NO_ANSWER:
                self.stopped.wait(REST_S)
            if self._held_back:
                self.stopped.wait(_until_together_s())

    def _one(self) -> int:
        link = http.client.HTTPConnection("127.0.0.1", self._port, PATIENCE_S, source_address=(self._source, 0))
        try:
            link.putrequest("POST", self._path)
            link.putheader("content-type", "application/json")
            link.putheader("content-length", str(len(self._body)))
            link.endheaders()
            self._send(link)
            return link.getresponse().status
        except (OSError, http.client.HTTPException):
            return NO_ANSWER
        finally:
            link.close()

    def _send(self, link: http.client.HTTPConnection) -> None:
        try:
            link.send(self._body[:-TAIL_BYTES])
            if self._held_back:
                self.stopped.wait(_until_together_s())
            link.send(self._body[-TAIL_BYTES:])
        except OSError:
            return  # refused before its end; the answer may be there


def _until_together_s() -> float:
    return TOGETHER_S - time.monotonic() % TOGETHER_S


def body_senders(link: Connection, port: int, shape: str, sources: tuple[str, ...], count: int) -> None:
    """Work of a process: `count` connections from each source; reports when at it, and the statuses at the end."""
    os.nice(NICE)
    path, made, held_back = SHAPES[shape]
    body = made()  # type: ignore[no-untyped-call]
    senders = [Sender(port, source, path, body, held_back) for source in sources for _ in range(count)]

    def stop() -> None:
        for sender in senders:
            sender.stopped.set()

    run_until_stopped(link, [sender.run for sender in senders], stop, PATIENCE_S)
    link.send(sum((sender.answers for sender in senders), Counter()))
