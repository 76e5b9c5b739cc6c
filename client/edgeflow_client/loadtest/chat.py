"""Chat beside the robots of a load test: its clients, their requests, and the effect on the robots."""

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

from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.connection.http import HTTP_PORT, HttpService
from edgeflow_client.errors import RequestError, StartError
from edgeflow_client.loadtest.chat_clients import ChatLoad, ChatSample, job_line
from edgeflow_client.loadtest.measure import Distribution, distribution
from edgeflow_client.loadtest.summary import RobotSummary

CHECK_S = 10.0
END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSummary:
    """Chat figures of the measured time."""

    clients: int
    requests: int
    """Requests answered in full."""
    tokens: int
    """Tokens of these answers, counted by the service."""
    tokens_per_s: float
    first_ms: Distribution
    """Time from request to first text."""
    gap_ms: Distribution
    """Time between pieces of text (a piece is a token with text)."""
    refused: dict[str, int] = field(default_factory=dict)
    """Rejected requests by HTTP status and code, or by error."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The robots' figures without chat, and the figures of the chat that then ran beside them."""

    alone: RobotSummary
    chat: ChatSummary

    def jitter_ratio(self, total: RobotSummary) -> float:
        """Pass-start jitter (p99) with chat divided by that without."""
        without = self.alone.start_jitter_ms.p99
        return total.start_jitter_ms.p99 / without if without > 0 else math.nan


def check_chat(plan: ChatLoad, credentials: Credentials) -> None:
    """Raise StartError unless a chat model is served at the address."""
    try:
        models = HttpService.of(plan.address, credentials).call("GET", "/v1/models", timeout_s=CHECK_S)["data"]
    except (RequestError, TypeError, KeyError) as error:
        text = error.text if isinstance(error, RequestError) else "not an edgeflow service"
        raise StartError(f"chat.address: {plan.address}: {text}") from None
    if not any("max_model_len" in model for model in models):
        raise StartError(f"chat.address: {plan.address} serves no chat model; see chat.model")


@contextlib.contextmanager
def chatting(plan: ChatLoad, credentials: Credentials, seed: int) -> Iterator[list[ChatSample]]:
    """Let clients chat until the context ends; the list is filled with all requests at the end."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from edgeflow_client.loadtest.chat_clients import main; main()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    stdin = cast("IO[str]", process.stdin)
    stdin.write(job_line(plan, credentials, seed))
    stdin.flush()
    asked: list[ChatSample] = []
    try:
        yield asked
        asked += [ChatSample(**each) for each in json.loads(process.communicate(timeout=END_S)[0])]
    finally:
        process.kill()
        process.communicate()


def chat_summary(clients: int, asked: Sequence[ChatSample], begin_ns: int, end_ns: int) -> ChatSummary:
    """Figures of the requests that ended, and the text that arrived, between begin and end."""

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
    """The default HTTP address for a gRPC address: the same host, port 8000."""
    host = address.rpartition(":")[0]
    return f"http{'s' * encrypted}://{host}:{HTTP_PORT}"
