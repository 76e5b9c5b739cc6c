"""Round trip of an openpi client: two raw images of 224x224, a state of 8 numbers, a policy that takes no time.

    .venv/bin/python -m benchmarks.front_ends round-trip --client-python .clients/openpi/bin/python --peer PATH

--client-python: an environment with openpi's own client, as scripts/clients makes it; without it the client is that of
the `websockets` library. --peer: a program that serves openpi's own server with a policy of no time on the port that is
its only argument; rounds alternate between both. It runs under --client-python.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.process_facts import wait_for
from benchmarks.chaos.report import ScenarioReport, progress
from benchmarks.chaos.robots import KillableProcess
from benchmarks.chaos.rules import BoundedFigure, percentile, spread
from benchmarks.command import options
from benchmarks.front_ends.openpi_robot import DistinctObservations, OpenpiLink, rows, stub_service

MORE_MS = 1.8  # than openpi's own server
LOOP = Path(__file__).parent / "openpi_loop.py"
START_S, ROUND_S = 30.0, 120.0
OURS, PEER = "this service", "openpi's server"


def main() -> int:
    """Run the section; return the exit code."""
    made = options(__doc__)
    made.add_argument("--count", type=int, default=2000, help="requests to each server")
    made.add_argument("--rounds", type=int, default=4)
    made.add_argument("--warm-up", type=int, default=50, help="requests of each round that are not counted")
    made.add_argument("--client-python", type=Path, help="a Python with openpi-client")
    made.add_argument("--peer", type=Path, help="a program that serves openpi's own server; needs --client-python")
    arguments = made.parse_args()
    if arguments.peer and not arguments.client_python:
        made.error("--peer needs --client-python")
    report, took_ms = ScenarioReport("round-trip", arguments), {OURS: list[float]()}
    each = max(arguments.count // arguments.rounds, 1)
    with contextlib.ExitStack() as stack:
        ports = {OURS: stack.enter_context(stub_service(1, {}, period_ms=20, looks=False)).port("robots")}
        if arguments.peer:
            ports[PEER] = stack.enter_context(_peer(arguments.client_python, arguments.peer))
            took_ms[PEER] = []
        with progress() as bar:
            for _ in bar.track(range(arguments.rounds), description="rounds"):
                for name, port in ports.items():
                    took_ms[name] += _round(arguments.client_python, port, arguments.warm_up, each)
    bar_ms = percentile(took_ms[PEER], 50) + MORE_MS if PEER in took_ms else None
    figures = [row for name, values in took_ms.items() for row in spread(f"round trip, {name}", values, "ms")]
    if bar_ms is not None:
        figures.append(
            BoundedFigure("round trip, p50, both servers by turns", percentile(took_ms[OURS], 50), "ms", bar_ms)
        )
    return report.finish(figures, took_ms=took_ms)


def _round(python: Path | None, port: int, warm_up: int, count: int) -> list[float]:
    """Milliseconds of each request of one connection, of a process."""
    if python is None:
        with KillableProcess(own_loop, port, warm_up, count) as client:
            found: list[float] = client.receive(ROUND_S)  # type: ignore[assignment]
            return found
    command = [str(python), str(LOOP), str(port), str(warm_up), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ROUND_S, check=False)
    if done.returncode:
        raise RuntimeError(f"openpi's client failed: {done.stderr[-1000:]}")
    measured: list[float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def own_loop(link: object, port: int, warm_up: int, count: int) -> None:
    """Work of a process: the same loop with the client of the websockets library."""
    socket, scene, took_ms = OpenpiLink(port), DistinctObservations(0), list[float]()
    for _ in range(warm_up + count):
        start_s = time.perf_counter()
        reply = socket.ask(scene.message())
        found = rows(reply)
        took_ms.append(1e3 * (time.perf_counter() - start_s))
        if found is None:
            raise RuntimeError(f"no action: {reply!r}")
    link.send(took_ms[warm_up:])  # type: ignore[attr-defined]
    socket.close()


@contextlib.contextmanager
def _peer(python: Path, program: Path) -> Iterator[int]:
    """The port of a server that runs while the context lasts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [str(python.absolute()), program.name, str(port)]
    server = subprocess.Popen(command, cwd=program.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if wait_for(lambda: _listens(port), START_S, 0.05) is None:
            raise TimeoutError(f"{program} does not listen within {START_S:g} s")
        yield port
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
