"""Robots made up for one engine. Their frames take the way of served ones: through the worker's own loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeflow.contract import Image, Observation, Pace, PolicyInputs
from edgeflow.ipc.messages import (
    CloseSession,
    FrameDropped,
    FrameResult,
    Message,
    OpenSession,
    ResetSession,
    SessionRejected,
    SubmitFrame,
)
from edgeflow.lab.conformance.verdicts import NotConforming
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import BuiltEngine
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import REQUEST_ERRORS, InvalidArgument, RequestError, WorkerError

SIDE = 64  # pixels of a camera of any size


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchAnswer:
    """The answer to a frame."""

    values: NDArray[np.float64]
    """[H, D] in the units of the schema, as the policy gave them."""
    passes: int
    step_ms: float
    shared: int
    """The most frames that began in one of its passes."""
    ns: int
    """Time from the start of its first pass to the end of its last."""

    def same(self, other: BenchAnswer) -> bool:
        """True where all bits are equal."""
        return np.array_equal(self.values, other.values, equal_nan=True)


def random_frame(inputs: PolicyInputs, seed: int, instruction: str) -> Observation:
    """Noise in every camera, states from -1 to 1; the same for the same seed."""
    generator = np.random.default_rng(seed)
    images = {}
    for camera in inputs.cameras:
        height, width = camera.height or SIDE, camera.width or SIDE
        pixels = generator.integers(0, 256, (height, width, 3), np.uint8)
        images[camera.name] = Image(height, width, pixels.tobytes())
    state = {
        vector.name: tuple(generator.uniform(-1, 1, vector.size).astype(np.float32).tolist()) for vector in inputs.state
    }
    return Observation(images=images, state=state, instruction=instruction)


class Bench:
    """The robots. unnorm_key: the data set whose actions they take."""

    def __init__(self, built: BuiltEngine, unnorm_key: str) -> None:
        self._engine = built.engine
        self._key = unnorm_key
        self._said: list[Message] = []
        scheduler = Scheduler(replace(built.limits, drain_after_ns=0), whole=built.engine.runs_whole)
        self._worker = Worker(built.engine, scheduler, MonotonicClock(), self._said.append)
        self._epochs: dict[int, int] = {}
        self._opened = self._seq = 0

    @contextmanager
    def robots(self, count: int = 1) -> Iterator[list[int]]:
        """New sessions, which end with the block. WorkerError where the engine has no room for them."""
        sessions = [self._open() for _ in range(count)]
        try:
            yield sessions
        except (NotConforming, RequestError):
            self._close(sessions)
            raise  # after other errors the worker is not asked again
        self._close(sessions)

    def reset(self, session: int) -> None:
        """Begin a new episode."""
        self._epochs[session] += 1
        self._worker.inbox.put(ResetSession(session, self._epochs[session]))
        self._drain()

    def together(self, frames: Mapping[int, Observation]) -> dict[int, BenchAnswer]:
        """The answers to frames of several sessions, which arrive together. The error of a frame that is rejected."""
        self._seq += 1
        for session, seen in frames.items():
            images = seen.images.values()
            self._worker.inbox.put(
                SubmitFrame(
                    session=session,
                    epoch=self._epochs[session],
                    seq=self._seq,
                    sizes=[side for image in images for side in (image.height, image.width)],
                    instruction=seen.instruction,
                    payload=tuple(image.data for image in images),
                    state=[number for vector in seen.state.values() for number in vector],
                    stamp_ns=seen.stamp_ns,
                    start_delay_ns=round(seen.delay_ms * 1e6),
                )
            )
        shared = self._drain()
        answers = {}
        for message in self._take():
            if isinstance(message, FrameDropped):
                kind = REQUEST_ERRORS.get(message.code, InvalidArgument)
                raise kind(message.text, reason=message.reason)
            if isinstance(message, FrameResult):
                chunk = message.chunk
                answers[message.session] = BenchAnswer(
                    values=np.array(chunk.values).reshape(chunk.horizon, -1),
                    passes=message.passes,
                    step_ms=chunk.step_ms,
                    shared=shared,
                    ns=message.inference_ns,
                )
        if answers.keys() != frames.keys():
            raise WorkerError(f"{len(answers)} of {len(frames)} frames were answered")
        return answers

    def episode(self, frames: Sequence[Observation], session: int | None = None) -> list[BenchAnswer]:
        """The answers to frames of one robot, one after the other; in a new session by default."""
        if session is not None:
            return [self.together({session: frame})[session] for frame in frames]
        with self.robots() as (opened,):
            return self.episode(frames, opened)

    def alone(self, frame: Observation) -> BenchAnswer:
        """The answer to the first frame of an episode."""
        return self.episode([frame])[0]

    def _open(self) -> int:
        self._opened += 1
        self._epochs[self._opened] = 1
        self._worker.inbox.put(OpenSession(session=self._opened, epoch=1, pace=Pace(1), unnorm_key=self._key))
        self._drain()
        for message in self._take():
            if isinstance(message, SessionRejected):
                raise WorkerError(f"session {message.session} is rejected: {message.text}")
        return self._opened

    def _close(self, sessions: Iterable[int]) -> None:
        for session in sessions:
            self._worker.inbox.put(CloseSession(session))
            del self._epochs[session]
        self._drain()
        self._take()

    def _drain(self) -> int:
        """Run until nothing is left; the most frames that began in one pass."""
        while self._worker.step():
            pass
        return max((sample.prefills for sample in self._worker.take_passes()), default=0)

    def _take(self) -> list[Message]:
        """The messages since the last call."""
        said = list(self._said)
        self._said.clear()
        return said
