"""Tasks that must live as long as the service: the end of one is a fault, never silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

CreateTask: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Creates a named task that must live until it is cancelled."""


class Vitals:
    """Creates tasks and watches them. ended: called with a task's name and its exception, unless it was cancelled."""

    def __init__(self, ended: Callable[[str, BaseException | None], None]) -> None:
        self._ended = ended

    def create(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Create a task that must live until it is cancelled."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._ended(task.get_name(), task.exception())
