"""Recordings of made-up robots, written by the real recorder: their frames are answered by a policy in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import edgeflow
from edgeflow.in_process.policy import LocalPolicy
from edgeflow_client.recording.recorder import Recorder, RecorderSettings
from edgeflow_client.recording.records import (
    ENCODER,
    TOPIC,
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
    SessionRecord,
)
from edgeflow_client.types import CameraSpec, Disposition, ImageFormat, Mode, StateSpec

PERIOD_NS = 40_000_000
CAMERA = CameraSpec("top", 8, 8, ImageFormat.RGB8)
STATE = StateSpec(name="position", size=1)
START_NS = 1_700_000_000_000_000_000
STAMP_NS = 5_000_000_000_000
SCHEMA = msgspec.json.encode(msgspec.json.schema(AnySessionRecord))


class RobotRecorder:
    """Writes records of sessions through the recorder into a folder."""

    def __init__(self, folder: Path, cameras: str = "all") -> None:
        settings = RecorderSettings(directory=str(folder), cameras=cameras, buffer_bytes=1 << 20)
        self._recorder = Recorder(settings, {TOPIC: SCHEMA}, lambda _: None)
        self._recorder.start()
        self._ring = self._recorder.ring(TOPIC)
        self._time_ns = START_NS

    def put(self, kind: type[SessionRecord], images: Sequence[bytes] = (), **fields: Any) -> None:
        self._ring.put(ENCODER.encode(kind(time_ns=self._time_ns, **fields)), images)
        self._time_ns += 1

    def open(self, session: int, policy: LocalPolicy, **fields: Any) -> None:
        settings: dict[str, Any] = {
            "source": "service",
            "model": "stub",
            "cameras": (CAMERA,),
            "state": (STATE,),
            "instruction": "go",
            "control_period_ns": PERIOD_NS,
            "max_action_age_ns": 5_000_000_000,
            "mode": Mode.SERIAL,
            "served_mode": Mode.SERIAL,
            "chunks": True,
            "schema": policy.schema,
        }
        self.put(RecordedOpening, session=session, **{**settings, **fields})

    def frame(
        self,
        session: int,
        seq: int,
        policy: LocalPolicy | None,
        *,
        epoch: int = 1,
        instruction: str = "go",
        added: float = 0.0,
    ) -> None:
        """A frame of its own pixels and its answer; superseded without a policy. added: to each value of the answer."""
        self._time_ns = max(self._time_ns, START_NS + seq * PERIOD_NS)
        random = np.random.default_rng([session, seq])
        image = random.integers(0, 256, (8, 8, 3), np.uint8)
        state = (float(np.float32(random.random())),)
        stamp_ns = STAMP_NS + seq * PERIOD_NS
        self.put(
            RecordedObservation,
            [image.tobytes()],
            session=session,
            seq=seq,
            epoch=epoch,
            stamp_ns=stamp_ns,
            image_bytes=(image.nbytes,),
            state=state,
            instruction=instruction,
        )
        if policy is None:
            self.put(RecordedOutcome, session=session, seq=seq, disposition=Disposition.SUPERSEDED, reason="SUPERSEDED")
            return
        observation = {"top": image, "position": np.array(state), "instruction": instruction, "stamp_ns": stamp_ns}
        chunk = policy.infer(observation, session)
        values = tuple(value + added for value in chunk.values)
        self.put(
            RecordedAnswer,
            session=session,
            seq=seq,
            epoch=epoch,
            stamp_ns=stamp_ns,
            values=values,
            horizon=chunk.horizon,
            step_ms=chunk.step_ms,
            server_ns=3_000_000,
            age_ns=4_000_000,
        )
        self.put(RecordedOutcome, session=session, seq=seq, disposition=Disposition.ACTED)

    def close(self, session: int, epoch: int = 1) -> None:
        self.put(RecordedClosing, session=session, epoch=epoch, code="OK", reason="client_closed")

    def lose(self) -> None:
        """A record finds no room."""
        assert not self._ring.put(b"", [bytes(self._ring.capacity)])

    def stop(self, lost: int = 0) -> None:
        """Write everything."""
        self._recorder.stop(20.0)
        assert self._recorder.lost == lost


def local(model: Path | str, **settings: Any) -> LocalPolicy:
    """A policy that decodes as a session in mode serial does."""
    return edgeflow.load(model, mode="serial", device="cpu", **settings)
