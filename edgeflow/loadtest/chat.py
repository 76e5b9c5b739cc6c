"""Chat beside the robots of a load test: its clients, what became of their requests, and what it cost the robots."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, cast

from edgeflow.client.credentials import Credentials
from edgeflow.client.http import HTTP_PORT
from edgeflow.errors import RequestError, StartError
from edgeflow.loadtest.chat_clients import Asked, Job
from edgeflow.loadtest.measure import Distribution, distribution
from edgeflow.loadtest.summary import Summary

CHECK_S = 10.0
END_S = 10.0


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Who chats. address: of the service's HTTP."""

    address: str
    clients: int = 1
    max_tokens: int = 64


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """What came in the measured time. requests: answered whole; tokens: of theirs, as the service counted them.

    first_ms: asked to first text. gap_ms: between pieces of text, which are tokens but for those that show nothing.
    refused: by HTTP status and code, or by what broke.
    """

    clients: int
    requests: int
    tokens: int
    tokens_per_s: float
    first_ms: Distribution
    gap_ms: Distribution
    refused: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beside:
    """The same load without chat, and the chat that was beside it afterwards."""

    alone: Summary
    chat: ChatSummary

    def jitter_ratio(self, total: Summary) -> float:
        """Pass-start jitter (p99) with chat, over that without."""
        without = self.alone.start_jitter_ms.p99
        return total.start_jitter_ms.p99 / without if without > 0 else math.nan


class ChatClients:
    """The clients of a plan; `check` first. StartError where there is no chat to load."""

    def __init__(self, plan: ChatPlan, credentials: Credentials, seed: int) -> None:
        files = [str(path or "") for path in (credentials.ca, credentials.cert, credentials.key)]
        self._job = Job(plan.address, plan.clients, plan.max_tokens, seed, credentials.token, *files)

    def check(self) -> None:
        """Whether a chat model answers there."""
        try:
            models = self._job.service().call("GET", "/v1/models", timeout_s=CHECK_S)["data"]
        except (RequestError, TypeError, KeyError) as error:
            text = error.text if isinstance(error, RequestError) else "is no edgeflow service"
            raise StartError(f"chat-address: {self._job.address}: {text}") from None
        if not any("max_model_len" in model for model in models):
            raise StartError(f"chat-address: {self._job.address} serves no chat model; see chat.model")

    @contextlib.contextmanager
    def chatting(self) -> Iterator[list[Asked]]:
        """They chat until the end; then the list holds all requests."""
        code = f"import sys; sys.path[:] = {sys.path!r}; from edgeflow.loadtest.chat_clients import main; main()"
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        stdin = cast("IO[str]", process.stdin)
        stdin.write(self._job.text() + "\n")
        stdin.flush()
        asked: list[Asked] = []
        try:
            yield asked
            asked += [Asked(**each) for each in json.loads(process.communicate(timeout=END_S)[0])]
        finally:
            process.kill()
            process.communicate()


def chat_summary(clients: int, asked: Sequence[Asked], begin_ns: int, end_ns: int) -> ChatSummary:
    """Requests that ended, and text that came, between begin and end."""

    def inside(instant_ns: int) -> bool:
        return begin_ns <= instant_ns < end_ns

    whole = [each for each in asked if each.done_ns and inside(each.done_ns)]
    first = [each.pieces_ns[0] - each.asked_ns for each in asked if each.pieces_ns and inside(each.pieces_ns[0])]
    gaps = [after - before for each in asked for before, after in pairwise(each.pieces_ns) if inside(after)]
    pieces = sum(inside(piece) for each in asked for piece in each.pieces_ns)
    return ChatSummary(
        clients=clients,
        requests=len(whole),
        tokens=sum(each.tokens for each in whole),
        tokens_per_s=pieces / ((end_ns - begin_ns) / 1e9),
        first_ms=distribution([each / 1e6 for each in first]),
        gap_ms=distribution([each / 1e6 for each in gaps]),
        refused=dict(Counter(each.refused for each in asked if each.refused and inside(each.asked_ns))),
    )


def default_address(address: str, encrypted: bool) -> str:
    """Of the HTTP beside a gRPC address, where nothing else was said."""
    host = address.rpartition(":")[0]
    return f"http{'s' * encrypted}://{host}:{HTTP_PORT}"
