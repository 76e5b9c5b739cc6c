"""The readiness check of a service on this machine, over its HTTP port; used as a container's health check."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

from edgeflow.config import ServiceConfig, TlsConfig
from edgeflow.errors import ConfigError, Unavailable
from edgeflow.service.host.listen import address_text

MAX_ANSWER_BYTES = 64 << 10
LOOPBACK = {
    "0.0.0.0": "127.0.0.1",
    "::": "::1",
    "": "127.0.0.1",
}  # where to reach a service that listens on every address
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def probe(config: ServiceConfig, timeout_s: float) -> str:
    """Return the state of the configured service; Unavailable if it is not ready.

    With TLS, the certificate must be the configured one. With mutual TLS, the same certificate serves as the client's,
    so the client CA must have signed it.
    """
    host, port = LOOPBACK.get(config.http.host, config.http.host), config.http.port
    if port == 0:
        raise ConfigError("http.port: is 0, any free port: give the service's actual port with --http-port")
    try:
        answer = _ask(host, port, config.tls, timeout_s)
    except OSError as error:
        raise Unavailable(f"no answer from {address_text(host, port)} ({type(error).__name__})") from None
    status, state = _read(answer)
    if status != 200:
        raise Unavailable(f"{address_text(host, port)} is {state}")
    return state


def _ask(host: str, port: int, tls: TlsConfig, timeout_s: float) -> bytes:
    with socket.create_connection((host, port), timeout_s) as plain:
        if not tls.cert:
            return _exchange(plain)
        with _context(tls).wrap_socket(plain) as secured:
            return _exchange(secured)


def _exchange(link: socket.socket) -> bytes:
    link.sendall(REQUEST)
    answer = b""
    while len(answer) < MAX_ANSWER_BYTES and (more := link.recv(4096)):
        answer += more
    return answer


def _context(tls: TlsConfig) -> ssl.SSLContext:
    cert, key = Path(tls.cert).expanduser(), Path(tls.key).expanduser()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cert)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.client_ca:
        context.load_cert_chain(cert, key)
    return context


def _read(answer: bytes) -> tuple[int, str]:
    """The HTTP status and the state in the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        return int(head.split(maxsplit=2)[1]), str(json.loads(body)["state"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise Unavailable("the answer does not come from an edgeflow service") from None
