"""Entry of the child processes that read strangers' bytes: the gateway and the chat front, started by control."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from edgeflow.ipc.leash import bind_to_front
from edgeflow.service.children.roles import CHAT, GATEWAY, ChildStart

NICE = 5
OOM_SCORE = 1000  # the first to go when the machine is out of memory


def run() -> NoReturn:
    """Run the process from start to exit."""
    parser = argparse.ArgumentParser(description="edgeflow child process; started by `edgeflow serve`")
    parser.add_argument("--role", choices=(GATEWAY, CHAT), required=True)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to control")
    parser.add_argument("--listener", type=int, required=True, help="inherited listening socket")
    parser.add_argument("--chat-path", default="", help="path of the chat front's socket")
    parser.add_argument("--config", type=Path, required=True, help="the resolved configuration")
    parser.add_argument("--memory-mb", type=int, required=True, help="limit of this process's memory, in MiB")
    parser.add_argument("--every-cpu", action="store_true", help="run on other CPUs than control, too")
    parser.add_argument("--spare", action="store_true", help="load at idle priority, then wait for control")
    parser.add_argument("--parent", type=int, required=True, help="process id of control")
    arguments = parser.parse_args()
    bind_to_front(arguments.parent, arguments.fd, None)
    be_expendable(arguments.memory_mb, every_cpu=arguments.every_cpu)
    start = ChildStart(
        role=arguments.role,
        control=socket.socket(fileno=arguments.fd),
        listener=socket.socket(fileno=arguments.listener),
        chat_path=arguments.chat_path,
        config=arguments.config,
    )
    if arguments.spare:
        _load_idly(start)
    from edgeflow.service.host.process import new_loop  # the leash comes first

    loop = new_loop()
    asyncio.set_event_loop(loop)
    exit_code = loop.run_until_complete(_load(start.role)(start))
    os._exit(exit_code)


def _load_idly(start: ChildStart) -> None:
    """Load in a thread that runs only when no other needs the processor, then say so with a beat."""

    def load() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        _load(start.role)

    loading = threading.Thread(target=load, name="load")
    loading.start()
    loading.join()
    from edgeflow.ipc.packets import Packets
    from edgeflow.service.children.messages import CODING, Beat

    Packets(start.control, CODING).send(Beat())


def _load(role: str) -> Callable[[ChildStart], Coroutine[Any, Any, int]]:
    """Load the role's modules; returns what serves."""
    if role == GATEWAY:
        from edgeflow.service.gateway import gateway

        return gateway.serve
    from edgeflow.service.chat import front

    return front.serve


def be_expendable(memory_mb: int, *, every_cpu: bool) -> None:
    """Give way to robots: low priority, bounded memory, and the first to be killed without memory.

    Control's real-time policy is given up, under which a nice level means nothing; so are its CPUs with `every_cpu`.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    if every_cpu:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel leaves out those that are not permitted
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = memory_mb << 20
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
