"""Robots in virtual time that execute chunks as other clients do, without edgeflow's SDK.

All run one loop at the policy's rate. A row displaces the tool: it is applied to the commanded pose when it is due.
With `targets`, the rows are resolved against the pose of their frame first, as LeRobot and openpi do with actions that
are relative to the state. Answers are never continued. All frames reach a policy with a history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.closed_loop.field.playback import (
    BLEND_STEPS,
    aggregated,
    blended,
    ensembled,
    similar,
    wants_observation,
)
from edgeflow.ipc.messages import FrameDropped, FrameResult
from edgeflow.lab.demo.simulated.camera import SimulatedCamera
from edgeflow.lab.demo.simulated.client_robot import START_NS, RobotPlan, Send
from edgeflow.lab.demo.simulated.robot import DelayedAnswers, SimulatedBody
from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow.lab.demo.world.robot import state_of
from edgeflow_client.actions import resolve, resolve_rows
from edgeflow_client.pose import Pose, Vector, from_rotvec, multiply

REFILL_NS: Final = 500_000_000  # LeRobot's remaining playback at which the next chunk is requested
OPEN_LOOP_ROWS: Final = 8  # that openpi's DROID client executes of a chunk


@dataclass(frozen=True, slots=True)
class FieldFrame:
    """A frame, as its client remembers it."""

    captured_ns: int
    pose: Pose


class FieldRobot:
    """The parts that all clients share: frames, rows and the loop.

    targets: rows become target poses when they arrive.
    """

    late = late_played = 0  # of continued chunks, which these clients do not have

    def __init__(
        self,
        body: SimulatedBody,
        camera: SimulatedCamera,
        answers: DelayedAnswers,
        send: Send,
        plan: RobotPlan,
        *,
        targets: bool = False,
    ) -> None:
        self._body, self._camera, self._answers, self._send, self._plan = body, camera, answers, send, plan
        self._targets = targets
        self._gripper = 6 if targets else plan.schema.names.index("gripper")
        self._frames: dict[int, FieldFrame] = {}
        self._unplayed: FrameResult | None = None  # the newest answer, until the first row after it is executed
        self._captured_ns = 0  # of the frame that the newest answer in execution is of
        self._loop_ns = plan.schema.motion_ns
        self._next_loop_ns = 0
        self.faulted = False
        """The client gave up, and the robot stands still."""

    @property
    def next_event_ns(self) -> int:
        """The next turn of the loop, or the arrival of an answer before it."""
        return min([self._next_loop_ns, *self._answers.arrivals_ns])

    def act(self) -> None:
        """Take the answers that arrived, and run the loop once if it is due."""
        now_ns = self._body.now_ns
        for message in self._answers.arrived(now_ns):
            self._deliver(message)
        if self._next_loop_ns <= now_ns:
            self._next_loop_ns = now_ns + self._loop_ns
            self._turn()

    def receive(self, message: FrameResult | FrameDropped) -> None:
        """An answer; the end of a frame without one concerns none of these clients, which send what replaces it."""
        if isinstance(message, FrameResult):
            captured_ns = self._frames[message.seq].captured_ns
            if not self._answers.delays(message, captured_ns=captured_ns, now_ns=self._body.now_ns):
                self._deliver(message)

    def _turn(self) -> None:
        """One turn of the client's loop."""
        raise NotImplementedError

    def _answered(self, seq: int, rows: list[Vector]) -> None:
        """The rows of the answer to a frame."""
        raise NotImplementedError

    def _capture(self, *, answered: bool, start_delay_ns: int = 0) -> int:
        """Take a frame, and send it if it is to be answered or belongs to a history; return its number."""
        sim, plan, now_ns = self._body.sim, self._plan, self._body.now_ns
        pose = sim.pose()
        state = [float(each) for each in state_of(pose, sim.aperture)] if plan.state else []
        frame = self._camera.capture(state, START_NS + now_ns)
        self._frames[frame.seq] = FieldFrame(now_ns, pose)
        if answered:
            self._send(replace(frame, delay_ns=plan.forecast.age_ns, start_delay_ns=start_delay_ns))
        elif plan.keeps_history:
            self._send(replace(frame, seen_only=True))
        return frame.seq

    def _execute(self, row: Vector) -> None:
        """Command the target of a row."""
        sim = self._body.sim
        if self._targets:
            pose: Pose | None = Pose(row[:3], wxyz=multiply(TOOL_DOWN, from_rotvec(row[3:6])))
        else:
            pose = resolve(self._plan.schema, row, sim.goal()).pose
        assert pose is not None, "the embedded policies move the tool"
        answer, self._unplayed = self._unplayed, None
        if answer is not None:
            self._captured_ns = self._frames[answer.seq].captured_ns
        self._body.command(pose, float(row[self._gripper]), captured_ns=self._captured_ns)
        if answer is not None:
            self._body.note(captured_ns=self._captured_ns, passes=answer.passes, settled=answer.settled)

    def _deliver(self, message: FrameResult) -> None:
        assert message.valid, "the embedded policies answer with finite numbers"
        self._unplayed = message
        rows = message.chunk.array
        if self._targets:
            schema, pose = self._plan.schema, self._frames[message.seq].pose
            ends = (resolve_rows(schema, rows[: index + 1], pose) for index in range(len(rows)))
            rows = np.stack([state_of(end.pose, end.values["gripper"]) for end in ends if end.pose is not None])
        self._answered(message.seq, list(rows))


class AsyncClient(FieldRobot):
    """LeRobot's asynchronous client and policy server, as their documentation and code describe them (0.6.1).

    Each turn, the client executes the next row of its queue, ordered by timestep, and sends an observation if at most
    `threshold` of a chunk is left. The observation has the timestep of the last executed row, and so has row 0 of its
    answer. The server keeps one waiting observation, the newest, as edgeflow's worker does. It skips an observation
    whose timestep it has answered. With `filters` it also skips one whose joints moved less than a degree since the
    last one it processed. Neither applies to an observation that must go: the first one with an empty queue after each
    chunk.
    """

    def __init__(self, *parts: Any, new: float, threshold: float, filters: bool = True, targets: bool = False) -> None:
        super().__init__(*parts, targets=targets)
        self._new, self._threshold, self._filters = new, threshold, filters
        self._queue: dict[int, Vector] = {}
        self._executed = -1
        self._longest = 0
        self._must_go = True
        self._observed: dict[int, tuple[int, Vector]] = {}  # timestep and joints of the observations that were accepted
        self._processing = self._waiting = 0
        self._processed: Vector | None = None
        self._predicted: set[int] = set()

    def _turn(self) -> None:
        if self._queue:
            self._executed = min(self._queue)
            self._execute(self._queue.pop(self._executed))
        if not wants_observation(len(self._queue), self._longest, self._threshold):
            self._capture(answered=False)
            return
        timestep, must_go, joints = max(self._executed, 0), self._must_go and not self._queue, self._joints()
        accepted = must_go or self._accepts(timestep, joints)
        seq = self._capture(answered=accepted)
        self._must_go &= not must_go
        if accepted:
            self._observed[seq] = timestep, joints
            self._waiting = seq
            self._process()

    def _answered(self, seq: int, rows: list[Vector]) -> None:
        first, _ = self._observed[seq]
        self._longest = max(self._longest, len(rows))
        self._queue = aggregated(self._queue, rows, first, executed=self._executed, new=self._new)
        self._must_go = True
        self._processing = 0
        self._process()

    def _accepts(self, timestep: int, joints: Vector) -> bool:
        """The server's checks of an observation that may be skipped."""
        if self._processed is None:
            return True
        return timestep not in self._predicted and not (self._filters and similar(joints, self._processed))

    def _process(self) -> None:
        """The server begins with the waiting observation, once it has none in work."""
        if self._waiting and not self._processing:
            self._processing, self._waiting = self._waiting, 0
            timestep, self._processed = self._observed[self._processing]
            self._predicted.add(timestep)

    def _joints(self) -> Vector:
        """The robot's joints in degrees, and its gripper in per cent."""
        sim = self._body.sim
        return np.array([*np.degrees(sim.joints), 100.0 * sim.aperture])


class AlignedPlayback(FieldRobot):
    """LeRobot's remote inference with `chunk_merge=aligned`, as its documentation describes it (August 2026).

    One request is in flight. The next one is sent when at most `refill_seconds` of playback are left: 0.5 s, or the
    turnaround and one step where that is longer, here known from the start. Rows of the answer that were due since its
    frame are dropped, and the rest replaces the future. blends: the first rows of both are blended (`blend_steps`),
    except the gripper. Rows are targets, since its server converts relative actions first. A robot that runs out of
    rows holds, and its session is over. The limit on an observation's age is left out.
    """

    def __init__(self, *parts: Any, blends: bool) -> None:
        super().__init__(*parts, targets=True)
        self._steps = BLEND_STEPS if blends else 0
        self._refill_ns = max(REFILL_NS, self._plan.forecast.age_ns + self._loop_ns)
        self._future: list[Vector] = []
        self._committed = 0
        self._pending: tuple[int, int] | None = None  # the requested frame, and the rows committed at its capture

    def _turn(self) -> None:
        if self.faulted or (not self._future and self._committed):
            self.faulted = True
            self._body.hold(first=True)
            return
        left = max(len(self._future) - 1, 0)
        asks = self._pending is None and left * self._loop_ns <= self._refill_ns
        seq = self._capture(answered=asks)
        if asks:
            self._pending = seq, self._committed
        if self._future:
            self._execute(self._future.pop(0))
            self._committed += 1

    def _answered(self, seq: int, rows: list[Vector]) -> None:
        assert self._pending is not None and self._pending[0] == seq
        passed, self._pending = self._committed - self._pending[1], None
        if passed >= len(rows):
            self._unplayed = None
        else:
            self._future = blended(self._future, rows[passed:], self._steps, [self._gripper])


class WaitingRobot(FieldRobot):
    """A loop that waits for its policy: an answer ends the turn that asked for it, and the next begins a step after it
    began, or at once.
    """

    def __init__(self, *parts: Any, targets: bool = False) -> None:
        super().__init__(*parts, targets=targets)
        self._asked_ns: int | None = None

    def _ask(self) -> None:
        """Ask for an answer to a frame of now."""
        self._asked_ns = self._body.now_ns
        self._capture(answered=True, start_delay_ns=max(self._plan.forecast.age_ns, 1))

    def _waits(self) -> bool:
        """True while an answer is awaited; a frame for the history is taken then."""
        if self._asked_ns is not None:
            self._capture(answered=False)
        return self._asked_ns is not None

    def _continue(self) -> None:
        """The answer is executed: go on with the loop."""
        assert self._asked_ns is not None
        self._next_loop_ns = max(self._body.now_ns, self._asked_ns + self._loop_ns)
        self._asked_ns = None


class ChunkBroker(WaitingRobot):
    """openpi's ActionChunkBroker in its Runtime (openpi-client 0.1.2): `action_horizon` rows are executed, and then the
    robot waits for the next chunk. The turn after an answer begins at once, as its loop does after a slow one.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._rows: list[Vector] = []

    def _turn(self) -> None:
        if self._waits():
            return
        if self._rows:
            self._capture(answered=False)
            self._execute(self._rows.pop(0))
        else:
            self._ask()

    def _answered(self, seq: int, rows: list[Vector]) -> None:
        del seq  # the only one in flight
        self._rows = rows[:OPEN_LOOP_ROWS]
        self._execute(self._rows.pop(0))
        self._continue()


class EnsembleRobot(WaitingRobot):
    """Temporal ensembling of ACT (arXiv 2304.13705): a chunk is asked for in every turn, and all predictions for the
    turn are averaged, with weights exp(-0.01 i) from the oldest on. Turns count, not time: where a chunk takes longer
    than a step, the robot moves that much more slowly.
    """

    def __init__(self, *parts: Any, targets: bool) -> None:
        super().__init__(*parts, targets=targets)
        self._chunks: list[list[Vector]] = []  # each without the rows of earlier turns, the oldest first

    def _turn(self) -> None:
        if not self._waits():
            self._ask()

    def _answered(self, seq: int, rows: list[Vector]) -> None:
        del seq  # the only one in flight
        self._chunks = [chunk for chunk in [*self._chunks, rows] if chunk]
        self._execute(ensembled([chunk.pop(0) for chunk in self._chunks]))
        self._continue()
