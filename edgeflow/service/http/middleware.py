"""The middleware of the gateway and of the chat front: the host, token and size of a request, and its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope

from edgeflow.config.sections import is_loopback
from edgeflow.service.http.answers import CALLER, BodyTooLarge, HeadersTooLarge, Middleware
from edgeflow.service.observe.log import Log
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import (
    ADMIN,
    ANY,
    CHAT,
    CONTROL,
    OBSERVE,
    Authenticator,
    Caller,
    Networks,
    Role,
    is_within,
)
from edgeflow_client.errors import PermissionDenied, Unauthenticated
from edgeflow_client.reasons import Reason

MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 << 10
OPEN_PATHS = frozenset({"/live", "/ready", "/healthz", "/readyz"})
ADMIN_PATH = "/admin/"
PREFIXES = f"{ADMIN_PATH}v1/prefixes"
SESSIONS = f"{ADMIN_PATH}v1/sessions"
DEMO_ROBOT = f"{ADMIN_PATH}v1/demo-robot"
MODELS = "/v1/models"
MODEL = f"{MODELS}/{{name:path}}"  # names have slashes
ROOT, PAGE = "/", "/page"  # the live page and its files, which hold nothing of the service
EVENTS = "/events"
EVENT_IMAGES = f"{EVENTS}/images/{{session}}/{{camera}}"
DOCS, OPENAPI = "/docs", "/openapi.json"
API = f"{DOCS}/api"  # the page of the OpenAPI document
PAGE_PARTS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
"""Script, style and icon of the page at API, with their media types."""
ANYONE: frozenset[Role] = frozenset()
"""The roles of a path that needs no token."""
ROLES: dict[str, frozenset[Role]] = {
    **dict.fromkeys((ROOT, PAGE), ANYONE),
    "/v1/act": CONTROL,
    MODELS: ANY,
    "/v1/chat/completions": CHAT,
    "/v1/completions": CHAT,
    "/tokenize": CHAT,
    "/metrics": OBSERVE,
    EVENTS: OBSERVE,
    **dict.fromkeys((OPENAPI, DOCS), OBSERVE),
}
OWN_FETCHES = (b"same-origin", b"none")  # values of Sec-Fetch-Site; none: typed into the address bar
PORTS = {"http": 80, "https": 443}
PEER, PRINCIPAL, TOKEN = b"x-edgeflow-peer", b"x-edgeflow-principal", b"x-edgeflow-token"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Names accepted in Host and Origin headers besides those of loopback; without `checked`, all are accepted."""

    checked: bool = False
    names: frozenset[str] = frozenset()
    pages: bool = True
    """If hosts are not checked, web pages of any name may call the service; otherwise only its own may."""

    @classmethod
    def of(cls, host: str, names: Sequence[str], *, pages: bool = True) -> Hosts:
        """The hosts of a listening address. They are always checked on loopback, elsewhere only if names are given."""
        accepted = frozenset(name.lower() for name in (*names, host))
        return cls(is_loopback(host) or bool(names), accepted, pages)

    def check(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Raise PermissionDenied unless every Host and Origin header names this service."""
        if not self.checked and self.pages:
            return
        for name, value in headers:
            if self.checked and name == b"host" and not self._known(b"//" + value):
                raise PermissionDenied(
                    "is not a name of this service: add it to http.names", field="host", reason=Reason.HOST_NOT_ALLOWED
                )
            if name == b"origin" and not self._known(value):
                raise PermissionDenied(
                    "web pages of other hosts may not call this service: see http.names",
                    field="origin",
                    reason=Reason.ORIGIN_NOT_ALLOWED,
                )

    @staticmethod
    def check_own_page(headers: list[tuple[bytes, bytes]], scheme: str) -> None:
        """Raise PermissionDenied for a web page of any other origin: another scheme, host or port, or another site.

        Requests of programs have neither of these headers.
        """
        host = next((value for name, value in headers if name == b"host"), b"")
        own = _origin(scheme.encode() + b"://" + host)
        for name, value in headers:
            if (name == b"origin" and _origin(value) != own) or (
                name == b"sec-fetch-site" and value not in OWN_FETCHES
            ):
                raise PermissionDenied(
                    "only pages of this very address may watch or administer the service",
                    field=name.decode(),
                    reason=Reason.ORIGIN_NOT_ALLOWED,
                )

    def _known(self, address: bytes) -> bool:
        try:
            host = urlsplit(address.decode("ascii")).hostname or ""
        except ValueError:
            return False
        return is_loopback(host) or host in self.names


def _origin(address: bytes) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address; the scheme is empty where it cannot be an origin."""
    try:
        parts = urlsplit(address.decode("ascii"))
        return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return "", "", None


class PublicMiddleware(Middleware):
    """The middleware of public requests.

    Paths without an entry in ROLES require the role admin; without tokens, those below ADMIN_PATH are limited to
    loopback. OPEN_PATHS may be called by anyone, under any name of the service.

    reader_s: as in Middleware. roles: by path. peers: networks without tokens, by path.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        body_bytes: int,
        metrics: ProcessMetrics,
        log: Log,
        *,
        hosts: Hosts,
        reader_s: float,
        roles: Mapping[str, frozenset[Role]] = ROLES,
        peers: Mapping[str, Networks] | None = None,
    ) -> None:
        super().__init__(app, log, reader_s)
        self._roles = roles
        self._peers = peers or {}
        self._hosts = hosts
        self._authenticator = authenticator
        self._body_bytes = body_bytes
        self._metrics = metrics

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """Check head, host and token; the bytes of the body are counted as they arrive."""
        self._check_size(scope["headers"])
        scope[CALLER] = self._caller(scope)
        self._check_length(dict(scope["headers"]))
        return self._limited(receive)

    def _check_size(self, headers: list[tuple[bytes, bytes]]) -> None:
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            self._metrics.limit_rejections.labels("http_headers").inc()
            text = f"more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of them"
            raise HeadersTooLarge(text, field="headers", reason=Reason.HEADERS_TOO_LARGE)

    def _caller(self, scope: Scope) -> Caller:
        peer, path = (scope.get("client") or ("",))[0], scope["path"]
        if path in OPEN_PATHS:
            return Caller(peer)
        shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        try:
            self._hosts.check(scope["headers"])
            if path.startswith((ADMIN_PATH, f"{EVENTS}/")) or path == EVENTS:
                self._hosts.check_own_page(scope["headers"], scope.get("scheme", "http"))
            if path.startswith(ADMIN_PATH) and not self._authenticator.tokens_required and not is_loopback(peer):
                raise PermissionDenied(
                    "administration without tokens is limited to this machine: configure tokens_file",
                    field="peer",
                    reason=Reason.NOT_LOOPBACK,
                )
            roles = self._roles.get(listed(path, self._roles), ADMIN)
            if roles is ANYONE or (not shown and is_within(peer, self._peers.get(path, ()))):
                return Caller(peer)
            return self._authenticator.check(shown, roles, peer)
        except (Unauthenticated, PermissionDenied) as error:
            self._authenticator.count_rejection(listed(path, self._roles), peer, error)
            raise

    def _check_length(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """Count the bytes of a body as it arrives, since it may lack a length."""
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> BodyTooLarge:
        self._metrics.limit_rejections.labels("http_body_bytes").inc()
        return BodyTooLarge(
            f"exceeds the limit of {self._body_bytes} bytes", field="body", reason=Reason.BODY_TOO_LARGE
        )


def listed(path: str, roles: Mapping[str, frozenset[Role]] = ROLES) -> str:
    """The path in `roles` that a path belongs to; "unknown" for another."""
    known = next((top for top in (MODELS, DOCS, EVENTS, PAGE) if path.startswith(f"{top}/")), path)
    return known if known in roles else "unknown"


class InternalMiddleware(Middleware):
    """The middleware of requests from the gateway, which has checked them; its headers name the caller."""

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        headers = dict(scope["headers"])
        scope[CALLER] = Caller(*(headers.get(name, b"").decode("latin-1") for name in (PEER, PRINCIPAL, TOKEN)))
        return receive
