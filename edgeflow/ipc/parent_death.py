"""Ends a process when control, its parent, dies. It imports nothing slow, so that it works before torch is loaded."""

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
LEAVE_S: Final = 1.0  # for the pass in flight once control is gone
_PR_SET_PDEATHSIG: Final = 1
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def bind_to_parent(parent: int, channel: int, stacks: int | None) -> None:
    """End this process when control dies, whatever it is doing, and leave signals of the terminal to control.

    parent: process id of control. channel: descriptor of the socket to it. stacks: descriptor to which STACKS_SIGNAL
    and crashes write the stack of every thread: functions, files and lines, no values. Core dumps, which would contain
    frames, are disabled.
    """
    follow_parent(parent)
    if stacks is None:
        faulthandler.enable()
    else:
        os.set_blocking(stacks, False)
        faulthandler.enable(stacks)
        faulthandler.register(STACKS_SIGNAL, stacks)
    threading.Thread(target=_leave_after, args=(channel,), name="parent-death", daemon=True).start()


def follow_parent(parent: int) -> None:
    """The same without a thread, for a process that forks. It works on Linux, where the kernel ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # control died before prctl took effect: the kernel sends no signal then


def _leave_after(channel: int) -> None:
    """Exit after the socket closes. The kernel's signal is Linux only, and follows only control's main thread."""
    poll = select.poll()
    poll.register(channel, getattr(select, "POLLRDHUP", 0))
    while not any(events & _GONE for _, events in poll.poll()):
        pass
    time.sleep(LEAVE_S)
    os._exit(0)
