"""Entry of the fork server: it loads the children's modules once and forks each child, ready within milliseconds.

It reads only control's messages, and has one thread and no event loop. It reports the ends of its children to control.
They die with it, and it dies with control. The children that serve public requests get a low priority and are killed
first if memory is short. The robots' process is not, and neither is the server, from which it inherits both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

from edgeflow.ipc.packets import DescriptorsLackingError, Packets, close_all
from edgeflow.ipc.parent_death import bind_to_parent, follow_parent
from edgeflow.service.children.start import (
    CHAT,
    FORK_CODING,
    GATEWAY,
    ROBOTS,
    ChildStart,
    Ended,
    Fork,
    Forked,
    ForkMessage,
    Kill,
    NotForked,
)
from edgeflow.service.host.process import new_loop
from edgeflow.service.host.spawn import how_it_ended

NAME = "ef-forks"
NICE = 5
OOM_SCORE = 1000  # killed first when the machine is out of memory
_PR_SET_NAME = 15
Serve = Callable[[ChildStart], Coroutine[Any, Any, int]]


def run() -> NoReturn:
    """Run the process from start to exit."""
    parser = argparse.ArgumentParser(description="edgeflow's server of child processes; started by `edgeflow serve`")
    parser.add_argument("--roles", nargs="+", choices=(GATEWAY, ROBOTS, CHAT), required=True)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to control")
    parser.add_argument("--config", type=Path, required=True, help="the resolved configuration")
    parser.add_argument("--every-cpu", action="store_true", help="run on other CPUs than control, too")
    parser.add_argument("--parent", type=int, required=True, help="process id of control")
    arguments = parser.parse_args()
    follow_parent(arguments.parent)
    name_process(NAME)
    be_ordinary(every_cpu=arguments.every_cpu)
    served = _load_all(arguments.roles)
    gc.collect()
    gc.freeze()  # otherwise a child's first collection would touch, and so copy, all shared pages
    ForkServer(socket.socket(fileno=arguments.fd), arguments.config, served).run()


def _load_all(roles: Sequence[str]) -> dict[str, Serve]:
    """Load the modules of all roles in a thread of low priority; returns the main function of each role."""
    served: dict[str, Serve] = {}

    def load() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # only this thread
        served.update((role, _load(role)) for role in roles)

    loading = threading.Thread(target=load)
    loading.start()
    loading.join()
    if len(served) < len(roles):
        os._exit(1)  # the thread has printed why
    return served


def _load(role: str) -> Serve:
    """Load a role's modules; returns its main function."""
    if role == ROBOTS:
        from edgeflow.service.frontends import robots

        return robots.serve
    if role == GATEWAY:
        from edgeflow.service.gateway import gateway

        return gateway.serve
    from edgeflow.service.chat import front

    return front.serve


class ForkServer:
    """Forks children at control's request."""

    def __init__(self, control: socket.socket, config: Path, served: dict[str, Serve]) -> None:
        self._packets: Packets[ForkMessage] = Packets(control, FORK_CODING)
        self._config = config
        self._served = served
        self._running: set[int] = set()
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # SIGCHLD writes to it and wakes `poll`

    def run(self) -> NoReturn:
        """Serve until control is gone."""
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        for each in (self._packets.fileno(), self._woken):
            poll.register(each, select.POLLIN)
        while True:
            poll.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 1024)
            self._reap()
            self._serve()

    def _serve(self) -> None:
        try:
            while (found := self._packets.receive()) is not None:
                self._handle(*found)
        except DescriptorsLackingError:
            self._packets.send(NotForked("no free descriptors"))
        except EOFError:
            os._exit(0)

    def _handle(self, message: ForkMessage, descriptors: list[int]) -> None:
        try:
            match message:
                case Fork():
                    self._packets.send(self._fork(message, descriptors))
                case Kill() if message.pid in self._running:  # not reaped yet, so that its number was not reused
                    os.kill(message.pid, signal.SIGKILL)
        finally:
            close_all(descriptors)

    def _fork(self, message: Fork, descriptors: Sequence[int]) -> ForkMessage:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            return NotForked(os.strerror(error.errno or 0))
        if pid == 0:
            self._become(message, *descriptors, server=server)
        self._running.add(pid)
        return Forked(pid)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._running.remove(pid)
                self._packets.send(Ended(pid, how_it_ended(status)))

    def _become(self, message: Fork, control: int, listener: int, *, server: int) -> NoReturn:
        """Run the child, after the fork."""
        code = 1
        try:
            self._leave()
            name_process(f"ef-{message.role}")
            if message.role != ROBOTS:
                be_expendable()
            bind_to_parent(server, control, None)
            limit_memory(message.memory_mb)
            start = ChildStart(
                role=message.role,
                control=socket.socket(fileno=control),
                listener=socket.socket(fileno=listener),
                chat_path=message.chat_path,
                config=self._config,
            )
            loop = new_loop()
            asyncio.set_event_loop(loop)
            code = loop.run_until_complete(self._served[message.role](start))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _leave(self) -> None:
        """Release the server's signal handlers and descriptors."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._packets.close()
        close_all([self._woken, self._wakes])


def be_ordinary(*, every_cpu: bool) -> None:
    """Drop control's real-time policy and, with `every_cpu`, its CPU affinity."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if every_cpu:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel ignores CPUs that are not permitted


def be_expendable() -> None:
    """Take a low priority, and let the kernel kill this process first when memory runs out."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), NICE))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def limit_memory(memory_mb: int) -> None:
    """Limit this process's memory, in MiB."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = memory_mb << 20
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show, at most 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
