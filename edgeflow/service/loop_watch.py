"""A thread that sees whether the front's event loop still turns: a blocked loop cannot say so itself."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

CHECK_S = 0.1
STALL_S = 2.0
GIVE_UP_S = 10.0  # robots hold for long; whoever started the service can only start another


class LoopWatch:
    """Counts time in its own steps, so that a process that was stopped and goes on accuses nobody.

    Make it on the loop's thread. All calls come from the watching thread: `stalled` with what the loop is doing
    (functions, files, lines) after STALL_S, `resumed` when it turns again, `give_up` after GIVE_UP_S.
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
        """The loop turns."""
        self._beats += 1

    def stop(self) -> None:
        """Returns once the thread has ended; without effect when it was not started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        seen, late_s, told = self._beats, 0.0, False
        while not self._stop.wait(CHECK_S):
            late_s = late_s + CHECK_S if seen == self._beats else 0.0
            seen = self._beats
            if told and late_s == 0.0:
                told = False
                self._resumed()
            elif not told and late_s >= STALL_S:
                told = True
                self._stalled(self._stack())
            if late_s >= GIVE_UP_S:
                self._give_up()
                return

    def _stack(self) -> list[str]:
        frame = sys._current_frames().get(self._loop_thread)
        return [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)][-30:]
