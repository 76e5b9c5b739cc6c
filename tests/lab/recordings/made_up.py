"""Recordings made up in memory, or written as a recorder does: a robot that counts, and a service that answers it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgeflow.in_process.policy import LocalPolicy
from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedExecution,
    RecordedHold,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
)
from edgeflow_client.types import ActionSchema, CameraSpec, Command, Disposition, ImageFormat, StateSpec
from tests.client.recording.written import OwnRecorder

MS = 1_000_000
WIDTH, HEIGHT = 96, 64
CLOCK = 1_700_000_000_000 * MS
"""The recording's clock when the robot's is 0, less the 3 ms on the way."""
SCHEMA = ActionSchema(
    names=("x", "grip"),
    units=("m", ""),
    low=(-1e9, -1e9),
    high=(1e9, 1e9),
    relative=(False, False),
    horizon=4,
    step_ms=100.0,
)
CAMERA = CameraSpec("top", WIDTH, HEIGHT, ImageFormat.RGB8)
STATE = (StateSpec(name="observation.state", size=2, elements=("j0", "j1")), StateSpec(name="tool", size=1))


def picture(seq: int) -> np.ndarray:
    """An image that differs by frame, smooth as a camera's."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([rows * 3, columns * 2, np.full_like(rows, seq * 8 % 256)], axis=-1).astype(np.uint8)


@dataclass
class MadeUp:
    """A recording (edgeflow_client.recording.reader.Recording) of records in the order in which they are added."""

    records: list[tuple[AnySessionRecord, tuple[bytes, ...]]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=lambda: {"source": "service", "cameras": "all"})
    session: int = 1
    """The session of the records that follow."""

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        yield from self.records

    def of(self, session: int) -> MadeUp:
        self.session = session
        return self

    def opened(self, **fields: Any) -> MadeUp:
        fields = {"cameras": (CAMERA,), "state": STATE, "schema": SCHEMA, "source": "service"} | fields
        return self._add(RecordedOpening, time_ns=CLOCK, **fields)

    def frame(
        self,
        seq: int,
        ms: float = 0.0,
        *,
        text: str = "pick",
        image: bytes | None = None,
        delay_ms: float = 3,
        **fields: Any,
    ) -> MadeUp:
        """A frame captured at a moment of the robot's clock; delay_ms: on the way. image: b"" = not recorded."""
        image = picture(seq).tobytes() if image is None else image
        fields = {
            "time_ns": CLOCK + round((ms + delay_ms) * MS),
            "epoch": 1,
            "stamp_ns": round(ms * MS),
            "state": (seq / 2, -seq, 7.0),
        } | fields
        images = (image,) if image else ()
        return self._add(RecordedObservation, images, seq=seq, image_bytes=(len(image),), instruction=text, **fields)

    def answer(self, seq: int, ms: float = 0.0, age_ms: float = 0.0, **fields: Any) -> MadeUp:
        """The chunk for a frame captured at `ms`; its rows are 10 seq + 0, 1, 2, 3."""
        fields = {
            "time_ns": CLOCK + round((ms + age_ms + 3) * MS),
            "epoch": 1,
            "stamp_ns": round(ms * MS),
            "age_ns": round(age_ms * MS),
            "values": tuple(float(each) for row in range(4) for each in (10 * seq + row, -row)),
            "horizon": 4,
            "step_ms": 100.0,
            "valid_for_ms": 400,
        } | fields
        return self._add(RecordedAnswer, seq=seq, **fields)

    def hold(self, ms: float, reason: str = "QUEUE") -> MadeUp:
        time_ns = CLOCK + round((ms + 3) * MS)
        return self._add(RecordedHold, time_ns=time_ns, epoch=1, command=Command.HOLD, reason=reason)

    def superseded(self, seq: int, last_seq: int = 0) -> MadeUp:
        kind = {"disposition": Disposition.SUPERSEDED, "reason": "SUPERSEDED"}
        return self._add(RecordedOutcome, time_ns=CLOCK, seq=seq, last_seq=last_seq, **kind)

    def executed(self, seq: int, age_ms: float, *values: float) -> MadeUp:
        return self._add(RecordedExecution, time_ns=CLOCK, seq=seq, row=0, values=values, age_ns=round(age_ms * MS))

    def closed(self) -> MadeUp:
        return self._add(RecordedClosing, time_ns=CLOCK, code="OK", reason="client_closed")

    def answered(self, seq: int, policy: LocalPolicy, *, text: str, epoch: int = 1, added: float = 0.0) -> MadeUp:
        """A frame of random pixels every 40 ms, answered by a policy of the camera `top` with 8 x 8 pixels and one
        number of state. added: to each value.
        """
        ms = 40 * seq
        random = np.random.default_rng([self.session, seq])
        image, state = random.integers(0, 256, (8, 8, 3), np.uint8), np.float32(random.random(1))
        stamp_ns = ms * MS
        observation = {"top": image, "position": state, "instruction": text, "stamp_ns": stamp_ns}
        chunk = policy.infer(observation, self.session)
        self.frame(seq, ms, text=text, image=image.tobytes(), epoch=epoch, state=tuple(state.tolist()))
        values = tuple(value + added for value in chunk.values)
        shape = {"horizon": chunk.horizon, "step_ms": chunk.step_ms}
        return self.answer(seq, ms, 4.0, epoch=epoch, values=values, server_ns=3 * MS, **shape)

    def write(self, folder: Path, *, cameras: str = "all", lost: int = 0) -> Path:
        """Write it as a recorder does. lost: records that find no room."""
        recorder = OwnRecorder(folder, cameras=cameras)
        assert lost == sum(not recorder.put(record, images) for record, images in self.records)
        recorder.close()
        return folder

    def _add(self, kind: type[Any], images: Sequence[bytes] = (), **fields: Any) -> MadeUp:
        self.records.append((kind(session=self.session, **fields), tuple(images)))
        return self


def steady(frames: Iterable[int], **fields: Any) -> MadeUp:
    """A session at 10 frames per second, each answered 50 ms after its capture."""
    made = MadeUp().opened()
    for seq in frames:
        made.frame(seq, 100 * seq, **fields).answer(seq, 100 * seq, 50)
    return made
