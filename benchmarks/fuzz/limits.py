"""Cost of hostile sizes: the front's memory after bombs and oversized messages, and odd image sizes.

    .venv/bin/python -m benchmarks.fuzz.limits --count 1000 --json FILE

Exit code 1 when a target is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from random import Random

import grpc
from rich.progress import track
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from benchmarks.fuzz.bad_frames import connector
from benchmarks.serving import BenchmarkedService, serving
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import pictures, wire
from tests.fuzz.exchange import BAD_A_STREAM, Connect, FuzzedStream
from tests.fuzz.kinds import HEIGHT, PERIOD_MS, WIDTH, good_frame, message
from tests.service.harness import WireRobot

LIMIT_BYTES = 4 << 20
WARM_UP = 100
AT_ONCE = 8  # concurrent streams that send oversized messages
MAX_PIXELS = 4_000_000
SIDES = (*range(1, 10), *range(63, 66), *range(223, 226), *range(4095, 4098))
Attack = Callable[[Connect, Random, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class AttackRow:
    """One attack."""

    attack: str
    sent: int
    wrong: int
    """Number of wrong answers."""
    growth_mib: float
    """Growth of control's memory in MiB after warm-up."""
    bar_mib: float

    @property
    def met(self) -> bool:
        return self.wrong == 0 and self.growth_mib <= self.bar_mib


async def bombs(connect: Connect, rng: Random, count: int) -> int:
    """Send small images that declare large sizes or need much memory."""
    wrong = 0
    for begin in range(0, count, BAD_A_STREAM):
        conversation = FuzzedStream(connect())
        await conversation.open()
        for seq in range(1, min(BAD_A_STREAM, count - begin) + 1):
            images = [pb.Image(data=pictures.bomb(pictures.picture(WIDTH, HEIGHT), rng)) for _ in range(2)]
            await conversation.robot.send(message(good_frame(seq, seq), images=images))
            wrong += (await conversation.robot.status(seq)).code != "INVALID_ARGUMENT"
        await conversation.close()
    return wrong


async def oversized(connect: Connect, _: Random, count: int) -> int:
    """Send messages one byte above the limit; each ends its stream."""
    data = wire.sized(100, bytes(LIMIT_BYTES))[: LIMIT_BYTES + 1]
    codes: list[grpc.StatusCode] = []

    async def one() -> None:
        robot = connect()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await robot.send(data)
        codes.append((await robot.rest())[0])

    for begin in range(0, count, AT_ONCE):
        await asyncio.gather(*[one() for _ in range(min(AT_ONCE, count - begin))])
    return sum(code is not grpc.StatusCode.RESOURCE_EXHAUSTED for code in codes)


async def sizes(connect: Connect, _: Random, count: int) -> int:
    """Open sessions with all pairs of odd sizes; each is served, or rejected at the opening."""
    wrong = 0
    for width, height in list(itertools.product(SIDES, SIDES))[:count]:
        wrong += not await _size_is_handled(connect(), width, height)
    return wrong


async def _size_is_handled(robot: WireRobot, width: int, height: int) -> bool:
    camera = pb.Camera(name="camera", width=width, height=height, format=pb.IMAGE_FORMAT_JPEG)
    opened = pb.Open(cameras=[camera], instruction="grasp the red handle", control_period_ms=PERIOD_MS)
    await robot.send(pb.ClientMessage(open=opened))
    if width * height > MAX_PIXELS:
        code, text = await robot.rest()
        return code is grpc.StatusCode.INVALID_ARGUMENT and text.startswith("open.cameras[0]: ")
    await robot.until(lambda answer: answer.WhichOneof("kind") == "opened")
    picture = pictures.picture.__wrapped__(width, height)
    await robot.send(pb.ClientMessage(frame=pb.Frame(seq=1, stamp_ns=1, images=[pb.Image(data=picture)])))
    action = await robot.action(1)
    await robot.send(pb.ClientMessage(close=pb.Close()))
    await robot.rest()
    return action.command == pb.COMMAND_ACT


async def run(service: BenchmarkedService, count: int, seed: int) -> list[AttackRow]:
    """Run all attacks, one after another."""
    plan: list[tuple[str, Attack, int, int, float]] = [
        ("bombs", bombs, WARM_UP, count, 8.0),
        ("oversized messages", oversized, WARM_UP, count, 1.0),
        ("odd sizes", sizes, len(SIDES) ** 2, len(SIDES) ** 2, 8.0),
    ]
    rows = []
    async with grpc.aio.insecure_channel(service.address) as channel:
        for name, attack, warm_up, number, bar_mib in track(plan, "attacks"):
            await attack(connector(channel), Random(seed), warm_up)
            before = service.resident_bytes()["front"]
            wrong = await attack(connector(channel), Random(seed + 1), number)
            growth_mib = (service.resident_bytes()["front"] - before) / (1 << 20)
            rows.append(AttackRow(name, number, wrong, round(growth_mib, 2), bar_mib))
    return rows


def main() -> int:
    """Run, print and write the results; return the exit code."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="bombs, and oversized messages")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    facts = machine_facts()
    with serving({}) as service:
        rows = asyncio.run(run(service, arguments.count, arguments.seed))
        complaints = service.complaints()
    table = Table("attack", "sent", "wrong", "growth MiB", "bar MiB", "")
    for row in rows:
        figures = [str(figure) for figure in (row.sent, row.wrong, row.growth_mib, row.bar_mib)]
        table.add_row(row.attack, *figures, "met" if row.met else "not met")
    table_console().print(table)
    document = {"machine": facts, "complaints": complaints[:5], "attacks": [asdict(row) for row in rows]}
    keep(arguments.json, document)
    return 0 if all(row.met for row in rows) and not complaints else 1


if __name__ == "__main__":
    sys.exit(main())
