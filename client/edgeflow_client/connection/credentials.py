"""Credentials of a client (TLS files and a token), and gRPC channels that use them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.files import read_regular
from edgeflow_client.reasons import Reason

TOKEN_VARIABLE = "EDGEFLOW_TOKEN"
MAX_FILE_BYTES = 1 << 20
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253})")
_PORT = re.compile(r"[0-9]{1,5}")
_MAX_PORT = 65_535
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")  # gRPC's own


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for a protected service."""

    ca: Path | None = None
    """CA certificates (PEM) to verify the service with; None = the default roots."""
    cert: Path | None = None
    """The client's own certificate (PEM), for mutual TLS."""
    key: Path | None = None
    """The key of `cert`."""
    token: str = field(default="", repr=False)
    """The token of the principal. Files are read at every connect, so that they may be replaced."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidArgument("cert and key must be given together", field="credentials", reason=Reason.CREDENTIALS)
        if not all("!" <= character <= "~" for character in self.token):
            raise InvalidArgument(
                "contains characters that a token cannot have", field="credentials.token", reason=Reason.CREDENTIALS
            )

    @classmethod
    def of(
        cls,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        token_file: Path | None = None,
    ) -> Credentials:
        """Credentials from files; without a token file, the token comes from the variable EDGEFLOW_TOKEN."""
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if token_file is not None:
            try:
                token = _read("token_file", token_file).decode("ascii").strip()
            except UnicodeDecodeError:
                raise InvalidArgument(
                    "does not contain a token", field="credentials.token_file", reason=Reason.CREDENTIALS
                ) from None
        return cls(ca, cert, key, token)


def channel(
    address: str, credentials: Credentials | None, options: Sequence[tuple[str, Any]], aio: bool = False
) -> Any:
    """A grpc.Channel, or grpc.aio.Channel, that sends the credentials with every call; the caller closes it.

    credentials: None = the environment's token, if set. TLS is used if a CA or a certificate is given, and to every
    address but loopback once there is a token: a token is never sent unencrypted beyond loopback, as gRPC itself
    checks. InvalidArgument names a file that cannot be read.
    """
    shown = credentials or Credentials.of()
    library = grpc.aio if aio else grpc
    if shown == Credentials():
        return library.insecure_channel(address, options=options)
    if shown.ca or shown.cert or not _is_loopback(address):
        files = {"ca": shown.ca, "key": shown.key, "cert": shown.cert}
        transport = grpc.ssl_channel_credentials(*(path and _read(name, path) for name, path in files.items()))
    else:
        transport = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
    if shown.token:
        transport = grpc.composite_channel_credentials(transport, grpc.access_token_call_credentials(shown.token))
    return library.secure_channel(address, transport, options=options)


def is_local(address: str) -> bool:
    """True if an address is on this machine: of loopback, or a Unix socket."""
    return address.startswith(("unix:", "unix-abstract:")) or _is_loopback(address.partition(":///")[2] or address)


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(name: str, path: Path) -> bytes:
    try:
        return read_regular(path.expanduser(), MAX_FILE_BYTES)
    except OSError as error:
        raise InvalidArgument(
            f"cannot read {path}: {error.strerror}", field=f"credentials.{name}", reason=Reason.CREDENTIALS
        ) from None


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
