"""The names under which the service may be called: a web page must not reach it through a name of its choice."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from edgeflow.config.sections import HttpConfig, is_loopback
from edgeflow_client.errors import PermissionDenied
from edgeflow_client.reasons import Reason


@dataclass(frozen=True, slots=True)
class Hosts:
    """Names in the Host and Origin headers that are accepted besides loopback's; without `checked`, any are."""

    checked: bool = False
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, http: HttpConfig) -> Hosts:
        """The hosts of an HTTP address. On loopback they are checked always, elsewhere if names are configured."""
        names = frozenset(name.lower() for name in (*http.names, http.host))
        return cls(is_loopback(http.host) or bool(http.names), names)

    def check(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Raise PermissionDenied unless every Host and Origin header names this service."""
        if not self.checked:
            return
        for name, value in headers:
            if name == b"host" and not self._known(b"//" + value):
                raise PermissionDenied(
                    "is not a name of this service: add it to http.names", field="host", reason=Reason.HOST_NOT_ALLOWED
                )
            if name == b"origin" and not self._known(value):
                raise PermissionDenied(
                    "web pages of other hosts may not call this service: see http.names",
                    field="origin",
                    reason=Reason.ORIGIN_NOT_ALLOWED,
                )

    def _known(self, address: bytes) -> bool:
        try:
            host = urlsplit(address.decode("ascii")).hostname or ""
        except ValueError:
            return False
        return is_loopback(host) or host in self.names
