"""A worker in this process with scripted robots, all of whose records are kept: what `replay_exactly` gets.

The clock is simulated, and the script follows from a seed: silence, bursts, frames that are only seen, other
instructions and too long ones, resets, sessions that are parked and opened again, other paces, lost workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import simplejpeg
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.recording import PassRecorder
from edgeflow.ipc.messages import (
    ChangePace,
    CloseSession,
    FrameResult,
    Message,
    OpenSession,
    ResetSession,
    SubmitFrame,
)
from edgeflow.lab.recordings.exact import ready_engine
from edgeflow.pass_records import PASS_TOPIC
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.facts import engine_facts
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.recording.reader import StoredRecord
from edgeflow_client.recording.records import NUMBER, AnySessionRecord, RecordedObservation, RecordedOpening
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.trajectory import Playing
from edgeflow_client.types import CameraSpec, ImageFormat

MS = 1_000_000
PERIOD_NS = 40 * MS
SIDE = 64
"""Pixels of each side of a camera whose size the policy leaves open."""
PICTURES = 24
INSTRUCTIONS = ("pick up the cup", "go", "put the red block on the blue one", "open the drawer")
TOO_LONG = "again and " * 600
RING_BYTES = 16 << 20


@dataclass(slots=True)
class MemoryRecording:
    """A recording (edgeflow_client.recording.reader.Recording) in memory."""

    passes: list[StoredRecord] = field(default_factory=list)
    frames: list[tuple[AnySessionRecord, tuple[bytes, ...]]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=lambda: {"cameras": "all"})

    def records(self, topic: str) -> Iterator[StoredRecord]:
        """The records of passes."""
        assert topic == PASS_TOPIC
        return iter(self.passes)

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        """The records of sessions."""
        return iter(self.frames)

    def kinds(self, *kinds: str) -> list[dict[str, Any]]:
        """The records of passes of these kinds, all if there are none."""
        found = [msgspec.json.decode(each.data) for each in self.passes]
        return [each for each in found if not kinds or each["kind"] in kinds]

    def changed(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> MemoryRecording:
        """With the records of passes that a function makes of these, or drops."""
        pairs = [(each, change(record)) for each, record in zip(self.passes, self.kinds(), strict=True)]
        kept = [replace(each, data=msgspec.json.encode(record)) for each, record in pairs if record is not None]
        return replace(self, passes=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotScript:
    """The behaviour of robots. Shares are of ticks of PERIOD_NS."""

    config: ServiceConfig
    pace: Pace
    robots: int = 1
    continues: bool = False
    """Robots execute chunks, and answers continue them."""
    other_paces: tuple[Pace, ...] = ()
    """The first robot's mode changes between these and its pace."""
    answers: int = 100
    """The run ends with so many."""
    seed: int = 0
    silent: float = 0.1
    burst: float = 0.1
    reset: float = 0.02
    parked: float = 0.01
    rejected: float = 0.05
    lost_workers: int = 1


@dataclass(slots=True, kw_only=True)
class _ScriptedRobot:
    session: int
    epoch: int = 1
    seq: int = 0
    instruction: str = INSTRUCTIONS[0]
    rested: bool = True
    answered: FrameResult | None = None
    stamps: dict[int, int] = field(default_factory=dict)
    parked: int = 0
    """Ticks until it comes back."""


class ScriptedRun:
    """Runs a script; `recording` is what a recorder would have written."""

    def __init__(self, script: RobotScript) -> None:
        self.recording = MemoryRecording()
        self.answers = 0
        self._script = script
        self._random = np.random.default_rng(script.seed)
        self._clock = ManualClock(1_000_000_000)
        self._passes = RecordRing.make(RING_BYTES)
        self._reader = RecordRing(self._passes.descriptor)
        self._time_ns = 0
        self._robots = [_ScriptedRobot(session=number) for number in range(1, script.robots + 1)]
        self._start_worker()
        self._pictures = self._drawn()

    def run(self) -> MemoryRecording:
        """The recording of the whole script."""
        script = self._script
        losses = [script.answers * (index + 1) // (script.lost_workers + 1) for index in range(script.lost_workers)]
        with torch.no_grad():
            while self.answers < script.answers:
                if losses and self.answers >= losses[0]:
                    losses.pop(0)
                    self._start_worker()
                self._tick()
            for robot in self._robots:
                self._worker.inbox.put(CloseSession(robot.session))
            while self._worker.step():
                self._clock.advance_ns(3 * MS)
        self._drain()
        self._passes.close()
        return self.recording

    def _start_worker(self) -> None:
        """A new worker, as after a loss: nothing of the old one is left but the robots' sessions."""
        script = self._script
        built = ready_engine(script.config)
        self._policy = built.engine.policy
        self._worker = Worker(
            built.engine,
            Scheduler(built.limits, whole=built.engine.runs_whole),
            self._clock,
            self._receive,
            trajectory=script.config.trajectory,
            observer=PassRecorder(self._passes, engine_facts(script.config, built)),
        )
        for robot in self._robots:
            robot.parked = 0
            self._open(robot)

    def _open(self, robot: _ScriptedRobot) -> None:
        robot.epoch, robot.rested, robot.answered = robot.epoch + 1, True, None
        self._worker.inbox.put(
            OpenSession(
                session=robot.session,
                epoch=robot.epoch,
                pace=self._script.pace,
                unnorm_key="",
                deadline_ns=PERIOD_NS,
                patience_ns=20 * PERIOD_NS,
                period_ns=PERIOD_NS,
                continues=self._script.continues,
            )
        )
        cameras = (CameraSpec("unused", 8, 8, ImageFormat.RGB8), *self._cameras)
        names = tuple(camera.name for camera in self._cameras)
        self._record(RecordedOpening, session=robot.session, source="service", cameras=cameras, policy_cameras=names)

    @property
    def _cameras(self) -> tuple[CameraSpec, ...]:
        """The policy's cameras; every other one sends JPEG."""
        formats = (ImageFormat.JPEG, ImageFormat.RGB8)
        return tuple(
            CameraSpec(need.name, need.width or SIDE, need.height or SIDE, formats[index % 2])
            for index, need in enumerate(self._policy.inputs.cameras)
        )

    def _drawn(self) -> list[list[tuple[bytes, bytes]]]:
        """Pictures of each camera: as sent, and decoded."""
        found = []
        for camera in self._cameras:
            pictures = []
            for _ in range(PICTURES):
                rough = self._random.integers(0, 256, (6, 6, 3), np.uint8)
                pixels = np.kron(rough, np.ones((camera.height // 6 + 1, camera.width // 6 + 1, 1), np.uint8))
                pixels = np.ascontiguousarray(pixels[: camera.height, : camera.width])
                if camera.format is ImageFormat.JPEG:
                    sent = simplejpeg.encode_jpeg(pixels)
                    pictures.append((sent, simplejpeg.decode_jpeg(sent).tobytes()))
                else:
                    pictures.append((pixels.tobytes(), pixels.tobytes()))
            found.append(pictures)
        return found

    def _tick(self) -> None:
        script, random = self._script, self._random
        for robot in self._robots:
            if robot.parked:
                robot.parked -= 1
                if not robot.parked:
                    self._open(robot)
                continue
            if random.random() < script.parked:
                self._worker.inbox.put(CloseSession(robot.session))
                robot.parked = 3
                continue
            if random.random() < script.reset:
                robot.epoch, robot.rested, robot.answered = robot.epoch + 1, True, None
                robot.instruction = INSTRUCTIONS[random.integers(len(INSTRUCTIONS))]
                self._worker.inbox.put(ResetSession(robot.session, robot.epoch))
            if random.random() < script.silent:
                robot.rested = True
                continue
            if random.random() < script.burst:
                self._send(robot)
                self._clock.advance_ns(MS)
            self._send(robot)
        if random.random() < (0.5 if script.other_paces else 0.02):
            paces = (script.pace, *script.other_paces)
            pace = paces[random.integers(len(paces))] if script.other_paces else script.pace
            self._worker.inbox.put(ChangePace(self._robots[0].session, pace, patience_ns=0))
        for _ in range(int(random.integers(1, 3 * self._policy.program().passes))):
            self._clock.advance_ns(int(random.integers(1, 4)) * MS)
            if not self._worker.step():
                break
        self._clock.advance_ns(PERIOD_NS // 2)
        self._drain()

    def _send(self, robot: _ScriptedRobot) -> None:
        script, random, inputs = self._script, self._random, self._policy.inputs
        robot.seq += 1
        stamp_ns = self._clock.now_ns()
        robot.stamps[robot.seq] = stamp_ns
        chosen = [pictures[random.integers(PICTURES)] for pictures in self._pictures]
        instruction = TOO_LONG if random.random() < script.rejected else robot.instruction
        seen_only = inputs.history > 1 and random.random() < 0.2
        timed = not script.continues and inputs.most_delay_ms > 0.0
        images = (bytes(192), *(sent for sent, _ in chosen))
        frame = {"session": robot.session, "seq": robot.seq, "epoch": robot.epoch, "stamp_ns": stamp_ns}
        self._record(RecordedObservation, images, **frame)
        self._worker.inbox.put(
            SubmitFrame(
                **frame,
                sizes=[side for camera in self._cameras for side in (camera.height, camera.width)],
                instruction=instruction,
                payload=tuple(pixels for _, pixels in chosen),
                state=random.uniform(-0.5, 0.5, inputs.numbers).round(4).tolist(),
                waited_ns=int(random.integers(0, 3)) * MS,
                turn_wait_ns=3 * PERIOD_NS,
                playing=self._playing(robot, stamp_ns),
                delay_ns=2 * PERIOD_NS if script.continues else 0,
                rested=robot.rested,
                seen_only=seen_only,
                start_delay_ns=2 * PERIOD_NS if timed else 0,
            )
        )
        robot.rested = False

    def _playing(self, robot: _ScriptedRobot, stamp_ns: int) -> Playing | None:
        """The row of the last answer that is due."""
        last = robot.answered
        if not self._script.continues or last is None or not last.chunk.step_ms:
            return None
        step = round((stamp_ns - robot.stamps[last.seq]) / (last.chunk.step_ms * 1e6))
        return Playing(last.seq, step) if step < last.chunk.horizon else None

    def _receive(self, message: Message) -> None:
        if isinstance(message, FrameResult):
            self.answers += 1
            self._robots[message.session - 1].answered = message

    def _now_ns(self) -> int:
        """As a worker's records have it: both streams share a clock."""
        self._time_ns = max(time.time_ns(), self._time_ns + 1)
        return self._time_ns

    def _record(self, kind: type[Any], images: tuple[bytes, ...] = (), **fields: Any) -> None:
        self.recording.frames.append((kind(time_ns=self._now_ns(), **fields), images))

    def _drain(self) -> None:
        """Read the ring, as a recorder does."""
        for found in chain(self._reader.look(), self._reader.look()):  # it shows what was written at the look before
            record = msgspec.msgpack.decode(found.head)
            data = msgspec.json.encode({NUMBER: found.number, **record})
            self.recording.passes.append(StoredRecord(found.number, record["time_ns"], data))
            self._reader.release(found.end)
