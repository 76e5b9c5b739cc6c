"""Authentication of gRPC calls: every call except health needs a token with the right role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from edgeflow.service.grpc.ending import abort
from edgeflow.service.grpc.stream import Context
from edgeflow.service.security.auth import ADMIN, ANY, CONTROL, Guard, Role
from edgeflow_client.errors import RequestError

AUTHORIZATION = "authorization"
_OPEN = f"/{health.SERVICE_NAME}/"
_ROLES = {"/edgeflow.v1.Control/": CONTROL, f"/{reflection.SERVICE_NAME}/": ANY}

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]


class Door(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that refuses before anything of a call is read, including calls to unknown methods."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """The call's own handler, or one that refuses it."""
        handler = await continuation(details)
        if not self._guard.asks or details.method.startswith(_OPEN):
            return handler
        try:
            self._guard.check(credentials(details.invocation_metadata), _roles(details.method), "")
        except RequestError as error:
            return self._refusal(handler, details.method if handler else "unknown", error)
        return handler

    def _refusal(self, handler: grpc.RpcMethodHandler | None, method: str, error: RequestError) -> Any:
        async def refuse(_: Any, context: Context) -> None:
            self._guard.refused(method, context.peer(), error)
            await abort(context, error)

        if handler is None or (handler.request_streaming and handler.response_streaming):
            return grpc.stream_stream_rpc_method_handler(refuse)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(refuse)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(refuse)


def credentials(metadata: Sequence[tuple[str, str | bytes]] | None) -> list[str]:
    """The authorization values of a call."""
    return [value for key, value in metadata or () if key == AUTHORIZATION and isinstance(value, str)]


def _roles(method: str) -> frozenset[Role]:
    return next((roles for service, roles in _ROLES.items() if method.startswith(service)), ADMIN)
