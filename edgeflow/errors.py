"""Every failure a user can meet, as one tree; each class knows its gRPC status and its HTTP code.

EdgeflowError
├── StartError                 the service or a command cannot start (exit code 2)
│   ├── ConfigError            configuration file or flags
│   ├── CheckpointError        model directory missing, truncated, foreign
│   ├── DependencyError        a library or a system package is missing
│   └── AddressError           port busy, address not bindable
├── RequestError               something a client sent; told in band, the session goes on
│   ├── InvalidArgument · DataLoss · OutOfRange · FailedPrecondition
│   ├── NotFound · AlreadyExists · ResourceExhausted · Unavailable · Aborted · DeadlineExceeded
│   └── Unauthenticated · PermissionDenied
└── WorkerError                the worker process failed
"""

from __future__ import annotations

from typing import ClassVar

RETRY_AFTER_MS = 1000  # the wait suggested where trying again may help


class EdgeflowError(Exception):
    """Base of all errors. `code` is a gRPC status name, `http_status` the HTTP twin."""

    code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500

    @property
    def text(self) -> str:
        """One line for a person; never holds secrets, payloads or exception text of libraries."""
        return str(self)


class StartError(EdgeflowError):
    """A command cannot start; the message says what to do. Exit code 2."""


class ConfigError(StartError):
    """Configuration file or flags are wrong; names the key and the limit."""


class CheckpointError(StartError):
    """A model directory is missing, truncated or foreign; names the file or tensor."""


class DependencyError(StartError):
    """A library or system package is missing; says how to install it."""


class AddressError(StartError):
    """An address cannot be bound."""


class RequestError(EdgeflowError):
    """Something a client sent is refused.

    field: the message field at fault, dotted (`frame.images[0].data`), or "".
    reason: a short constant for programs (`IMAGE_WRONG_SIZE`); the status name if not given.
    retry_after_ms: when trying again makes sense, else None.
    """

    code = "INVALID_ARGUMENT"
    http_status = 400

    def __init__(self, message: str, *, field: str = "", reason: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.reason = reason or self.code
        self.retry_after_ms = retry_after_ms


class InvalidArgument(RequestError):
    """Unparsable, wrong shape, size, format or text; NaN or infinity."""


class DataLoss(RequestError):
    """Checksum mismatch or truncated payload."""

    code = "DATA_LOSS"


class OutOfRange(RequestError):
    """Duplicate, old or future sequence number or stamp."""

    code = "OUT_OF_RANGE"


class FailedPrecondition(RequestError):
    """The message is valid, the session's state forbids it (frame before open, before re-arm)."""

    code = "FAILED_PRECONDITION"


class NotFound(RequestError):
    """Unknown model alias."""

    code = "NOT_FOUND"
    http_status = 404


class AlreadyExists(RequestError):
    """The session is already open."""

    code = "ALREADY_EXISTS"
    http_status = 409


class ResourceExhausted(RequestError):
    """A limit on sessions, rate or size."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 429


class Unavailable(RequestError):
    """Starting, draining, or no worker at the moment."""

    code = "UNAVAILABLE"
    http_status = 503


class Aborted(RequestError):
    """The session is ended because of too many refused frames."""

    code = "ABORTED"
    http_status = 409


class DeadlineExceeded(RequestError):
    """Silent for too long, or no answer in time."""

    code = "DEADLINE_EXCEEDED"
    http_status = 504


class Unauthenticated(RequestError):
    """No token, or one that is unknown, expired or revoked."""

    code = "UNAUTHENTICATED"
    http_status = 401


class PermissionDenied(RequestError):
    """The token's roles do not allow this."""

    code = "PERMISSION_DENIED"
    http_status = 403


REQUEST_ERRORS: dict[str, type[RequestError]] = {kind.code: kind for kind in RequestError.__subclasses__()}
"""By the name of their gRPC status."""


class WorkerError(EdgeflowError):
    """The worker process failed or answered what it must not."""
