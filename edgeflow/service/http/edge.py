"""The middleware of strangers' requests: host, token, and size limits."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope

from edgeflow.config.sections import is_loopback
from edgeflow.service.http.answers import CALLER, Answers
from edgeflow.service.http.errors import BodyTooLarge, HeadersTooLarge
from edgeflow.service.http.hosts import Hosts
from edgeflow.service.observe.log import Log
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.security.auth import ADMIN, ANY, CHAT, CONTROL, OBSERVE, Caller, Guard, Role
from edgeflow_client.errors import PermissionDenied, Unauthenticated
from edgeflow_client.reasons import Reason

MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 << 10
ANY_HOST = Hosts()
OPEN_PATHS = frozenset({"/live", "/ready", "/healthz", "/readyz"})
ADMIN_PATH = "/admin/"
MODELS = "/v1/models"
ROLES: dict[str, frozenset[Role]] = {
    "/v1/act": CONTROL,
    MODELS: ANY,
    "/v1/chat/completions": CHAT,
    "/v1/completions": CHAT,
    "/tokenize": CHAT,
    "/metrics": OBSERVE,
    "/docs": OBSERVE,
    "/docs/swagger-ui-bundle.js": OBSERVE,
    "/docs/swagger-ui.css": OBSERVE,
    "/docs/favicon.png": OBSERVE,
    "/openapi.json": OBSERVE,
}


class Edge(Answers):
    """The middleware.

    Paths without an entry in ROLES require the role admin; without tokens, those below ADMIN_PATH are limited to
    loopback. OPEN_PATHS may be called by anyone, under any name of the service.

    reader_s: as of Answers.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        body_bytes: int,
        metrics: ProcessMetrics,
        log: Log,
        *,
        hosts: Hosts = ANY_HOST,
        reader_s: float = 30.0,
    ) -> None:
        super().__init__(app, log, reader_s)
        self._hosts = hosts
        self._guard = guard
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
            if path.startswith(ADMIN_PATH) and not self._guard.asks and not is_loopback(peer):
                raise PermissionDenied(
                    "administration without tokens is limited to this machine: configure tokens_file",
                    field="peer",
                    reason=Reason.NOT_LOOPBACK,
                )
            return self._guard.check(shown, ROLES.get(listed(path), ADMIN), peer)
        except (Unauthenticated, PermissionDenied) as error:
            self._guard.refused(listed(path), peer, error)
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


def listed(path: str) -> str:
    """The path in ROLES that a path belongs to; "unknown" for another."""
    known = MODELS if path.startswith(f"{MODELS}/") else path
    return known if known in ROLES else "unknown"
