"""The health listener: its own thread and port, whatever strangers do to them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from edgeflow.config.service import load_config
from edgeflow.service.host.listen import bind
from edgeflow.service.host.probe import probe
from edgeflow.service.observe.health import MOST, REQUEST_BYTES, Health, HealthListener, HealthState
from edgeflow_client.errors import Unavailable

WAIT_S = 20.0


@pytest.fixture
def health() -> Health:
    health = Health()
    health.move(HealthState.WARMING)
    health.move(HealthState.READY)
    return health


@pytest.fixture
def listener(health: Health) -> Iterator[HealthListener]:
    listener = HealthListener(bind("health.port", "127.0.0.1", 0), health)
    listener.start()
    yield listener
    listener.stop()


def ask(listener: HealthListener) -> str:
    return probe(load_config(None, {"health.port": listener.port}), WAIT_S)


def raw(listener: HealthListener, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", listener.port), WAIT_S) as link:
        link.sendall(request)
        answer = b""
        while more := link.recv(4096):
            answer += more
        return answer


def test_it_reports_the_state_of_the_service(listener: HealthListener, health: Health):
    assert ask(listener) == "ready"
    health.stalled = True
    with pytest.raises(Unavailable):
        ask(listener)
    assert raw(listener, b"GET /live HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503")
    health.stalled = False
    assert ask(listener) == "ready"


@pytest.mark.parametrize("request_", [b"POST /ready HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"\r\n\r\n"])
def test_it_serves_only_these_paths(listener: HealthListener, request_: bytes):
    assert raw(listener, request_).startswith(b"HTTP/1.1 404")


def test_silent_and_endless_strangers_do_not_keep_a_probe_away(listener: HealthListener):
    address = ("127.0.0.1", listener.port)
    links = [socket.create_connection(address, WAIT_S) for _ in range(3 * MOST)]
    for link in links:
        link.send(b"GET")
    assert ask(listener) == "ready"
    for link in links:
        link.close()
    with socket.create_connection(address, WAIT_S) as endless:
        endless.sendall(b"a" * (REQUEST_BYTES + 1))
        assert endless.recv(1) == b""
