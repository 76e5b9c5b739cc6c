"""The exception tree: every failure a user can meet, with its gRPC status and HTTP code.

EdgeflowError
├── StartError                 the service or a command cannot start (exit code 2)
│   ├── ConfigError            configuration file or flags
│   ├── CheckpointError        model directory missing, truncated, unsupported
│   ├── DependencyError        a library or a system package is missing
│   └── AddressError           port in use, address not bindable
├── RequestError               a client's message is rejected; reported in band, the session continues
│   ├── InvalidArgument · DataLoss · OutOfRange · FailedPrecondition
│   ├── NotFound · AlreadyExists · ResourceExhausted · Unavailable · Aborted · DeadlineExceeded · Internal
│   └── Unauthenticated · PermissionDenied
├── Stopped                    a long run was asked to end, and its state is saved
└── WorkerError                the worker process failed
"""

from __future__ import annotations

from typing import ClassVar

RETRY_AFTER_MS = 1000  # the wait suggested where trying again may help


class EdgeflowError(Exception):
    """Base class of all errors. `code` is a gRPC status name, `http_status` its HTTP equivalent."""

    code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500

    @property
    def text(self) -> str:
        """The message in one line; it never contains secrets, payloads or exception text of libraries."""
        return str(self)


class StartError(EdgeflowError):
    """A command cannot start. The message says what to do; the exit code is 2."""


class ConfigError(StartError):
    """The configuration file or an option is invalid; the message names the key and the limit."""


class CheckpointError(StartError):
    """A model directory is missing, truncated or unsupported; the message names the file or tensor."""


class DependencyError(StartError):
    """A library or system package is missing; the message says how to install it."""


class AddressError(StartError):
    """An address cannot be bound."""


class RequestError(EdgeflowError):
    """A client's request or message is rejected.

    field: the field at fault, dotted (`frame.images[0].data`), or "".
    reason: a constant for programs (edgeflow_client.reasons.Reason); the status name by default.
    retry_after_ms: the wait before trying again, or None if trying again does not help.
    """

    code = "INVALID_ARGUMENT"
    http_status = 400

    def __init__(self, message: str, *, field: str = "", reason: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.reason = reason or self.code
        self.retry_after_ms = retry_after_ms


class InvalidArgument(RequestError):
    """A value is unparsable, has the wrong shape, size, format or text, or is NaN or infinite."""


class DataLoss(RequestError):
    """A checksum does not match, or a payload is truncated."""

    code = "DATA_LOSS"


class OutOfRange(RequestError):
    """A sequence number or stamp is a duplicate, too old, or in the future."""

    code = "OUT_OF_RANGE"


class FailedPrecondition(RequestError):
    """The message is valid but the session's state forbids it (a frame before Open, or before Reset)."""

    code = "FAILED_PRECONDITION"


class NotFound(RequestError):
    """The model or slot does not exist."""

    code = "NOT_FOUND"
    http_status = 404


class AlreadyExists(RequestError):
    """The session is already open."""

    code = "ALREADY_EXISTS"
    http_status = 409


class ResourceExhausted(RequestError):
    """A limit on sessions, rate or size is reached."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 429


class Unavailable(RequestError):
    """The service is starting or draining, or has no worker at the moment."""

    code = "UNAVAILABLE"
    http_status = 503


class Aborted(RequestError):
    """The session was ended because too many frames were rejected."""

    code = "ABORTED"
    http_status = 409


class DeadlineExceeded(RequestError):
    """The client was silent for too long, or no answer was ready in time."""

    code = "DEADLINE_EXCEEDED"
    http_status = 504


class Internal(RequestError):
    """The request is valid, but computing its answer failed. Other requests are not affected."""

    code = "INTERNAL"
    http_status = 500


class Unauthenticated(RequestError):
    """The token is missing, unknown, expired or revoked."""

    code = "UNAUTHENTICATED"
    http_status = 401


class PermissionDenied(RequestError):
    """The token's roles do not permit the call."""

    code = "PERMISSION_DENIED"
    http_status = 403


REQUEST_ERRORS: dict[str, type[RequestError]] = {kind.code: kind for kind in RequestError.__subclasses__()}
"""Error classes by the name of their gRPC status."""


class Stopped(EdgeflowError):
    """A long run was stopped before its end; the message says how to continue it."""


class WorkerError(EdgeflowError):
    """The worker process failed or violated the protocol."""


def how_to_install(extra: str = "") -> str:
    """The command that installs the server with an extra: from a clone, since no package index has edgeflow."""
    server = f"'.[{extra}]'" if extra else "."
    return f"in a clone of edgeflow: pip install ./client {server}"
