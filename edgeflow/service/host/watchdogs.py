"""Watchdogs of control: for tasks whose end is a fault of the service, and for its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from edgeflow.service.observe.log import EventLog, stack_of

CHECK_S = 0.1
STALL_S = 2.0
GIVE_UP_S = 10.0  # robots hold already; only a new process helps


class VitalTask:
    """A task that runs until `stop`. If it ends earlier, it is logged as `task_ended`, and `ended` gets the reason."""

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
        self._work.close()  # it may have been cancelled before its first step
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not print it
        if self._stopping:
            return
        error = self._error
        stack = stack_of(error) if error is not None else []
        self._log.event("task_ended", task=self._name, error=type(error).__name__ if error else "", stack=stack)
        self._ended(f"the task {self._name} ended")


class LoopWatch:
    """Watches for missing beats of the loop. It counts its own steps, so that a suspended process raises no alarm.

    Create it on the loop's thread. Callbacks come from the watching thread: `stalled` with the loop's stack (functions,
    files, lines) after STALL_S, `resumed` once the loop runs again, `give_up` after GIVE_UP_S.
    """

    def __init__(
        self, stalled: Callable[[list[str]], None], resumed: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self._stalled = stalled
        self._resumed = resumed
        self._give_up = give_up
        self._loop_thread = threading.get_ident()
        self._beats = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat(self) -> None:
        """Report that the loop runs."""
        self._beats += 1

    def stop(self) -> None:
        """Stop the thread and wait for its end; no effect if it was not started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        seen, late_s, reported = self._beats, 0.0, False
        while not self._stop.wait(CHECK_S):
            late_s = late_s + CHECK_S if seen == self._beats else 0.0
            seen = self._beats
            if reported and late_s == 0.0:
                reported = False
                self._call(self._resumed)
            elif not reported and late_s >= STALL_S:
                reported = True
                self._call(lambda: self._stalled(self._stack()))
            if late_s >= GIVE_UP_S:
                self._give_up()
                return

    @staticmethod
    def _call(callback: Callable[[], None]) -> None:
        """Call back; errors of the callback do not end the watch."""
        with contextlib.suppress(Exception):
            callback()

    def _stack(self) -> list[str]:
        frame = sys._current_frames().get(self._loop_thread)
        return [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)][-30:]
