"""Runs a load test, from the first connection to the last answer, in one process and one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.connection.credentials import Credentials, channel
from edgeflow_client.connection.wire import Opened
from edgeflow_client.errors import EdgeflowError, InvalidArgument, RequestError, StartError
from edgeflow_client.loadtest.measure import step_of, step_result
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.plan import Fixed, LoadPlan, Pattern, Ramp
from edgeflow_client.loadtest.robots.robot import LoadRobot
from edgeflow_client.reasons import Reason

TICK_S = 0.1
CLOSE_S = 1.0
LAG_PERIOD_S = 0.02
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # as many connections as channels
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 16 << 20),
]


@dataclass(slots=True, kw_only=True)
class Measurement:
    """The raw record of a run."""

    plan: LoadPlan
    ledgers: list[Ledger]
    begin_ns: int
    end_ns: int = 0
    """Frames due, and actions received, from begin_ns to end_ns count."""
    interrupted: bool = False
    lags_ns: list[int] = field(default_factory=list)
    """Delay of the event loop, sampled every LAG_PERIOD_S."""
    opened: list[Opened | None] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """`opened` and `refusals` have one entry per robot."""


Tick = Callable[[Measurement, int], None]


class LoadRun:
    """Drives the robots of a plan. tick: called every TICK_S with the run so far and the time."""

    def __init__(
        self,
        plan: LoadPlan,
        frames: Sequence[tuple[bytes, ...]],
        credentials: Credentials | None = None,
        tick: Tick | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._frames = frames
        self._credentials = credentials
        self._tick = tick
        self._clock = clock or MonotonicClock()
        self._random = Random(plan.seed)
        self._robots: list[LoadRobot] = []
        self._lives: list[asyncio.Task[None]] = []
        self._paces: list[asyncio.Task[None]] = []

    async def measure(self, stop: asyncio.Event) -> Measurement:
        """Run until the plan's end or `stop`; StartError when no robot was admitted."""
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(self._connect()) for _ in range(self._plan.connections)]
            for number in range(self._plan.robots):
                connection = connections[number % len(connections)]
                random = Random(self._random.random())
                robot = LoadRobot(
                    number, self._plan, self._frames, connection=connection, clock=self._clock, random=random
                )
                self._robots.append(robot)
            try:
                await self._begin(stop)
                return await self._run(stop)
            finally:
                await self._end()

    async def _begin(self, stop: asyncio.Event) -> None:
        """Let every robot open its session at a random moment, and send from then on."""
        share_s = self._plan.ramp_up_s / len(self._robots)
        begins = [share_s * (number + self._random.random()) for number in range(len(self._robots))]
        for robot, begin_s in zip(self._robots, begins, strict=True):
            self._lives.append(asyncio.create_task(self._live(robot, begin_s)))
        opened = asyncio.gather(*(robot.opened.wait() for robot in self._robots))
        await _first_of(opened, stop)
        if not any(robot.admitted for robot in self._robots):
            error = next((robot.refused for robot in self._robots if robot.refused), None)
            text = f"{error.code}: {error.text}" if error else "interrupted before a robot was admitted"
            raise StartError(f"{self._plan.address}: {text}{_advice(error)}")

    async def _live(self, robot: LoadRobot, begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        stream = asyncio.create_task(robot.run())
        try:
            await robot.opened.wait()
            self._pace(robot, self._warm_up_pattern, self._clock.now_ns())
            await asyncio.shield(stream)
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

    @property
    def _warm_up_pattern(self) -> Pattern:
        pattern = self._plan.pattern
        return Fixed(pattern.first_hz) if isinstance(pattern, Ramp) else pattern

    def _pace(self, robot: LoadRobot, pattern: Pattern, begin_ns: int) -> None:
        self._paces.append(asyncio.create_task(robot.pace(pattern, begin_ns)))

    async def _run(self, stop: asyncio.Event) -> Measurement:
        run = Measurement(
            plan=self._plan, ledgers=[robot.ledger for robot in self._robots], begin_ns=self._clock.now_ns()
        )
        run.begin_ns += round(self._plan.warm_up_s * 1e9)
        probe = asyncio.create_task(self._probe(run))
        try:
            await self._wait_until(lambda now_ns: now_ns >= run.begin_ns, run, stop)
            await self._measure(run, stop)
        finally:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
        run.end_ns = max(self._clock.now_ns(), run.begin_ns + 1)
        run.interrupted = stop.is_set()
        run.opened = [robot.admitted for robot in self._robots]
        refused = [robot.refused for robot in self._robots]
        run.refusals = [f"{error.code}: {error.text}" if error else "" for error in refused]
        await self._halt()
        settled = asyncio.gather(*(robot.drained() for robot in self._robots))
        await _bounded(settled, self._plan.grace_s)
        for ledger in run.ledgers:
            ledger.close()
        return run

    async def _measure(self, run: Measurement, stop: asyncio.Event) -> None:
        pattern, count = self._plan.pattern, self._plan.count
        if isinstance(pattern, Ramp):
            await self._halt()
            spread_ns = round(1e9 / pattern.first_hz / len(self._robots))
            for number, robot in enumerate(self._robots):
                self._pace(robot, pattern, run.begin_ns + number * spread_ns)
            await self._climb(pattern, run, stop)
        elif count is not None:
            run.begin_ns = self._clock.now_ns()
            for robot in self._robots:
                robot.limit(run.begin_ns, count)
            await self._wait_until(lambda _: all(pace.done() for pace in self._paces), run, stop)
        else:
            end_ns = run.begin_ns + round(self._plan.duration_s * 1e9)
            await self._wait_until(lambda now_ns: now_ns >= end_ns, run, stop)

    async def _climb(self, pattern: Ramp, run: Measurement, stop: asyncio.Event) -> None:
        """Run one step after another, until the service falls behind."""
        for index in range(len(pattern.rates_hz)):
            step = step_of(pattern, index, run.begin_ns)
            await self._wait_until(lambda now_ns, end=step.end_ns: now_ns >= end, run, stop)  # type: ignore[misc]
            if stop.is_set() or not step_result(step, run.ledgers).followed:
                return

    async def _wait_until(self, reached: Callable[[int], bool], run: Measurement, stop: asyncio.Event) -> None:
        while not stop.is_set() and not reached(now_ns := self._clock.now_ns()):
            if self._tick is not None:
                self._tick(run, now_ns)
            await asyncio.sleep(TICK_S)

    async def _probe(self, run: Measurement) -> None:
        period_ns = round(LAG_PERIOD_S * 1e9)
        while True:
            due_ns = self._clock.now_ns() + period_ns
            await asyncio.sleep(LAG_PERIOD_S)
            now_ns = self._clock.now_ns()
            if now_ns >= run.begin_ns:
                run.lags_ns.append(max(now_ns - due_ns, 0))

    async def _halt(self) -> None:
        for robot in self._robots:
            robot.halt()
        await _bounded(asyncio.gather(*self._paces), CLOSE_S)
        self._paces.clear()

    async def _end(self) -> None:
        """Close all streams within CLOSE_S, then cancel what is left."""
        await self._halt()
        await _bounded(asyncio.gather(*(robot.stop() for robot in self._robots)), CLOSE_S)
        await _bounded(asyncio.gather(*self._lives), CLOSE_S)

    def _connect(self) -> Any:
        try:
            return channel(self._plan.address, self._credentials, CHANNEL_OPTIONS, aio=True)
        except InvalidArgument as error:
            raise StartError(error.text) from None


def _advice(error: EdgeflowError | None) -> str:
    """The options that answer a rejection, after it; or nothing."""
    if isinstance(error, RequestError) and error.reason in (Reason.INPUT_MISSING, Reason.INPUT_SIZE):
        return "; say what the robots send: --cameras NAME:WxH,... --state NAME:SIZE,..."
    return ""


async def _bounded(work: asyncio.Future[list[None]], seconds: float) -> None:
    """Wait for work, cancel what is not done in time, and raise its failures."""
    await asyncio.wait({work}, timeout=seconds)
    work.cancel()
    try:
        await work
    except asyncio.CancelledError:
        return


async def _first_of(work: asyncio.Future[Any], stop: asyncio.Event) -> None:
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for each in (work, stopped):
        each.cancel()
    await asyncio.gather(work, stopped, return_exceptions=True)
