"""The address of a service's gRPC port."""

from __future__ import annotations

import ipaddress
import re

from edgeflow_client.errors import InvalidArgument

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253})")
_PORT = re.compile(r"[0-9]{1,5}")
_MAX_PORT = 65_535
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")  # gRPC's own


def check_address(address: object) -> None:
    """Raise InvalidArgument unless this is host:port, [IPv6]:port or an address with one of gRPC's schemes."""
    if not isinstance(address, str) or not (_is_host_and_port(address) or _has_scheme(address)):
        raise InvalidArgument(f"must be host:port, got {address!r}", field="address")


def _has_scheme(address: str) -> bool:
    return any(address.startswith(scheme) and address[len(scheme) :].strip("/ ") for scheme in _SCHEMES)


def _is_host_and_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= _MAX_PORT:
        return False
    if host.startswith("[") and host.endswith("]"):
        return _is_ipv6(host[1:-1])
    return _HOST.fullmatch(host) is not None


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
