"""The bond of a process to control, its parent. It imports nothing slow: it is in place before torch is loaded."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import select
import signal
import sys
import threading
import time
from typing import Final

STACKS_SIGNAL: Final = signal.SIGUSR1
LEAVE_S: Final = 1.0  # what a pass under way may take once control has gone
_PR_SET_PDEATHSIG: Final = 1
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def bind_to_parent(parent: int, channel: int, stacks: int | None) -> None:
    """Control's death ends this process, whatever it is doing; its signals are control's to handle.

    parent: process id of control. channel: descriptor of the socket to it. stacks: where STACKS_SIGNAL and crashes
    write what every thread was doing: functions, files and lines, no values. Cores, which hold frames, are not dumped.
    """
    follow_parent(parent)
    if stacks is None:
        faulthandler.enable()
    else:
        os.set_blocking(stacks, False)
        faulthandler.enable(stacks)
        faulthandler.register(STACKS_SIGNAL, stacks)
    threading.Thread(target=_leave_after, args=(channel,), name="leash", daemon=True).start()


def follow_parent(parent: int) -> None:
    """The same without a thread, for a process that forks: on Linux, where the kernel ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it went before the line above


def _leave_after(channel: int) -> None:
    """The kernel's signal follows control's main thread; this follows the socket, and works on any system."""
    poll = select.poll()
    poll.register(channel, getattr(select, "POLLRDHUP", 0))
    while not any(events & _GONE for _, events in poll.poll()):
        pass
    time.sleep(LEAVE_S)
    os._exit(0)
