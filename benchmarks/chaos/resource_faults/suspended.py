"""Processes that are suspended, in every state: worker, reserve, starting worker, children, fork server, control."""

from __future__ import annotations

import contextlib
import http
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.chaos.process_facts import alive, wait_for
from benchmarks.chaos.resource_faults.killable_service import SLOWER, FaultOptions, KillableService
from benchmarks.chaos.robots import http_status
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.chaos.service import START_S

NOTICED_S = 2.5  # a process that shows no progress (timing.worker_progress_ms and a margin)
BACKOFF_S = 0.5  # before another process is started
LEAST_START_S, START_TIMES = 5.0, 4  # a start may take this long, or this many times the slowest before
WARMING_S = 0.15  # after the loss of a worker the reserve has begun
CONTROL_S = 1.5  # too short to be replaced by whatever watches the service
BACK_S = 1.0
HTTP_S = 5.0
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def suspended(setting: FaultOptions) -> list[BoundedFigure]:
    """Suspend each once, with a robot that acts."""
    with KillableService() as killable:
        cold_s, again_s = killable.service.cold_start_s(), SLOWER * killable.killed()
        cold = SLOWER * cold_s
        start_s = max(LEAST_START_S, START_TIMES * cold_s)
        took = {
            "worker": (_worker(killable), NOTICED_S + again_s),
            "reserve, worker killed": (_reserve(killable), NOTICED_S + BACKOFF_S + cold),
            "worker while it warms up": (_warming(killable), start_s + NOTICED_S + BACKOFF_S + cold),
        }
        lost = len(killable.service.events("worker_lost"))
        before = len(killable.fleet.reasons())
        rows = [*_child(killable, "gateway", cold), *_child(killable, "chat", cold), *_fork_server(killable, cold)]
        rows.append(BoundedFigure("HOLDs by suspended children", len(killable.fleet.reasons()) - before, "", 0))
        rows += _control(killable)
        rows.append(
            BoundedFigure(
                "workers lost by suspended children or control",
                len(killable.service.events("worker_lost")) - lost,
                "",
                0,
            )
        )
        rows.append(BoundedFigure("HOLDs for strange reasons", killable.strange_holds("WORKER_LOST", "SILENCE"), "", 0))
        rows.append(BoundedFigure("exit code after SIGTERM", killable.exit_code(), "", 0))
    setting.samples["suspended"] = {"cold_s": cold_s, **{name: value for name, (value, _) in took.items()}}
    acting = [
        BoundedFigure(f"acting again after SIGSTOP, {name}", value, "s", bar) for name, (value, bar) in took.items()
    ]
    return [BoundedFigure("cold start of a worker", cold_s, "s"), *acting, *rows]


def _worker(killable: KillableService) -> float:
    killable.service.wait_idle_reserve()
    killable.steady()
    at_ns = time.monotonic_ns()
    with _stopped(killable.service.worker()):
        return killable.recovered(at_ns)


def _reserve(killable: KillableService) -> float:
    killable.service.wait_idle_reserve()
    killable.steady()
    with _stopped(killable.service.reserve()):
        return killable.killed_at_once()


def _warming(killable: KillableService) -> float:
    killable.service.wait_idle_reserve()
    killable.steady()
    reserve, at, at_ns = killable.service.reserve(), time.time(), time.monotonic_ns()
    os.kill(killable.service.worker(), signal.SIGKILL)
    killable.service.wait_event("state", at, START_S, state="degraded")
    time.sleep(WARMING_S)
    with _stopped(reserve):
        return killable.recovered(at_ns)


@contextmanager
def _stopped(pid: int | None) -> Iterator[None]:
    """A process that is suspended while the context lasts."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _child(killable: KillableService, role: str, cold_s: float) -> list[BoundedFigure]:
    """Suspend a child; it is replaced, and chat is answered again."""
    pid, at = killable.service.child(role), time.time()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return _replaced(killable, role, pid, at, cold_s)


def _fork_server(killable: KillableService, cold_s: float) -> list[BoundedFigure]:
    """Suspend the fork server and kill a child, which cannot be replaced before the server is."""
    pid, gateway, at = killable.service.fork_server(), killable.service.child("gateway"), time.time()
    assert pid is not None and gateway is not None
    os.kill(pid, signal.SIGSTOP)
    os.kill(gateway, signal.SIGKILL)
    return _replaced(killable, "forks", pid, at, cold_s)


def _replaced(killable: KillableService, role: str, pid: int, at: float, cold_s: float) -> list[BoundedFigure]:
    """A suspended process is lost, and chat is answered again."""
    lost_at = killable.service.wait_event("child_lost", at, START_S, child=role)
    answered_s = wait_for(lambda: _chat_is_answered(killable), START_S, 0.05)
    return [
        BoundedFigure(f"{role} suspended to noticed", lost_at - at, "s", NOTICED_S),
        BoundedFigure(
            f"{role} noticed to chat answered", float("nan") if answered_s is None else answered_s, "s", cold_s
        ),
        BoundedFigure(f"{role}: suspended process still there", float(alive(pid)), "", 0),
    ]


def _chat_is_answered(killable: KillableService) -> bool:
    body = json.dumps(QUESTION).encode()
    status = http_status(killable.service.port("http"), "POST", "/v1/chat/completions", body, HTTP_S)
    return status == http.HTTPStatus.OK


def _control(killable: KillableService) -> list[BoundedFigure]:
    """Suspend control, too briefly for it to be replaced; the robot holds and continues with the same worker."""
    killable.steady()
    worker = killable.service.worker()
    at_ns = time.monotonic_ns()
    killable.service.signal(signal.SIGSTOP)
    time.sleep(CONTROL_S)
    killable.service.signal(signal.SIGCONT)
    resumed_ns = time.monotonic_ns()
    held = killable.fleet.wait("hold", at_ns)[0]
    acting_ns = max(killable.fleet.wait("act", max(held.at_ns, resumed_ns))[0].at_ns - resumed_ns, 0)
    return [
        BoundedFigure("control suspended to HOLD", (held.at_ns - at_ns) / 1e9, "s", CONTROL_S),
        BoundedFigure("control resumed to acting", acting_ns / 1e9, "s", BACK_S),
        BoundedFigure("workers replaced by it", float(killable.service.worker() != worker), "", 0),
    ]
