"""The gRPC server: the control service, authentication, health v1, and reflection on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from edgeflow.config.sections import is_loopback
from edgeflow.config.service import ServiceConfig
from edgeflow.service.frontends.grpc.codec import (
    ParsedMessage,
    Unparsable,
    check_act,
    parse_act_request,
    parse_client_message,
)
from edgeflow.service.frontends.grpc.stream import Context, StreamCall, action_message, unparsable
from edgeflow.service.host.listen import address_text, bind
from edgeflow.service.observation.requests import trace_context
from edgeflow.service.observe.health import Health
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import ADMIN, ANY, CONTROL, Authenticator, Caller, Role
from edgeflow.service.security.tls import Tls
from edgeflow.service.sessions.observers import Metrics
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.sessions.single import act_once
from edgeflow_client.connection.wire import schema_message
from edgeflow_client.errors import AddressError, EdgeflowError, RequestError
from edgeflow_client.rpc import control_pb2 as pb

CallOver = grpc.aio.InternalError  # raised by a write that failed because the client left
MOST_BYTES = 4096  # of the encoded text; clients may drop a status whose trailers exceed 8 KiB
AUTHORIZATION = "authorization"
_OPEN = f"/{health.SERVICE_NAME}/"
_ROLES = {"/edgeflow.v1.Control/": CONTROL, f"/{reflection.SERVICE_NAME}/": ANY}

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]
SERVICE = "edgeflow.v1.Control"
METADATA_BYTES = 8192
KEEPALIVE_MS = 10_000
IDENTITY_ONLY = 1  # bit set of compression algorithms: none, so that sizes are what they seem
STOP_GRACE_S = 1.0

Call = Callable[[Any, Context], Awaitable[Any]]


async def abort(context: Any, error: EdgeflowError) -> None:
    """End a call (grpc.aio.ServicerContext) with an error; raises."""
    try:
        await context.abort(grpc.StatusCode[error.code], status_text(error.text), _trailers(error))
    except CallOver:
        raise asyncio.CancelledError from None


def status_text(text: str) -> str:
    """A text for a trailer, in which everything except plain ASCII is percent-encoded; a long text is cut."""
    left = MOST_BYTES
    for place, character in enumerate(text):
        left -= _encoded_bytes(character)
        if left < 0:
            return f"{text[:place]} …"
    return text


def _encoded_bytes(character: str) -> int:
    plain = " " <= character <= "~" and character != "%"
    return 1 if plain else 3 * len(character.encode("utf-8", "replace"))


def _trailers(error: EdgeflowError) -> tuple[tuple[str, str], ...]:
    """The reason, the field at fault, and when to try again."""
    if not isinstance(error, RequestError):
        return ()
    trailers = [("edgeflow-reason", error.reason), ("edgeflow-field", error.field)]
    if error.retry_after_ms is not None:
        trailers.append(("retry-after-ms", str(error.retry_after_ms)))
    return tuple((key, value) for key, value in trailers if value)


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Rejects calls before anything of them is read, including calls to unknown methods."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """The call's own handler, or one that rejects it."""
        handler = await continuation(details)
        if not self._authenticator.tokens_required or details.method.startswith(_OPEN):
            return handler
        try:
            self._authenticator.check(credentials(details.invocation_metadata), _roles(details.method), "")
        except RequestError as error:
            return self._rejection(handler, details.method if handler else "unknown", error)
        return handler

    def _rejection(self, handler: grpc.RpcMethodHandler | None, method: str, error: RequestError) -> Any:
        async def reject(_: Any, context: Context) -> None:
            self._authenticator.count_rejection(method, context.peer(), error)
            await abort(context, error)

        if handler is None or (handler.request_streaming and handler.response_streaming):
            return grpc.stream_stream_rpc_method_handler(reject)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(reject)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(reject)
        return grpc.unary_unary_rpc_method_handler(reject)


def credentials(metadata: Sequence[tuple[str, str | bytes]] | None) -> list[str]:
    """The authorization values of a call."""
    return [value for key, value in metadata or () if key == AUTHORIZATION and isinstance(value, str)]


def _roles(method: str) -> frozenset[Role]:
    return next((roles for service, roles in _ROLES.items() if method.startswith(service)), ADMIN)


class ControlService:
    """The calls Stream and Act. Every failure becomes a typed status, or INTERNAL with an incident id."""

    def __init__(self, plane: ControlPlane, authenticator: Authenticator, metrics: Metrics, log: EventLog) -> None:
        self._plane = plane
        self._authenticator = authenticator
        self._metrics = metrics
        self._log = log

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler for `add_generic_rpc_handlers`, with deserialisers that never raise."""
        methods = {
            "Stream": grpc.stream_stream_rpc_method_handler(
                self._guarded("Stream", self._stream), parse_client_message, pb.ServerMessage.SerializeToString
            ),
            "Act": grpc.unary_unary_rpc_method_handler(
                self._guarded("Act", self._act), parse_act_request, pb.ActResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _guarded(self, method: str, call: Call) -> Call:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                answer = await call(request, context)
                self._count(method, "OK")
                return answer
            except asyncio.CancelledError:
                self._count(method, "CANCELLED")
                raise
            except CallOver:
                self._count(method, "CANCELLED")
                raise asyncio.CancelledError from None
            except EdgeflowError as error:
                self._count(method, error.code)
                await abort(context, error)
            except Exception as error:
                self._count(method, "INTERNAL")
                text = f"internal error, incident {self._log.incident(method, error)}"
                await abort(context, EdgeflowError(text))

        return guarded

    async def _stream(self, _: Any, context: Context) -> None:
        await StreamCall(self._plane, self._metrics, context, lambda: self._caller(context)).run()

    async def _act(self, request: ParsedMessage[pb.ActRequest] | Unparsable, context: Context) -> pb.ActResponse:
        if isinstance(request, Unparsable):
            raise unparsable()
        caller, config = self._caller(context), self._plane.config
        opened, frame = check_act(request, config.alias, config.limits)
        if config.trace.on:
            opened = replace(opened, trace=trace_context(context.invocation_metadata() or ()))
        action, schema = await act_once(self._plane, opened, frame, caller)
        return pb.ActResponse(action=action_message(action), schema=schema_message(schema), ignored=opened.ignored)

    def _caller(self, context: Context) -> Caller:
        return self._authenticator.check(credentials(context.invocation_metadata()), CONTROL, context.peer())

    def _count(self, method: str, code: str) -> None:
        self._metrics.rpc.labels(method, code).inc()


class GrpcServer:
    """The gRPC server, bound at `start`."""

    def __init__(
        self,
        config: ServiceConfig,
        service: ControlService,
        authenticator: Authenticator,
        tls: Tls | None,
        state: Health,
    ) -> None:
        self._config = config
        self._tls = tls
        self._server = grpc.aio.server(interceptors=[AuthInterceptor(authenticator)], options=_options(config))
        self._server.add_generic_rpc_handlers((service.handler(),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if is_loopback(config.grpc.host):
            names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        self._state = state
        self._updates: asyncio.Queue[bool] = asyncio.Queue()

    async def start(self) -> int:
        """Listen and return the bound port; AddressError if the address is in use. `report` must run beside it."""
        host, port = self._config.grpc.host, self._config.grpc.port
        bind("grpc.port", host, port).close()  # AddressError where another server listens there
        try:
            bound = self._bind(address_text(host, port))
        except RuntimeError:
            raise AddressError(f"grpc.port: cannot listen on {address_text(host, port)}") from None
        await self._server.start()
        loop = asyncio.get_running_loop()
        self._state.watch(lambda ready: loop.call_soon_threadsafe(self._updates.put_nowait, ready))
        return bound

    async def stop(self) -> None:
        """Reject new calls, give running ones STOP_GRACE_S, then cancel them."""
        await self._server.stop(STOP_GRACE_S)

    def _bind(self, address: str) -> int:
        if self._tls is None:
            bound: int = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, self._tls.grpc_credentials())
        return bound

    async def report(self) -> None:
        """Report every change to watchers of the standard health service, in order.

        A blocked loop is reported once it runs again; until then this port cannot answer.
        """
        serving = health_pb2.HealthCheckResponse.SERVING
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        while True:
            ready = await self._updates.get()
            for name in ("", SERVICE):
                await self._health.set(name, serving if ready else not_serving)


def _options(config: ServiceConfig) -> list[tuple[str, int]]:
    limits = config.limits
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
        ("grpc.server_handshake_timeout_ms", config.timing.handshake_ms),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ]
