"""A device that runs behind the host, in virtual time, and robots that live on the same clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from edgeflow.contract import PassTimes
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.executor import Stamp, Ticket
from edgeflow.engine.policy import TokenPolicy
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.scheduler.forecast import ForecastSession
from edgeflow.scheduler.plan import Pass, Ref, Segment
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock

STAGING_NS = 200_000
ENQUEUEING_NS = 100_000
LAUNCH_NS = STAGING_NS + ENQUEUEING_NS
MS = 1_000_000
TRUTH = PassTimes(
    stages=7,
    prefill_ns=10 * MS,
    two_prefills_ns=20 * MS,
    packed_ns=12 * MS,
    decode_ns=5 * MS,
    decodes_ns=5 * MS,
    row_ns=MS // 5,
)
SIDE = 8


@dataclass(frozen=True)
class SimulatedStamp:
    """at_ns: when the device reaches it."""

    clock: ManualClock
    recorded_ns: int
    at_ns: int

    @property
    def reached(self) -> bool:
        return self.clock.now_ns() >= self.at_ns

    def wait(self) -> None:
        self.clock.advance_to_ns(self.at_ns)

    def since_ns(self, earlier: Stamp) -> int:
        assert isinstance(earlier, SimulatedStamp)
        assert self.reached and earlier.reached, "an event that was not waited for has no time"
        return self.at_ns - earlier.at_ns


class AsynchronousEngine(PolicyEngine):
    """Launching costs host time; the device runs passes in order, each for the time of its shape. Nothing is computed:
    all tokens are 1.

    verified_in: draws the passes after which a drafted frame is verified; before, each pass verifies one token.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        slots: int,
        clock: ManualClock,
        times: PassTimes = TRUTH,
        *,
        capacity: int = 80,
        verified_in: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, slots, capacity, **options)
        self._verified_in = verified_in or (lambda: policy.K)
        self._settling: dict[Any, int] = {}
        self._passes: Counter[Any] = Counter()
        self.launch_ahead = 1
        self.times = times
        self.clock = clock
        self._free_ns = 0

    def stamp(self) -> Stamp:
        now_ns = self.clock.now_ns()
        return SimulatedStamp(self.clock, now_ns, max(now_ns, self._free_ns))

    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any], *, waits: bool = False) -> Ticket[Ref]:
        self.clock.advance_ns(STAGING_NS)
        started = self.stamp()
        self.clock.advance_ns(ENQUEUEING_NS)
        lasts_ns = self.times.pass_ns(*planned.shape)
        self._free_ns = max(self._free_ns, self.clock.now_ns()) + lasts_ns
        shape = self.contract.shape(planned, prompts, waits=False)
        most = shape.most_samples
        results = torch.ones(shape.segments, 2 if most == 1 else 2 + most, dtype=torch.long)
        if most > 1:
            results[:, 0] = 3
            results[:, 1] = torch.tensor([self._verified(segment) for segment in planned.segments])
        return Ticket(planned=planned, shape=shape, results=results, started=started, done=self.stamp())

    def _verified(self, segment: Segment[Ref]) -> int:
        """Tokens of a segment that this pass verifies."""
        if segment.drafts and segment.stage == 0:
            self._settling[segment.sequence] = self._verified_in()
        self._passes[segment.sequence] += 1
        passes = self._settling.get(segment.sequence)
        return segment.samples if passes is not None and self._passes[segment.sequence] >= passes else 1


@dataclass
class Delivered:
    """What a robot got: (when, age) of each action."""

    actions: list[tuple[int, int]] = field(default_factory=list)

    def _steady(self) -> list[tuple[int, int]]:
        half_ns = self.actions[-1][0] // 2
        return [(at, age) for at, age in self.actions if at > half_ns]

    @property
    def fps(self) -> float:
        (first, _), *_, (last, _) = steady = self._steady()
        return (len(steady) - 1) * 1e9 / (last - first)

    @property
    def age_ns(self) -> float:
        ages = [age for _, age in self._steady()]
        return sum(ages) / len(ages)

    @property
    def worst_age_ns(self) -> int:
        return max(age for _, age in self._steady())


class ClosedLoop:
    """A worker on the simulated device and robots that send a frame each period; period 0: one is always at hand.

    others: what the worker said besides actions. declared_ns: the periods that they declared; 0 = each frame is due.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        robots: Sequence[ForecastSession],
        times: PassTimes = TRUTH,
        *,
        declared_ns: int = 0,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.others: list[Message] = []
        self.delivered = [Delivered() for _ in robots]
        limits = SchedulerLimits(policy.K, len(robots), row_budget=1000, drain_after_ns=2 * MS)
        self.engine = AsynchronousEngine(policy, limits.slots, self.clock, times, **options)
        self.worker = Worker(self.engine, Scheduler(limits), self.clock, self._receive, times=times)
        self._robots = robots
        self._next_ns = [robot.offset_ns for robot in robots]
        self._captured: list[list[int]] = [[] for _ in robots]
        for session, robot in enumerate(robots):
            self.worker.inbox.put(
                OpenSession(
                    session=session,
                    epoch=1,
                    pace=robot.pace,
                    unnorm_key=policy.unnorm_keys[0],
                    patience_ns=robot.patience_ns,
                    period_ns=declared_ns,
                )
            )

    def run(self, actions: int) -> list[Delivered]:
        """Until each robot has so many actions."""
        while min(len(each.actions) for each in self.delivered) < actions:
            self._capture()
            delivered = sum(len(each.actions) for each in self.delivered)
            if not self.worker.step() and delivered == sum(len(each.actions) for each in self.delivered):
                wake_ns = self.worker.wake_at_ns()
                self.clock.advance_to_ns(min(self._next_ns if wake_ns is None else [*self._next_ns, wake_ns]))
        return self.delivered

    def _capture(self) -> None:
        """The newest frame of each robot whose time has come."""
        now_ns = self.clock.now_ns()
        for session, robot in enumerate(self._robots):
            if self._next_ns[session] > now_ns:
                continue
            period_ns = robot.period_ns or 1
            captured_ns = now_ns - (now_ns - self._next_ns[session]) % period_ns
            self._next_ns[session] = captured_ns + period_ns
            self._captured[session].append(captured_ns)
            frame = SubmitFrame(
                session=session,
                epoch=1,
                seq=len(self._captured[session]),
                sizes=[SIDE, SIDE],
                instruction="go",
                payload=bytes(SIDE * SIDE * 3),
                waited_ns=now_ns - captured_ns,
            )
            self.worker.inbox.put(frame)

    def _receive(self, message: Message) -> None:
        if isinstance(message, FrameResult):
            now_ns = self.clock.now_ns()
            age_ns = now_ns - self._captured[message.session][message.seq - 1]
            self.delivered[message.session].actions.append((now_ns, age_ns))
        else:
            self.others.append(message)
