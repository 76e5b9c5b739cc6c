"""Recordings made up in memory: a robot that counts, and a service that answers it with chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedExecution,
    RecordedHold,
    RecordedObservation,
    RecordedOpening,
)
from edgeflow_client.types import ActionSchema, CameraSpec, Command, ImageFormat, StateSpec

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
    """The records of one session, in the order in which they are added."""

    records: list[tuple[AnySessionRecord, tuple[bytes, ...]]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=lambda: {"source": "service", "cameras": "all"})
    number: int = 1

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        yield from self.records

    def opened(self, **fields: Any) -> MadeUp:
        fields = {"cameras": (CAMERA,), "state": STATE, "schema": SCHEMA, "source": "service"} | fields
        return self._add(RecordedOpening(session=self.number, time_ns=CLOCK, **fields))

    def frame(
        self,
        seq: int,
        ms: float,
        *,
        epoch: int = 1,
        text: str = "pick",
        image: bytes | None = None,
        delay_ms: float = 3,
    ) -> MadeUp:
        """A frame captured at a moment of the robot's clock; delay_ms: on the way."""
        image = picture(seq).tobytes() if image is None else image
        record = RecordedObservation(
            session=self.number,
            time_ns=CLOCK + round((ms + delay_ms) * MS),
            seq=seq,
            epoch=epoch,
            stamp_ns=round(ms * MS),
            image_bytes=(len(image),),
            state=(seq / 2, -seq, 7.0),
            instruction=text,
        )
        return self._add(record, (image,) if image else ())

    def answer(self, seq: int, ms: float, age_ms: float, *, epoch: int = 1, **fields: Any) -> MadeUp:
        """The chunk for a frame captured at `ms`; its rows are 10 seq + 0, 1, 2, 3."""
        values = tuple(float(each) for row in range(4) for each in (10 * seq + row, -row))
        return self._add(
            RecordedAnswer(
                session=self.number,
                time_ns=CLOCK + round((ms + age_ms + 3) * MS),
                seq=seq,
                epoch=epoch,
                stamp_ns=round(ms * MS),
                age_ns=round(age_ms * MS),
                **({"values": values, "horizon": 4, "step_ms": 100.0, "valid_for_ms": 400} | fields),
            )
        )

    def hold(self, ms: float, reason: str = "QUEUE") -> MadeUp:
        time_ns = CLOCK + round((ms + 3) * MS)
        return self._add(
            RecordedHold(session=self.number, time_ns=time_ns, epoch=1, command=Command.HOLD, reason=reason)
        )

    def executed(self, seq: int, age_ms: float, *values: float) -> MadeUp:
        return self._add(
            RecordedExecution(
                session=self.number, time_ns=CLOCK, seq=seq, row=0, values=values, age_ns=round(age_ms * MS)
            )
        )

    def _add(self, record: AnySessionRecord, images: tuple[bytes, ...] = ()) -> MadeUp:
        self.records.append((record, images))
        return self


def steady(frames: Iterable[int], **fields: Any) -> MadeUp:
    """A session at 10 frames per second, each answered 50 ms after its capture."""
    made = MadeUp().opened()
    for seq in frames:
        made.frame(seq, 100 * seq, **fields)
        made.answer(seq, 100 * seq, 50, epoch=fields.get("epoch", 1))
    return made
