"""The service as a program: event loop, signals, ready file, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edgeflow.config.service import ServiceConfig
from edgeflow.service.app import Announce, Service
from edgeflow.service.host.process import (
    clear_ready_file,
    keep_freed_memory,
    new_loop,
    no_core_dumps,
    stop_signal,
    write_ready_file,
)
from edgeflow.service.host.spawn import reaping_orphans
from edgeflow.service.observe.log import EventLog, Sink
from edgeflow.service.sessions.observers import SessionObserver
from edgeflow.service.worker.process import Launch
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import WorkerError


def run_service(
    config: ServiceConfig,
    announce: Announce,
    *,
    ready_file: Path | None = None,
    launch: Launch | None = None,
    log: Sink | None = None,
    observers: Sequence[SessionObserver] = (),
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code.

    Raises StartError if the service cannot start, WorkerError if it cannot continue.
    announce: called with every phase and the progress of the warm-up; "ready" carries the bound addresses.
    ready_file: written as {"grpc": port, "http": port, "health": port, "robots": port} once robots can connect.
    launch: starts a worker; default: a process running edgeflow.worker.start.
    log: receives the lines of the log; default: standard error, which then must not block.
    observers: see every session, after metrics and log.
    """
    if ready_file is not None:
        clear_ready_file(ready_file)
    no_core_dumps()
    keep_freed_memory()
    events = EventLog(MonotonicClock(), log or sys.stderr)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    orphans = loop.create_task(reaping_orphans()) if os.getpid() == 1 else None
    try:
        return loop.run_until_complete(
            _serve(lambda: Service(config, announce, events, launch, observers=observers), ready_file)
        )
    finally:
        if orphans is not None:
            orphans.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(make: Callable[[], Service], ready_file: Path | None) -> int:
    service = make()
    stop = stop_signal()
    start = asyncio.create_task(service.start())
    stopped = asyncio.create_task(stop.wait())
    faulted = asyncio.create_task(service.faulted.wait())
    await asyncio.wait({start, stopped, faulted}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        stopped.cancel()
        faulted.cancel()
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        return _exit_code(service)
    try:
        start.result()
    except BaseException:
        stopped.cancel()
        faulted.cancel()
        raise
    try:
        if ready_file is not None:
            status = service.status
            write_ready_file(
                ready_file,
                grpc=status.grpc_port,
                http=status.http_port,
                health=status.health_port,
                robots=status.robots_port,
            )
        await asyncio.wait({stopped, faulted}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        faulted.cancel()
        await service.stop()
    return _exit_code(service)


def _exit_code(service: Service) -> int:
    if service.fault:
        raise WorkerError(service.fault)
    return 0
