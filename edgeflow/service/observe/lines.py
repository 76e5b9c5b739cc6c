"""The interface of the event log, which control writes and child processes reach through their socket."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

from edgeflow.service.observe.log import stack_of


class Log(Protocol):
    """A log of events: one line each, without frames, instructions, credentials, payloads or exception texts."""

    def event(self, name: str, **values: Any) -> None:
        """Write a line; never raises, never waits."""
        ...

    def incident(self, where: str, error: BaseException) -> str:
        """Log the type and origin (not the text) of an unexpected exception; returns an id for the client."""
        ...


def incident_values(where: str, error: BaseException) -> dict[str, Any]:
    """The values of a line about an unexpected exception, with a new incident id."""
    return {
        "incident": secrets.token_hex(6),
        "where": where,
        "error": type(error).__name__,
        "stack": stack_of(error),
    }
