"""A service with few descriptors, and strangers whose idle sockets take all that they can."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time

from benchmarks.chaos.resource_faults.patient import SLOWER, Patient, Setting
from benchmarks.chaos.rules import Row, percentile
from benchmarks.chaos.service import ServiceUnderTest, Surroundings

STEP, HIGHEST = 4, 256
SOCKETS = 100  # on each port
ASK_S, PATIENCE_S = 0.05, 1.0
ROUNDED_S, LOGGED_S = 0.002, 0.02  # times in the log
LIMITED = 'ulimit -n "$1"; shift; exec "$@"'


class Strangers:
    """Idle sockets on all ports; those that are closed are replaced."""

    def __init__(self, service: ServiceUnderTest) -> None:
        self._ports = [service.port(name) for name in ("grpc", "http", "health")]
        self._open: list[socket.socket] = []
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Strangers:
        self._fill()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        for each in self._open:
            each.close()

    def _run(self) -> None:
        while not self._leaving.wait(1.0):
            self._fill()

    def _fill(self) -> None:
        self._open = [each for each in self._open if not _closed(each)]
        for port in self._ports:
            there = sum(_port(each) == port for each in self._open)
            for _ in range(SOCKETS - there):
                with contextlib.suppress(OSError):
                    self._open.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))


class Prober:
    """Asks /ready on the health port again and again. ready: wall times of question and answer where it was."""

    def __init__(self, port: int) -> None:
        self.ready: list[tuple[float, float]] = []
        self.asked = 0
        self.unanswered = 0
        self._port = port
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._leaving.wait(ASK_S):
            asked = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
            self.asked += 1
            at = time.time()
            try:
                asked.request("GET", "/ready")
                if asked.getresponse().status == http.HTTPStatus.OK:
                    self.ready.append((at, time.time()))
            except (OSError, http.client.HTTPException):
                self.unanswered += 1
            finally:
                asked.close()


def descriptors(setting: Setting) -> list[Row]:
    """Workers are killed with all ports full of strangers, which leave no descriptors for another reserve."""
    limit = _least(setting.limit)
    with _limited(limit) as patient:
        service, cold_s = patient.service, patient.cold_start_s()
        with Strangers(service), Prober(service.port("health")) as prober:
            took = [_killed(patient, 2 * cold_s) for _ in range(setting.trials)]
        wrong = sum(all(_without_worker(service, at) for at in times) for times in prober.ready)
        strange = patient.strange_holds("WORKER_LOST")
        code = patient.exit_code()
    setting.samples["descriptors"] = {"acting_s": took, "cold_s": cold_s}
    return [
        Row("descriptors with which it starts", limit, "", setting.limit),
        Row("workers killed", len(took)),
        Row("cold start of a worker", cold_s, "s"),
        Row("acting again, median", percentile(took, 50), "s", SLOWER * cold_s),
        Row("probes of /ready without an answer", 100 * prober.unanswered / max(prober.asked, 1), "%"),
        Row("ready without a worker", wrong, "", 0),
        Row("HOLDs other than WORKER_LOST", strange, "", 0),
        Row("exit code after SIGTERM", code, "", 0),
    ]


def _killed(patient: Patient, patience_s: float) -> float:
    """Seconds until the robot acts again, once there is a reserve or none is to be expected."""
    with contextlib.suppress(TimeoutError):
        patient.service.wait_idle_reserve(patience_s)
    return patient.killed_now()


def _least(wanted: int) -> int:
    """The least number of descriptors, from this one on, with which the service starts."""
    for limit in range(wanted, HIGHEST, STEP):
        with contextlib.suppress(RuntimeError, TimeoutError), _limited(limit):
            return limit
    raise RuntimeError(f"the service does not start with {HIGHEST} descriptors")


def _limited(limit: int) -> Patient:
    return Patient(Surroundings(under=["sh", "-c", LIMITED, "sh", str(limit)]))


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
