"""Binding of addresses to listen on."""

from __future__ import annotations

import errno
import socket

from edgeflow_client.errors import AddressError

BACKLOG = 128
RECEIVE_BYTES = 128 << 10  # buffered by the system for an unread connection; its default is megabytes


def address_text(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(key: str, host: str, port: int, receive_bytes: int = RECEIVE_BYTES) -> socket.socket:
    """A TCP socket that listens on an address; AddressError names the configuration key. The caller closes it.

    receive_bytes: the system's buffer for a connection that is not read.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise AddressError(f"{key}: {host} is not an address of this machine ({error.strerror})") from None
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _describe(key, host, port, error) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)  # before `listen`: it sets the window
        sock.bind(address)
        sock.listen(BACKLOG)  # two sockets may be bound alike with SO_REUSEADDR, but not listen
    except OSError as error:
        sock.close()
        raise _describe(key, host, port, error) from None
    return sock


def _describe(key: str, host: str, port: int, error: OSError) -> AddressError:
    where = address_text(host, port)
    if error.errno == errno.EADDRINUSE:
        return AddressError(
            f"{key}: {where} is in use: stop the process that listens there, or choose another port (0 = any)"
        )
    if error.errno == errno.EACCES:
        return AddressError(f"{key}: {where} needs privileges: choose a port above 1023")
    return AddressError(f"{key}: cannot listen on {where}: {error.strerror}")
