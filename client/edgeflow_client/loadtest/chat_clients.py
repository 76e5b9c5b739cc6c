"""Chat clients of a load test, in a separate process so that reading answers does not delay the robots' frames.

The parent writes one line of JSON (`job_line`), and closes standard input to end the test; then every request is
printed as JSON, with instants in nanoseconds on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.connection.http import BROKEN, Connection, HttpService, Response

NICENESS = 10  # real chat users run elsewhere: here they must not take processor time from the robots
ANSWER_S = 120.0
AGAIN_S = 0.2  # after a rejection
SUBJECTS = ("the arm", "the gripper", "the red cup", "the table", "the camera", "the blue box", "the last action")
ASKED = ("Where is {}?", "What is {} doing?", "Tell me about {}.", "Is {} near the edge?", "How far away is {}?")


@dataclass(frozen=True, slots=True)
class ChatLoad:
    """The chat load."""

    address: str
    """The service's HTTP address."""
    clients: int = 1
    max_tokens: int = 64
    """The most tokens per answer."""


@dataclass(slots=True)
class ChatSample:
    """One request."""

    asked_ns: int
    pieces_ns: list[int] = field(default_factory=list)
    """Arrival times of text."""
    tokens: int = 0
    """Number of tokens, counted by the service."""
    done_ns: int = 0
    refused: str = ""
    """Status and code, or ""."""


class Client:
    """Sends the next request as soon as one is answered, until `stop`."""

    def __init__(self, service: HttpService, max_tokens: int, random: Random) -> None:
        self.asked: list[ChatSample] = []
        self._max_tokens = max_tokens
        self._service = service
        self._random = random
        self._stopping = threading.Event()
        self._connection: Connection | None = None

    def run(self) -> None:
        """Run in a separate thread; errors are recorded in `asked`."""
        while not self._stopping.is_set():
            asked = ChatSample(time.monotonic_ns())
            self.asked.append(asked)
            try:
                self._ask(asked)
            except BROKEN as error:
                asked.refused = "" if self._stopping.is_set() else type(error).__name__
                self._close()
            if asked.refused:
                self._stopping.wait(AGAIN_S)
        self._close()

    def stop(self) -> None:
        """Stop from another thread: the current request is cut off."""
        self._stopping.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, asked: ChatSample) -> None:
        if self._connection is None:
            self._connection = self._service.connect(ANSWER_S)
        self._connection.request("POST", "/v1/chat/completions", json.dumps(self._body()), self._service.headers)
        response = self._connection.getresponse()
        if response.status != 200:
            code = json.loads(response.read()).get("error", {}).get("code", "")
            asked.refused = f"{response.status} {code}"
            return
        self._read(response, asked)

    def _read(self, response: Response, asked: ChatSample) -> None:
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            now_ns = time.monotonic_ns()
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                asked.refused = f"200 {event['error'].get('code', '')}"
            elif event.get("usage"):
                asked.tokens, asked.done_ns = event["usage"]["completion_tokens"], now_ns
            elif any(choice["delta"].get("content") for choice in event["choices"]):
                asked.pieces_ns.append(now_ns)

    def _body(self) -> dict[str, Any]:
        question = self._random.choice(ASKED).format(self._random.choice(SUBJECTS))
        messages = [{"role": "user", "content": f"{question} ({self._random.randrange(10**6)})"}]
        options = {"include_usage": True}
        return {"messages": messages, "max_tokens": self._max_tokens, "stream": True, "stream_options": options}

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def job_line(plan: ChatLoad, credentials: Credentials, seed: int) -> str:
    """The work of the clients, for the process that runs them."""
    named = {"ca": credentials.ca, "cert": credentials.cert, "key": credentials.key}
    files = {name: str(path) for name, path in named.items() if path is not None}
    return json.dumps({"plan": asdict(plan), "files": files, "token": credentials.token, "seed": seed}) + "\n"


def main() -> None:
    """Run until standard input ends."""
    os.nice(NICENESS)
    job = json.loads(sys.stdin.readline())
    plan, files = ChatLoad(**job["plan"]), {name: Path(path) for name, path in job["files"].items()}
    service = HttpService.of(plan.address, Credentials(token=job["token"], **files))
    randoms = (Random(f"{job['seed']} {number}") for number in range(plan.clients))
    clients = [Client(service, plan.max_tokens, random) for random in randoms]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    for client in clients:
        client.stop()
    for thread in threads:
        thread.join(timeout=2)
    json.dump([asdict(asked) for client in clients for asked in client.asked], sys.stdout)


if __name__ == "__main__":
    main()
