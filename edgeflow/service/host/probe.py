"""The readiness check of a service on this machine, over its health listener; used as a container's health check."""

from __future__ import annotations

import json
import socket

from edgeflow.config.service import ServiceConfig
from edgeflow.service.host.listen import address_text
from edgeflow_client.errors import ConfigError, Unavailable

MAX_ANSWER_BYTES = 64 << 10
LOOPBACK = {
    "0.0.0.0": "127.0.0.1",
    "::": "::1",
    "": "127.0.0.1",
}  # where to reach a service that listens on every address
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def probe(config: ServiceConfig, timeout_s: float) -> str:
    """Return the state of the configured service; Unavailable if it is not ready."""
    host, port = LOOPBACK.get(config.health.host, config.health.host), config.health.port
    if port == 0:
        raise ConfigError("health.port: is 0, any free port: give the service's actual port with --health-port")
    try:
        with socket.create_connection((host, port), timeout_s) as link:
            answer = _exchange(link)
    except OSError as error:
        raise Unavailable(f"no answer from {address_text(host, port)} ({type(error).__name__})") from None
    status, state = _read(answer)
    if status != 200:
        raise Unavailable(f"{address_text(host, port)} is {state}")
    return state


def _exchange(link: socket.socket) -> bytes:
    link.sendall(REQUEST)
    answer = b""
    while len(answer) < MAX_ANSWER_BYTES and (more := link.recv(4096)):
        answer += more
    return answer


def _read(answer: bytes) -> tuple[int, str]:
    """The HTTP status and the state in the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        return int(head.split(maxsplit=2)[1]), str(json.loads(body)["state"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise Unavailable("the answer does not come from an edgeflow service") from None
