"""Errors shared by several rooms, and the conversion of status names and class names to typed errors."""

from __future__ import annotations

from edgeflow.contract import CaptureError
from edgeflow_client.errors import (
    REQUEST_ERRORS,
    RETRY_AFTER_MS,
    AddressError,
    CheckpointError,
    ConfigError,
    DependencyError,
    EdgeflowError,
    NotFound,
    StartError,
    Unavailable,
)
from edgeflow_client.reasons import Reason

_KINDS = (ConfigError, CheckpointError, DependencyError, AddressError, CaptureError)
_START_ERRORS: dict[str, type[StartError]] = {kind.__name__: kind for kind in _KINDS}


def error_of_code(code: str, text: str, reason: str = "", field: str = "") -> EdgeflowError:
    """The error with this gRPC status name; a plain EdgeflowError (INTERNAL) for unknown names.

    text: of another error, so it already names the field.
    """
    kind = REQUEST_ERRORS.get(code)
    if kind is None:
        return EdgeflowError(text)
    error = kind(text, reason=reason)
    error.field = field
    return error


def no_worker(text: str = "no worker is ready") -> Unavailable:
    """The error of a request that needs a worker, or the chat front, while there is none."""
    return Unavailable(text, reason=Reason.NO_WORKER, retry_after_ms=RETRY_AFTER_MS)


def no_session(number: int) -> NotFound:
    """The error of a request about a session that is not open, or no more."""
    return NotFound(f"{number} is not open", field="session")


def start_error(kind: str, text: str) -> StartError:
    """The error of a worker that could not start, by the class name it sent."""
    return _START_ERRORS.get(kind, StartError)(text)
