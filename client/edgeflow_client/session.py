"""The state of a robot's session: frames in flight, the watchdog, the newest stream. No threads, no locks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgeflow_client.actions import Action, Advice, Directive, resolve
from edgeflow_client.aging import DEFAULT, Aging
from edgeflow_client.blending import LATEST, Blender, Blending, TimedChunk
from edgeflow_client.clock import Clock
from edgeflow_client.connection.bounds import check_captured, within_limits
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.unknown import VersionWarnings
from edgeflow_client.connection.wire import (
    COMMANDS,
    DISPOSITIONS,
    EXECUTIONS,
    Opened,
    SessionSettings,
    age_limit_ns,
    check_sizes,
    check_text,
    open_message,
    opened_of,
    rate_of,
    report_of,
    rows_of,
    timings_of,
)
from edgeflow_client.displacement import within_reach
from edgeflow_client.errors import EdgeflowError, FailedPrecondition
from edgeflow_client.flight import Flight, Statistics, Taken
from edgeflow_client.following import GoalTrack, SeenGoal
from edgeflow_client.pictures import Picture, shrunk
from edgeflow_client.pose import MAX_DISTANCE_M, Pose, Vector, check_pose, distance
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.timeline import Timeline, arrival_start_ns
from edgeflow_client.types import ActionSchema, Command, Disposition
from edgeflow_client.watchdog import Watchdog

if TYPE_CHECKING:
    from edgeflow_client.connection.recording import RobotRecording  # needs an extra

MAX_VALID_MS = 500  # an action is never executed longer, even if the service permits it ...
MAX_FORECAST_MS = 10_000  # ... unless the service says how it is executed, and when the next one comes
_log = logging.getLogger("edgeflow_client")


class ClientSession:
    """A session that outlives its streams. Frames in flight are lost with their stream; the next one starts afresh.

    Every frame carries its instruction, so that a rejected frame cannot lose a new one.
    """

    def __init__(
        self,
        settings: SessionSettings,
        instruction: str,
        clock: Clock,
        resume_within_ns: int,
        aging: Aging = DEFAULT,
        blending: Blending = LATEST,
        max_distance_m: float = MAX_DISTANCE_M,
        recording: RobotRecording | None = None,
    ) -> None:
        self.flight = Flight()
        self.opened: Opened | None = None
        self.error: EdgeflowError | None = None
        self.is_rejected = self.closed = False
        self._settings = settings
        self._instruction = instruction
        self._clock = clock
        self._aging = aging
        self._advice = Advice()
        self._max_distance_m = max_distance_m
        self._blender = Blender(blending)
        self._goals = GoalTrack()
        self._watchdog = Watchdog(clock, resume_within_ns)
        self._recording = recording
        self._outgoing: OutgoingMessages | None = None
        self._first_seq = 0  # wire numbers start at 1 with every stream: seq = wire number + first_seq
        self._published = self._watchdog.directive()
        self._arrived: pb.Arrived | None = None  # the newest chunk of the stream
        self._reserved: tuple[Action, TimedChunk] | None = None
        self._versions = VersionWarnings()

    # Calls of the robot.

    def opening(self) -> pb.Open:
        """The Open message of the next stream."""
        return open_message(self._settings, self._instruction)

    def push(
        self,
        images: Sequence[bytes | Picture],
        proprio: Sequence[float],
        pose: Pose | None,
        instruction: str,
        stamp_ns: int,
    ) -> int:
        """Queue the newest frame and return its number; an empty instruction keeps the current one."""
        self._check_usable()
        check_text(instruction)
        check_pose(pose, self._max_distance_m)
        check_captured(stamp_ns, self._clock.now_ns())
        playing = self._playing_at(stamp_ns)
        if instruction not in ("", self._instruction):
            self._instruction = instruction
            self._watchdog.restart(self.flight.last_seq, Reason.NEW_INSTRUCTION, rearm=False)
            self._forget_answers()
        seq = self.flight.offer(stamp_ns, pose)
        if self._outgoing is None and self._recording is None:
            self.flight.leave(seq, Disposition.DROPPED)
            return seq
        frame = pb.Frame(
            seq=seq - self._first_seq,
            stamp_ns=stamp_ns,
            proprio=proprio,
            instruction=self._instruction,
            playing=playing,
            arrived=self._arrived,
            resting=self._watchdog.plays.rests_at(stamp_ns),
        )
        if self._recording is not None:
            self._recording.pushed(frame, self._first_seq, self._watchdog.epoch, pose)
        if self._outgoing is None:
            self._leave(seq, Disposition.DROPPED, Reason.DISCONNECTED)
            return seq
        frame.images.extend([pb.Image(data=image if isinstance(image, bytes) else b"") for image in images])
        sizes = self.opened.sizes if self.opened is not None else {}
        on_sent = None if self._recording is None else partial(self._recording.sent, seq)
        replaced = self._outgoing.offer(frame, [shrunk(image, sizes) for image in images] if sizes else images, on_sent)
        if replaced:
            self._leave(replaced + self._first_seq, Disposition.SUPERSEDED, Reason.SUPERSEDED)
        return seq

    def reset(self, instruction: str) -> None:
        """Start a new episode; an empty instruction keeps the current one."""
        self._check_usable()
        check_text(instruction)
        self._instruction = instruction or self._instruction
        self.flight.held.end(self._clock.now_ns())
        self._watchdog.restart(self.flight.last_seq, Reason.RESET, rearm=True)
        self._forget_answers()
        if self._outgoing is not None:
            withdrawn = self._outgoing.reset(self._instruction)
            if withdrawn:
                self._leave(withdrawn + self._first_seq, Disposition.DROPPED, Reason.RESET)

    def statistics(self) -> Statistics:
        """Counts and times so far."""
        return self.flight.statistics(self._clock.now_ns())

    def close(self) -> None:
        """Accept no more actions."""
        self.closed = True
        self.flight.held.end(self._clock.now_ns())
        self._watchdog.halt(Command.HOLD, Reason.CLOSED)

    def directive(self) -> Directive:
        """The current directive; the same object as long as nothing changes."""
        now = self._watchdog.directive()
        self._notice_reserve(now)
        if now is not self._published:
            self._publish(now)
        return now

    def _publish(self, now: Directive) -> None:
        """Count a new directive."""
        now_ns = self._clock.now_ns()
        if now.action is not None:
            self.flight.executed(now_ns - now.action.stamp_ns)
        elif self._published.command is Command.ACT:
            self.flight.holds += 1
        self.flight.held.change(now_ns, holds=now.action is None)
        if self._recording is not None and now.action is None:
            self._recording.held(now, self._watchdog.epoch)
        self._published = now

    # Events of the stream.

    def stream_opened(self, message: pb.Opened, outgoing: OutgoingMessages) -> None:
        """A stream was opened; FailedPrecondition if the answer cannot be interpreted or does not suit the robot."""
        opened = opened_of(message)
        self._aging.check(opened.schema)
        self._versions.answer(message, "opened")
        if message.ignored:
            self._versions.notice(f"it does not know {', '.join(message.ignored)}")
        if self._aging.undecided(opened.schema):
            self._advice.undecided()
        _warn_short(opened)
        check_sizes(self._settings, opened)
        self.opened, self.error, self._outgoing = opened, None, outgoing
        self.flight.leave_all()
        self.flight.opens += 1
        self._first_seq, self._arrived = self.flight.last_seq, None
        self._forget_answers()
        self._watchdog.opened(self.opened.epoch)
        if self._recording is not None:
            self._recording.opened(self._settings, self._instruction, opened)

    def stream_message(self, message: pb.ServerMessage) -> bool:
        """Take a message; True if it was an action that may be executed."""
        if self._recording is not None:
            self._recording.heard(message, self._first_seq, self._clock.now_ns())
        match message.WhichOneof("kind"):
            case "action":
                return self._take_action(message.action)
            case "frame_status":
                self._take_status(message.frame_status)
            case "notice" if message.notice.kind == "epoch":
                self._watchdog.advance(message.notice.epoch)
            case "notice" if message.notice.kind == "ignored":
                self._versions.notice(message.notice.text)
            case None:
                self._versions.answer(message, "message")
            case "notice":
                _log.info("the service says %s: %s", message.notice.kind, message.notice.text)
                self._watchdog.hear(message.notice.kind, message.notice.text)
        return False

    def stream_ended(self, error: EdgeflowError, final: bool) -> None:
        """The stream ended. final: the service rejected the session."""
        self.error, self.is_rejected, self._outgoing = error, final, None
        if getattr(error, "reason", "").upper() == Reason.RATE_EXCEEDED:
            self._advice.flooded()
        if not self.closed:
            self._watchdog.halt(Command.HOLD, Reason.REFUSED if final else Reason.DISCONNECTED)
        lost = self.flight.leave_all()
        if self._recording is not None:
            self._recording.stream_ended(error, lost)

    def _leave(self, seq: int, disposition: Disposition, reason: str) -> None:
        """A frame leaves here, without the service."""
        self.flight.leave(seq, disposition)
        if self._recording is not None:
            self._recording.left([seq], disposition, reason)

    def _forget_answers(self) -> None:
        self._blender.restart()
        self._goals.restart()

    def _check_usable(self) -> None:
        if self.is_rejected and self.error is not None:
            raise self.error
        if self.closed or self.opened is None:
            raise FailedPrecondition("the session is not open: use `with RobotClient(...)`")

    def _take_action(self, message: pb.Action) -> bool:
        command = COMMANDS.get(message.command, Command.HOLD)
        if command is not Command.ACT:
            self._watchdog.halt(command, message.reason or Reason.SERVICE)
            return False
        taken = self.flight.find(message.seq + self._first_seq)
        if taken is None or self.closed or self.opened is None:
            self.flight.ignored += 1
            return False
        opened, now_ns = self.opened, self._clock.now_ns()
        self._arrived = pb.Arrived(seq=message.seq, age_ns=max(now_ns - taken.stamp_ns, 0))
        rows = rows_of(message, opened.schema)
        if rows is None or message.stamp_ns != taken.stamp_ns:
            self._watchdog.halt(Command.HOLD, Reason.MALFORMED_ACTION)
            return False
        limit_ns = self._limit_ns(message, opened)
        held = self._watchdog.directive()
        timeline = self._timeline(message, opened.schema, now_ns)
        if message.from_arrival and timeline.step_ns and held.action is not None and now_ns < held.action.over_ns:
            self.flight.ignored += 1  # it begins at rest, and an answer that was believed lost moves the robot
            return False
        # A robot that stands still loses no rows to a late answer, but no late answer is younger for that.
        by_capture = replace(timeline, start_ns=message.stamp_ns, horizon=opened.schema.horizon)
        aged = by_capture if message.from_arrival else timeline
        if limit_ns is not None and aged.due_age_ns(now_ns) >= limit_ns:
            self.flight.too_old += 1
            return False
        schema = opened.schema
        if not within_limits(rows, schema) or not within_reach(rows, schema, self._max_distance_m):
            self._watchdog.halt(Command.HOLD, Reason.ACTION_OUT_OF_LIMITS)
            return False
        self._notice_reserve(held)
        if held.command is not Command.ACT:
            self._forget_answers()  # those from before a HOLD must not be blended with new ones, or show a motion
        chunk = self._blender.blended(rows, timeline, message.epoch)
        goal = self._goal_of(rows[0], taken, schema, now_ns)
        action = self._action_of(message, taken, opened, chunk, now_ns)
        if goal is not None:
            action = replace(action, goal_velocity=self._goals.velocity(goal))
        if not self._watchdog.offer(action):
            self.flight.ignored += 1
            return False
        if goal is not None:
            self._goals.add(goal)
        self.flight.late += action.late
        if self._watchdog.is_reserved(action):
            self._notice_reserve(self._watchdog.directive())  # `offer` may have replaced an earlier reserve
            self._reserved = (action, chunk)
        else:
            self._accepted(action, chunk)
        return True

    def _goal_of(self, values: Vector, taken: Taken, schema: ActionSchema, now_ns: int) -> SeenGoal | None:
        """The goal that an answer names, if it is to be followed and the answer is young enough."""
        aging, pose = self._aging, taken.pose
        if pose is None or not aging.follows(schema) or now_ns - taken.stamp_ns > aging.follow_s * 1e9:
            return None
        goal = resolve(schema, values, pose).pose
        return None if goal is None else SeenGoal(taken.stamp_ns, goal.position, distance(pose, goal))

    def _accepted(self, action: Action, chunk: TimedChunk) -> None:
        """The chunk of this action is executed from now on."""
        self._reserved = None
        self._blender.accepted(chunk, action.epoch)
        self.flight.acted_on(action.age_ns)
        self.flight.late_played += action.late

    def _notice_reserve(self, now: Directive) -> None:
        """Record that the chunk in reserve is executed now, or never will be."""
        if self._reserved is None or self._watchdog.is_reserved(self._reserved[0]):
            return
        (action, chunk), self._reserved = self._reserved, None
        if now.action is not None and now.action.seq == action.seq:
            self._accepted(action, chunk)

    def _timeline(self, message: pb.Action, schema: ActionSchema, now_ns: int) -> Timeline:
        """The moments of an answer's rows: from the capture on, or from now on for a robot that stands still."""
        step_ns = round(schema.step_ms * 1e6 / rate_of(message))
        start_ns = message.stamp_ns
        if message.from_arrival and step_ns:
            start_ns = arrival_start_ns(start_ns, now_ns, step_ns)
        return Timeline(start_ns, step_ns, min(message.rows or schema.horizon, schema.horizon))

    def _limit_ns(self, message: pb.Action, opened: Opened) -> int | None:
        return age_limit_ns(self._settings.max_action_age_s, message.max_age_ms, opened)

    def _action_of(self, message: pb.Action, taken: Taken, opened: Opened, chunk: TimedChunk, now_ns: int) -> Action:
        """The action of the blended chunk's row that is due."""
        timeline, step = chunk.timeline, chunk.timeline.step_at(now_ns)
        most_ms = MAX_FORECAST_MS if message.execution else MAX_VALID_MS
        validity_ns, limit_ns = min(message.valid_for_ms, most_ms) * 1_000_000, self._limit_ns(message, opened)
        report, played = report_of(message, self._first_seq), self._watchdog.directive().action
        return Action(
            seq=message.seq + self._first_seq,
            epoch=message.epoch,
            values=chunk.played[step].copy(),
            token_ids=tuple(message.token_ids),
            schema=opened.schema,
            stamp_ns=message.stamp_ns,
            received_ns=now_ns,
            valid_until_ns=timeline.valid_until_ns(now_ns, validity_ns, limit_ns),
            frame_pose=taken.pose,
            timings=timings_of(message.timings),
            server_ns=message.timings.server_ns,
            age_limit_ns=limit_ns,
            settled=message.settled,
            tolerance_bins=message.tolerance_bins,
            max_passes=message.max_passes,
            aging=self._aging,
            advice=self._advice,
            chunk=chunk.played,
            step=step,
            step_ns=timeline.step_ns,
            rows=timeline.horizon,
            start_ns=timeline.start_ns,
            execution=EXECUTIONS.get(message.execution),
            rate=rate_of(message),
            report=report,
            apart=played is not None and report.continues not in (0, played.seq),
        )

    def _playing_at(self, captured_ns: int) -> pb.Playing | None:
        """The chunk of this stream, and its row, in execution at the capture of a frame."""
        self.directive()  # may start the chunk in reserve
        playing = self._watchdog.plays.at(captured_ns)
        if playing is None or playing.seq <= self._first_seq:
            return None
        return pb.Playing(seq=playing.seq - self._first_seq, step=playing.step, start_ns=playing.start_ns)

    def _take_status(self, message: pb.FrameStatus) -> None:
        disposition = DISPOSITIONS.get(message.disposition, Disposition.DROPPED)
        first, last = message.seq + self._first_seq, message.last_seq + self._first_seq
        self.flight.leave(first, disposition, last, overtaken=message.reason == Reason.OVERTAKEN)
        if disposition is Disposition.REJECTED:
            self.flight.last_refusal = f"{message.code} {message.reason}: {message.text}"


def _warn_short(opened: Opened) -> None:
    """Warn that answers are expected less often than an action may be executed."""
    gap_s = 1 / opened.predicted_fps if opened.predicted_fps else 0.0
    if opened.valid_for_s < gap_s:
        _log.warning(
            "an answer is expected every %.0f ms, and may be executed for %.0f ms: the robot holds in between, unless "
            "execution is auto, or the service permits more (timing.longest_ttl_ms)",
            1000 * gap_s, 1000 * opened.valid_for_s,
        )  # fmt: skip
