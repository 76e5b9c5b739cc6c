"""A service with few descriptors, and strangers whose idle sockets take all that they can."""

from __future__ import annotations

import contextlib
import http
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.chaos.process_facts import repeated
from benchmarks.chaos.resource_faults.killable_service import SLOWER, FaultOptions, KillableService
from benchmarks.chaos.robots import http_status
from benchmarks.chaos.rules import BoundedFigure, percentile
from benchmarks.chaos.service import ServiceUnderTest, Surroundings

STEP, HIGHEST = 4, 256
SOCKETS = 100  # on each port
ASK_S, REFILL_S, PATIENCE_S = 0.05, 1.0, 1.0
ROUNDED_S, LOGGED_S = 0.002, 0.02  # times in the log
LIMITED = 'ulimit -n "$1"; shift; exec "$@"'


@contextmanager
def strangers(service: ServiceUnderTest) -> Iterator[None]:
    """Idle sockets on all ports; those that are closed are replaced."""
    ports, held = [service.port(name) for name in ("grpc", "http", "health")], list[socket.socket]()

    def fill() -> None:
        held[:] = [each for each in held if not _closed(each)]
        for port in ports:
            there = sum(_port(each) == port for each in held)
            for _ in range(SOCKETS - there):
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))

    fill()
    with repeated(fill, REFILL_S):
        yield
    for each in held:
        each.close()


@dataclass(slots=True)
class Prober:
    """Asks /ready on the health port."""

    port: int
    ready: list[tuple[float, float]] = field(default_factory=list)
    """Wall times of question and answer for each answer that said ready."""
    asked: int = 0
    unanswered: int = 0

    def ask(self) -> None:
        """Ask once."""
        at = time.time()
        status = http_status(self.port, "GET", "/ready", None, PATIENCE_S)
        self.asked += 1
        self.unanswered += not status
        if status == http.HTTPStatus.OK:
            self.ready.append((at, time.time()))


def descriptors(setting: FaultOptions) -> list[BoundedFigure]:
    """Workers are killed with all ports full of strangers, which leave no descriptors for another reserve."""
    limit = _least(setting.limit)
    with _limited(limit) as killable:
        service, cold_s = killable.service, killable.service.cold_start_s()
        prober = Prober(service.port("health"))
        with strangers(service), repeated(prober.ask, ASK_S):
            took = [_killed(killable, 2 * cold_s) for _ in range(setting.trials)]
        wrong = sum(all(_without_worker(service, at) for at in times) for times in prober.ready)
        strange = killable.strange_holds("WORKER_LOST")
        code = killable.exit_code()
    setting.samples["descriptors"] = {"acting_s": took, "cold_s": cold_s}
    return [
        BoundedFigure("descriptors with which it starts", limit, "", setting.limit),
        BoundedFigure("workers killed", len(took)),
        BoundedFigure("cold start of a worker", cold_s, "s"),
        BoundedFigure("acting again, median", percentile(took, 50), "s", SLOWER * cold_s),
        BoundedFigure("probes of /ready without an answer", 100 * prober.unanswered / max(prober.asked, 1), "%"),
        BoundedFigure("ready without a worker", wrong, "", 0),
        BoundedFigure("HOLDs other than WORKER_LOST", strange, "", 0),
        BoundedFigure("exit code after SIGTERM", code, "", 0),
    ]


def _killed(killable: KillableService, patience_s: float) -> float:
    """Seconds until the robot acts again; the worker is killed once there is a reserve or none is expected."""
    with contextlib.suppress(TimeoutError):
        killable.service.wait_idle_reserve(patience_s)
    return killable.killed_now()


def _least(wanted: int) -> int:
    """The least number of descriptors, from this one on, with which the service starts."""
    for limit in range(wanted, HIGHEST, STEP):
        with contextlib.suppress(RuntimeError, TimeoutError), _limited(limit):
            return limit
    raise RuntimeError(f"the service does not start with {HIGHEST} descriptors")


def _limited(limit: int) -> KillableService:
    return KillableService(Surroundings(under=["sh", "-c", LIMITED, "sh", str(limit)]))


def _without_worker(service: ServiceUnderTest, at: float) -> bool:
    """True if the log says that there was no worker then, nor soon after: a change is in force before it is logged."""
    states = service.events("state")
    before = [[each["state"] for each in states if each["time"] < when] for when in (at - ROUNDED_S, at + LOGGED_S)]
    return all(known and known[-1] == "degraded" for known in before)


def _port(sock: socket.socket) -> int:
    try:
        port: int = sock.getpeername()[1]
    except OSError:
        return 0
    return port


def _closed(sock: socket.socket) -> bool:
    try:
        gone = not sock.recv(1 << 12, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        gone = True
    if gone:
        sock.close()
    return gone
