"""Exceptions that nothing expects: they must end no thread of the SDK, and must not be lost either."""

from __future__ import annotations

import contextlib
import logging

from edgeflow_client.errors import EdgeflowError

_log = logging.getLogger("edgeflow_client")


class Incidents:
    """Logs unexpected exceptions with their traceback; the same one again and again only once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._last = ""

    def unexpected(self, error: Exception) -> EdgeflowError:
        """Log the exception, and return the error that stands for it."""
        name = type(error).__name__
        with contextlib.suppress(Exception):  # a handler or a text that raises
            said = f"{name}: {error}"
            if said != self._last:
                self._last = said
                _log.error("unexpected %s in %s", name, self._where, exc_info=error)
        return EdgeflowError(f"unexpected {name} in {self._where}; the log has its traceback")
