"""Mixed stress test: misbehaving robots beside well-behaved ones, against one service.

    .venv/bin/python -m benchmarks.fuzz.stress --minutes 60 --json FILE

Scenarios are drawn at random from a seed, several at a time; the same seed draws the same ones. None may fail: every
action must equal that of a clean run for the same picture, whoever else is served. Exit code 1 otherwise. A robot that
is rejected for lack of room tries again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import grpc
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from benchmarks.fuzz.bad_frames import connector
from benchmarks.serving import BenchmarkedService, serving
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import pictures
from tests.fuzz.exchange import PICTURES, Answers, Connect, FuzzedStream, NoRoom, clean_run
from tests.fuzz.kinds import HEIGHT, KINDS, OPEN, WIDTH, good_frame

PERIOD_MS = 100  # declared; frames sent sooner wait
AT_ONCE = 4
LEAST_OF_EACH = 10
PATIENCE_S = 60.0
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class World:
    """The context of a scenario: a way to connect, the answers of clean runs, and a random source."""

    connect: Connect
    channel: grpc.aio.Channel
    clean: Answers
    rng: Random

    async def session(self) -> FuzzedStream:
        """An opened stream."""
        conversation = FuzzedStream(self.connect())
        await conversation.open(PERIOD_MS)
        return conversation

    async def right(self, conversation: FuzzedStream, frames: int = 1) -> None:
        """Send good frames, which must get the answers of a clean run."""
        for _ in range(frames):
            picture = self.rng.randrange(PICTURES)
            answer = await conversation.good(picture)
            assert answer == self.clean[picture], f"picture {picture}: {answer}"


async def steady(world: World) -> None:
    """A well-behaved robot."""
    conversation = await world.session()
    await world.right(conversation, 10)
    await conversation.close()


async def mistakes(world: World) -> None:
    """Send bad frames of all kinds between good ones."""
    conversation = await world.session()
    await world.right(conversation)
    for kind in world.rng.choices(list(KINDS.values()), k=8):
        wrong, _ = await conversation.bad(kind, world.rng)
        assert not wrong, wrong
        await world.right(conversation)
    await conversation.close()


async def nonsense(world: World) -> None:
    """Cause more rejections than are allowed."""
    conversation = await world.session()
    for _ in range(101):
        await conversation.robot.send(b"\xff")
    code, _ = await conversation.robot.rest()
    assert code is grpc.StatusCode.ABORTED, code


async def resets(world: World) -> None:
    """Start a new episode before every frame."""
    conversation = await world.session()
    for _ in range(5):
        await conversation.robot.send(pb.ClientMessage(reset=pb.Reset()))
        await world.right(conversation)
    await conversation.close()


async def another_task(world: World) -> None:
    """Change the instruction and change it back."""
    conversation = await world.session()
    for text in ("grasp the blue handle", OPEN.instruction):
        await conversation.robot.send(pb.ClientMessage(reset=pb.Reset(instruction=text)))
        if text != OPEN.instruction:
            await conversation.good(0)
    await world.right(conversation)
    await conversation.close()


async def burst(world: World) -> None:
    """Send many frames at once: each gets one disposition, the newest is acted on."""
    conversation = await world.session()
    frames = [conversation.next(0) for _ in range(30)]
    for frame in frames:
        await conversation.robot.send(pb.ClientMessage(frame=frame))
    await conversation.robot.action(frames[-1].seq)
    await conversation.robot.status(frames[-1].seq)
    counted = Counter(seq for seq, _ in conversation.robot.dispositions())
    assert counted == Counter(frame.seq for frame in frames), counted
    await conversation.close()


async def vanish(world: World) -> None:
    """Disconnect in the middle of a frame."""
    conversation = await world.session()
    await conversation.robot.send(pb.ClientMessage(frame=conversation.next(0)))
    conversation.robot.call.cancel()


async def half_close(world: World) -> None:
    """Close the sending side: the last frame is still answered."""
    conversation = await world.session()
    frame = conversation.next(1)
    await conversation.robot.send(pb.ClientMessage(frame=frame))
    await conversation.robot.call.done_writing()
    assert tuple((await conversation.robot.action(frame.seq)).token_ids) == world.clean[1][0]
    assert (await conversation.robot.rest())[0] is grpc.StatusCode.OK


async def bad_open(world: World) -> None:
    """Open an invalid session."""
    robot = world.connect()
    changes = world.rng.choice([{"model": "other"}, {"instruction": "\a"}, {"control_period_ms": 1}, {"mode": 99}])
    opened = pb.Open()
    opened.CopyFrom(OPEN)
    opened.MergeFrom(pb.Open(**changes))
    await robot.send(pb.ClientMessage(open=opened))
    code, text = await robot.rest()
    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT) and "open." in text, (code, text)


async def too_early(world: World) -> None:
    """Send frames before the session is opened."""
    conversation = FuzzedStream(world.connect())
    for _ in range(3):
        await conversation.robot.send(pb.ClientMessage(frame=conversation.next(0)))
    assert (await conversation.robot.status(3)).reason == "NOT_OPEN"
    await conversation.open(PERIOD_MS)
    await world.right(conversation)
    await conversation.close()


async def bombs(world: World) -> None:
    """Send images that declare more pixels than they contain."""
    conversation = await world.session()
    for seq in range(1, 10):
        frame = conversation.next(0)
        frame.images[1].data = pictures.bomb(pictures.picture(WIDTH, HEIGHT), world.rng)
        await conversation.robot.send(pb.ClientMessage(frame=frame))
        assert (await conversation.robot.status(seq)).code == "INVALID_ARGUMENT"
    await world.right(conversation)
    await conversation.close()


async def single(world: World) -> None:
    """Send one observation, good or bad, by the unary call."""
    call = world.channel.unary_unary(
        f"/{SERVICE}/Act", request_serializer=bytes, response_deserializer=pb.ActResponse.FromString
    )
    request = pb.ActRequest(open=OPEN, frame=good_frame(1, 1, 2))
    request.open.control_period_ms = PERIOD_MS
    try:
        answer = await call(request.SerializeToString(), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise NoRoom from None
        raise
    assert tuple(answer.action.token_ids) == world.clean[2][0]
    request.frame.images[0].data = b"no image"
    try:
        await call(request.SerializeToString(), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), error.code()
    else:
        raise AssertionError("a bad observation was acted on")


async def silence(world: World) -> None:
    """Send nothing for longer than five periods: HOLD, then continue."""
    conversation = await world.session()
    await world.right(conversation)
    await conversation.robot.hold("INGRESS_SILENT")
    await world.right(conversation)
    await conversation.close()


Scenario = Callable[[World], Awaitable[None]]
SCENARIOS: dict[Scenario, int] = {
    steady: 4,
    mistakes: 4,
    nonsense: 1,
    resets: 2,
    another_task: 1,
    burst: 2,
    vanish: 3,
    half_close: 2,
    bad_open: 2,
    too_early: 1,
    bombs: 2,
    single: 2,
    silence: 1,
}


@dataclass(slots=True)
class Tally:
    """Counts of the scenarios run."""

    runs: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """Number of rejections for lack of room."""
    failures: list[str] = field(default_factory=list)


async def robot(world: World, until: float, tally: Tally) -> None:
    """Run one scenario after another until the time is over, beginning with some of each."""
    names = list(SCENARIOS)
    first = names * -(-LEAST_OF_EACH // AT_ONCE)
    while first or time.monotonic() < until:
        scenario = first.pop() if first else world.rng.choices(names, list(SCENARIOS.values()))[0]
        try:
            await asyncio.wait_for(scenario(world), PATIENCE_S)
            tally.runs[scenario.__name__] += 1
        except NoRoom:
            tally.refused += 1
            first.append(scenario)
            await asyncio.sleep(RETRY_S)
        except (AssertionError, asyncio.TimeoutError, grpc.aio.AioRpcError) as error:
            tally.failures.append(f"{scenario.__name__}: {type(error).__name__} {error}"[:500])


async def run(service: BenchmarkedService, minutes: float, seed: int) -> Tally:
    """Run all robots side by side."""
    tally = Tally()
    async with grpc.aio.insecure_channel(service.address) as channel:
        connect = connector(channel)
        clean = await clean_run(connect)
        until = time.monotonic() + minutes * 60
        worlds = [World(connect, channel, clean, Random(f"{seed} {number}")) for number in range(AT_ONCE)]
        await asyncio.gather(*[robot(world, until, tally) for world in worlds])
    return tally


def main() -> int:
    """Run, print and write the results; return the exit code."""
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    facts = machine_facts()
    with serving({}) as service:
        tally = asyncio.run(run(service, arguments.minutes, arguments.seed))
        complaints = service.complaints()
    table = Table("scenario", "runs")
    for name, runs in sorted(tally.runs.items()):
        table.add_row(name, str(runs))
    table_console().print(table)
    for failure in tally.failures[:10] + complaints[:5]:
        print(failure)
    print(f"{len(tally.failures)} failures, {len(complaints)} complaints in the log, no room {tally.refused} times")
    document = {"machine": facts, "minutes": arguments.minutes, "seed": arguments.seed, "runs": tally.runs}
    document |= {"no_room": tally.refused, "failures": tally.failures[:50], "complaints": complaints[:5]}
    keep(arguments.json, document)
    return 1 if tally.failures or complaints else 0


if __name__ == "__main__":
    sys.exit(main())
