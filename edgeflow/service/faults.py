"""Status names and class names back to typed errors."""

from __future__ import annotations

from edgeflow.errors import (
    REQUEST_ERRORS,
    AddressError,
    CheckpointError,
    ConfigError,
    DependencyError,
    EdgeflowError,
    StartError,
)

_START_ERRORS = {kind.__name__: kind for kind in (ConfigError, CheckpointError, DependencyError, AddressError)}


def error_of_code(code: str, text: str, reason: str = "", field: str = "") -> EdgeflowError:
    """The error whose gRPC status has this name; a plain EdgeflowError (INTERNAL) for any other.

    text: as another error had it, so the field is named in it already.
    """
    kind = REQUEST_ERRORS.get(code)
    if kind is None:
        return EdgeflowError(text)
    error = kind(text, reason=reason)
    error.field = field
    return error


def start_error(kind: str, text: str) -> StartError:
    """Why a worker could not start, by the class name that it sent."""
    return _START_ERRORS.get(kind, StartError)(text)
