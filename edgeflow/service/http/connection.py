"""An HTTP connection that can be ended at once, and ends by itself once nobody reads its last answer."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from edgeflow.service.http.answers import ABORT

LINGER_S = 30.0  # for a client to read an answer that is complete, once the connection is closed


class Connection(H11Protocol):
    """The library's connection with an end; requests find it under ABORT."""

    _linger: asyncio.TimerHandle | None = None

    @property
    def answering(self) -> bool:
        """True until the answer has left this process."""
        answered = self.cycle is None or self.cycle.response_complete
        return not answered or bool(self.transport.get_write_buffer_size())

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {ABORT: transport.abort}

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """A connection that was closed ends, whether or not its last answer was read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._end_soon()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, whether or not its last answer was read."""
        super().timeout_keep_alive_handler()
        self._end_soon()

    def _end_soon(self) -> None:
        if self._linger is None:
            self._linger = self.loop.call_later(LINGER_S, self.transport.abort)
