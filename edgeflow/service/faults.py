"""Conversion of status names and class names to typed errors."""

from __future__ import annotations

from edgeflow_client.errors import (
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
    """The error with this gRPC status name; a plain EdgeflowError (INTERNAL) for unknown names.

    text: of another error, so it already names the field.
    """
    kind = REQUEST_ERRORS.get(code)
    if kind is None:
        return EdgeflowError(text)
    error = kind(text, reason=reason)
    error.field = field
    return error


def start_error(kind: str, text: str) -> StartError:
    """The error of a worker that could not start, by the class name it sent."""
    return _START_ERRORS.get(kind, StartError)(text)
