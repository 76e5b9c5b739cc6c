"""Status names and class names back to typed errors."""

from __future__ import annotations

from edgeflow.errors import (
    Aborted,
    AddressError,
    AlreadyExists,
    CheckpointError,
    ConfigError,
    DataLoss,
    DeadlineExceeded,
    DependencyError,
    EdgeflowError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    RequestError,
    ResourceExhausted,
    StartError,
    Unauthenticated,
    Unavailable,
)

_REQUEST_ERRORS: dict[str, type[RequestError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        DataLoss,
        OutOfRange,
        FailedPrecondition,
        NotFound,
        AlreadyExists,
        ResourceExhausted,
        Unavailable,
        Aborted,
        DeadlineExceeded,
        Unauthenticated,
        PermissionDenied,
    )
}
_START_ERRORS = {kind.__name__: kind for kind in (ConfigError, CheckpointError, DependencyError, AddressError)}


def error_of_code(code: str, text: str, reason: str = "", field: str = "") -> EdgeflowError:
    """The error whose gRPC status has this name; a plain EdgeflowError (INTERNAL) for any other.

    text: as another error had it, so the field is named in it already.
    """
    kind = _REQUEST_ERRORS.get(code)
    if kind is None:
        return EdgeflowError(text)
    error = kind(text, reason=reason)
    error.field = field
    return error


def start_error(kind: str, text: str) -> StartError:
    """Why a worker could not start, by the class name that it sent."""
    return _START_ERRORS.get(kind, StartError)(text)
