"""Tasks that must live: the end of one that nobody stopped is a fault of the service, never silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from edgeflow.service.observe.log import EventLog, stack_of


class VitalTask:
    """A task that runs until `stop`. If it ends before, it is logged as `task_ended` and `ended` gets the reason."""

    def __init__(
        self, name: str, work: Coroutine[Any, Any, object], log: EventLog, ended: Callable[[str], None]
    ) -> None:
        self._name = name
        self._log = log
        self._ended = ended
        self._stopping = False
        self._error: BaseException | None = None
        self._work = work
        self._task = asyncio.create_task(self._run(), name=name)
        self._task.add_done_callback(self._on_done)

    async def stop(self) -> None:
        """Cancel it and wait for its end."""
        self._stopping = True
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._work
        except BaseException as error:
            self._error = error
            raise

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._work.close()  # if it was cancelled before it began
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not print it
        if self._stopping:
            return
        error = self._error
        stack = stack_of(error) if error is not None else []
        self._log.event("task_ended", task=self._name, error=type(error).__name__ if error else "", stack=stack)
        self._ended(f"the task {self._name} ended")
