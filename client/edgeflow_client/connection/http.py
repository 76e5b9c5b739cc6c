"""The HTTP side of a service: connections with the same credentials, and its errors."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import InvalidArgument, RequestError, Unavailable

HTTP_PORT = 8000  # the default of a service
Connection: TypeAlias = http.client.HTTPConnection
Response: TypeAlias = http.client.HTTPResponse
BROKEN = (OSError, http.client.HTTPException, ValueError)
"""Exceptions of a connection whose other side disappears or is not an HTTP service."""


class HTTPError(RequestError):
    """The service answered with an error. status: the HTTP status. The text comes from the service."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} (HTTP {status})")
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpService:
    """The HTTP address of a service and the credentials for it."""

    host: str
    port: int
    encrypted: bool = False
    credentials: Credentials = field(default_factory=Credentials)

    @classmethod
    def of(cls, address: str, credentials: Credentials) -> HttpService:
        """Parse `host:port` or a URL; a https URL, a CA or a certificate turns TLS on. Raises InvalidArgument."""
        parts = urlsplit(address if "://" in address else f"//{address}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in ("", "http", "https") or parts.path not in ("", "/"):
            raise InvalidArgument(f"must be host:port or http://host:port, got {address!r}", field="address")
        encrypted = parts.scheme == "https" or (not parts.scheme and bool(credentials.ca or credentials.cert))
        return cls(host, port or HTTP_PORT, encrypted, credentials)

    @property
    def address(self) -> str:
        """The address as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.encrypted}://{host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        token = self.credentials.token
        return {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}

    def connect(self, timeout_s: float) -> Connection:
        """A new connection, which the caller closes; nothing is sent yet."""
        if not self.encrypted:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        shown = self.credentials
        try:
            context = ssl.create_default_context(cafile=str(shown.ca.expanduser()) if shown.ca else None)
            if shown.cert is not None and shown.key is not None:
                context.load_cert_chain(shown.cert.expanduser(), shown.key.expanduser())
        except (OSError, ssl.SSLError):
            raise InvalidArgument("a certificate or key cannot be read", field="credentials") from None
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """Send a request and return the JSON answer. Raises HTTPError with the service's message, or Unavailable."""
        connection = self.connect(timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self.headers)
            response = connection.getresponse()
            data = response.read()
        except BROKEN as error:
            raise Unavailable(f"{self.address}: {getattr(error, 'strerror', None) or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise HTTPError(response.status, error_text(data))
        try:
            return json.loads(data)
        except ValueError:
            raise Unavailable("the answer is not JSON") from None


def error_text(data: bytes) -> str:
    """The message of an error body, or a readable text for any other body."""
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "the answer does not come from an edgeflow service"
