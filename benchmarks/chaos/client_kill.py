"""Kills robots in the middle of a frame while two others act at 20 Hz.

    .venv/bin/python -m benchmarks.chaos client-kill --trials 100 --json FILE

All slots are taken when a robot is killed; the slot counts as free once another robot has it. Blocks of killed robots
alternate with blocks of robots that do the same and close their session; the ages of the two others' actions are
compared between these blocks, so that neither drift of the machine nor the coming and going of robots is in the
difference. Frames of the killed robots are 921,600 bytes each; half of the kills come within 3 ms of the start of a
write, the others anywhere in the period.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc

from benchmarks.chaos.interference import Spans, ages_ms, bystanders
from benchmarks.chaos.process_facts import held, threads, wait_for
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import (
    LARGE,
    OVERCOMMIT,
    SMALL,
    Channel,
    KillableProcess,
    RawRobot,
    opening,
    told_to_stop,
)
from benchmarks.chaos.rules import BoundedFigure, percentile, rise_percent, spread
from benchmarks.chaos.service import ServiceUnderTest
from edgeflow_client.rpc import control_pb2 as pb

OTHERS, OTHERS_HZ, VICTIM_HZ = 2, 20.0, 10.0
BLOCK = 5  # robots
KILLED, LEFT = "killed", "left"
WARM_UP = 5
MID_WRITE_S = 0.003
SETTLE_S = 20.0
READINGS = 10
CONFIG = {"max_sessions": OTHERS + 1, **OVERCOMMIT}


@dataclass(slots=True)
class ClientKillTimes:
    """Raw measurements."""

    freed_ms: list[float] = field(default_factory=list)
    blocks: Spans = field(default_factory=Spans)
    """The blocks of killed robots, and of those that left."""


def main() -> int:
    """Run the scenario; return the exit code."""
    arguments = parser(__doc__, 100).parse_args()
    report = ScenarioReport("client-kill", arguments)
    generator = random.Random(arguments.seed)
    with (
        ServiceUnderTest(CONFIG) as service,
        KillableProcess(bystanders, service.address, OTHERS, OTHERS_HZ) as others,
    ):
        others.receive()
        _blocks(service, generator, WARM_UP, ClientKillTimes(), "warm-up")
        before = _settled(service)
        names = {"before": threads(service.pid)}
        measured = ClientKillTimes()
        _blocks(service, generator, arguments.trials, measured, "robots killed or leaving")
        leaked = _leaks(service, before)
        names["after"] = threads(service.pid)
        tracks = others.finish()
        others.process.join()
        wait_for(lambda: service.metrics()["edgeflow_sessions"] == 0, SETTLE_S, 0.2)
        last = service.metrics()
    killed, polite = (ages_ms(tracks, measured.blocks.all, kind) for kind in (KILLED, LEFT))
    rows = [
        BoundedFigure("robots killed", len(measured.freed_ms)),
        *spread("kill to slot taken by another", measured.freed_ms, "ms", p99=250, max=1000),
        BoundedFigure("age of the others' actions, p99, robots leave", percentile(polite, 99), "ms"),
        BoundedFigure("age of the others' actions, p99, robots killed", percentile(killed, 99), "ms"),
        BoundedFigure("rise of the others' p99", rise_percent(killed, polite, 99), "%", 10),
        *leaked,
        BoundedFigure("sessions opened and not closed", last["edgeflow_sessions_opened_total"] - _closed(last), "", 0),
        BoundedFigure("sessions that the service counts as open", last["edgeflow_sessions"], "", 0),
    ]
    blocks = [(each.start_ns, each.end_ns, each.kind == KILLED) for each in measured.blocks.all]
    return report.finish(
        rows, freed_ms=measured.freed_ms, blocks=blocks, ages_ms={"killed": killed, "polite": polite}, threads=names
    )


def _closed(metrics: dict[str, float]) -> float:
    return metrics.get("edgeflow_sessions_closed_total", 0.0)


def _blocks(service: ServiceUnderTest, generator: random.Random, robots: int, into: ClientKillTimes, what: str) -> None:
    starts = range(0, robots, BLOCK)
    turns = [kill for at in starts for kill in (True, False) for _ in range(min(BLOCK, robots - at))]
    with progress() as bar:
        for kill in bar.track(turns, description=what):
            with into.blocks.during(KILLED if kill else LEFT):
                freed_s = _one(service.address, generator, kill)
            if kill:
                into.freed_ms.append(freed_s * 1e3)


def _one(address: str, generator: random.Random, kill: bool) -> float:
    """Start a robot, let it act, and end it; return the seconds until another has its slot."""
    with KillableProcess(_victim, address) as victim:
        victim.receive()
        victim.link.send("write")
        victim.receive()
        within_s = MID_WRITE_S if generator.random() < 0.5 else 1 / VICTIM_HZ
        time.sleep(generator.uniform(0, within_s))
        if not kill:
            victim.link.send("stop")
            victim.process.join()
        went = time.monotonic()
        victim.kill()
        _take_slot(address)
        freed_s = time.monotonic() - went
        victim.close()
    return freed_s


def _take_slot(address: str) -> None:
    """Open a session as soon as one is free, and close it."""
    channel = Channel(address)
    deadline = time.monotonic() + SETTLE_S
    while True:
        done = threading.Event()
        call = channel.stream(_until(done))
        try:
            next(call)
            break
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        finally:
            done.set()
    for _ in call:
        pass
    channel.channel.close()


def _until(done: threading.Event) -> Iterator[pb.ClientMessage]:
    yield opening(SMALL, VICTIM_HZ)
    done.wait()


def _settled(service: ServiceUnderTest) -> dict[str, float]:
    """The resources of front and worker when only the other robots are connected: the least of several readings, since
    requests are running.
    """
    wait_for(lambda: service.metrics()["edgeflow_sessions"] == OTHERS, SETTLE_S, 0.1)
    readings = []
    for _ in range(READINGS):
        readings.append(_holds(service))
        time.sleep(0.05)
    return {key: min(reading[key] for reading in readings) for key in readings[0]}


def _holds(service: ServiceUnderTest) -> dict[str, float]:
    metrics, front, worker = service.metrics(), held(service.pid), held(service.worker())
    return {
        "front descriptors": front.descriptors,
        "front threads": front.threads - metrics["edgeflow_pool_threads"],  # bounded, fills by chance
        "front tasks": metrics["edgeflow_tasks"],
        "worker descriptors": worker.descriptors,
        "worker threads": worker.threads,
    }


def _leaks(service: ServiceUnderTest, before: dict[str, float]) -> list[BoundedFigure]:
    wait_for(lambda: all(_settled(service)[key] <= value for key, value in before.items()), SETTLE_S, 0.2)
    after = _settled(service)
    return [BoundedFigure(f"{key} after minus before", after[key] - value, "", 0) for key, value in before.items()]


def _victim(link: Connection, address: str) -> None:
    """Work of a robot's process: report acting; on "write", report when the next write begins; on "stop", leave."""
    armed, said = threading.Event(), threading.Event()

    def before_write(seq: int) -> None:  # noqa: ARG001
        if armed.is_set() and not said.is_set():
            said.set()
            link.send("writing")

    robot = RawRobot(address, VICTIM_HZ, LARGE, before_write)
    robot.wait_opened()
    robot.acted.wait()
    link.send("acting")
    link.recv()
    armed.set()
    while not told_to_stop(link, 1.0):
        pass
    robot.leave()
