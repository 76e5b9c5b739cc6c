"""Sends every kind of bad frame many times over a real socket, each followed by a good frame, to the embedded policy.

    .venv/bin/python -m benchmarks.fuzz.bad_frames --count 1000 --json FILE

Each must be rejected in band with its own status; the good frame after it must be answered with the tokens and values
of a clean run. Exit code 1 otherwise.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass

import grpc
import numpy as np
from rich.progress import Progress
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import BenchmarkedService, serving
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz.exchange import Connect, KindReport, clean_run, run_kind
from tests.fuzz.kinds import KINDS, PERIOD_MS
from tests.service.harness import WireRobot

ANSWERED_MS = 2 * PERIOD_MS  # the next good frame
REPLY_MS = 5.0


@dataclass(frozen=True, slots=True)
class BadFrameRow:
    """One kind of bad frame."""

    kind: str
    sent: int
    wrong: int
    """Number of wrong answers."""
    reply_ms_p50: float
    reply_ms_p99: float
    next_action_ms_p99: float
    examples: tuple[str, ...]
    """Some of them."""


def connector(channel: grpc.aio.Channel) -> Connect:
    """A function that opens streams accepting arbitrary bytes."""
    stream = channel.stream_stream(
        f"/{SERVICE}/Stream", request_serializer=bytes, response_deserializer=pb.ServerMessage.FromString
    )
    return lambda: WireRobot(stream)


async def run(service: BenchmarkedService, names: list[str], count: int, seed: int) -> list[BadFrameRow]:
    """Run all kinds, one after another."""
    async with grpc.aio.insecure_channel(service.address) as channel:
        connect = connector(channel)
        clean = await clean_run(connect)
        rows = []
        with Progress() as progress:
            task = progress.add_task("bad frames", total=len(names))
            for name in names:
                progress.update(task, description=name)
                rows.append(_row(name, await run_kind(connect, name, count, seed, clean)))
                progress.advance(task)
    return rows


def _row(name: str, report: KindReport) -> BadFrameRow:
    reply_ms, action_ms = np.array(report.reply_ns) / 1e6, np.array(report.acted_ns) / 1e6
    figures = (np.percentile(reply_ms, 50), np.percentile(reply_ms, 99), np.percentile(action_ms, 99))
    rounded = [round(float(figure), 3) for figure in figures]
    return BadFrameRow(name, report.sent, len(report.problems), *rounded, tuple(report.problems[:3]))


def show(rows: list[BadFrameRow]) -> None:
    """Print the table."""
    table = Table("kind", "sent", "wrong", "reply p50 ms", "reply p99 ms", "next action p99 ms")
    for row in rows:
        figures = (row.reply_ms_p50, row.reply_ms_p99, row.next_action_ms_p99)
        table.add_row(row.kind, str(row.sent), str(row.wrong), *[f"{figure:.2f}" for figure in figures])
    table_console().print(table)


def main() -> int:
    """Run, print and write the results; return the exit code."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="bad frames of each kind")
    parser.add_argument("--kind", choices=list(KINDS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    facts = machine_facts()
    with serving({}) as service:
        rows = asyncio.run(run(service, arguments.kind or list(KINDS), arguments.count, arguments.seed))
        complaints = service.complaints()
    show(rows)
    wrong = sum(row.wrong for row in rows)
    slow = [row.kind for row in rows if row.reply_ms_p99 > REPLY_MS or row.next_action_ms_p99 > ANSWERED_MS]
    print(f"{wrong} wrong answers, {len(complaints)} complaints in the log, slower than the target: {slow or 'none'}")
    summary = {"wrong": wrong, "complaints": complaints[:5], "slow": slow, "seed": arguments.seed}
    document = {"machine": facts, **summary, "kinds": [asdict(row) for row in rows]}
    keep(arguments.json, document)
    return 1 if wrong or complaints else 0


if __name__ == "__main__":
    sys.exit(main())
