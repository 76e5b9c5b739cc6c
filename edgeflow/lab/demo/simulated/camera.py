"""Frames in simulated time: their buffers are filled only when, and if, they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeflow.contract import Image
from edgeflow.ipc.messages import SubmitFrame
from edgeflow.lab.demo.world.scene import POLICY_SIZE, Moment
from edgeflow.lab.demo.world.sim import RobotSim

SESSION = 1
EPOCH = 1
Seen = Callable[[SubmitFrame], None]
"""Called with each frame that is rendered."""


KEPT = 64
"""Frames before the newest rendered one that a history may still ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFrame(SubmitFrame):
    """A frame that is rendered when its pixels are read."""

    draw: Callable[[int], None]

    def images(self) -> list[Image]:
        self.draw(self.seq)
        return SubmitFrame.images(self)


class SimulatedCamera:
    """Captures frames; each is rendered when its pixels are read, as the camera saw it at capture.

    frames: captured so far.
    """

    def __init__(self, sim: RobotSim, seen: Seen | None = None) -> None:
        self.frames = 0
        self._sim = sim
        self._seen = seen
        self._waiting: dict[int, tuple[Moment, bytearray, SubmitFrame]] = {}

    def capture(self, state: Sequence[float] = (), stamp_ns: int = 0) -> SubmitFrame:
        """The next frame, not rendered yet.

        state: values of the policy's state vectors. stamp_ns: on the robot's clock.
        """
        self.frames += 1
        pixels = bytearray(POLICY_SIZE * POLICY_SIZE * 3)
        frame = CapturedFrame(
            draw=self.draw,
            session=SESSION,
            epoch=EPOCH,
            seq=self.frames,
            sizes=[POLICY_SIZE, POLICY_SIZE],
            instruction=self._sim.instruction,
            payload=memoryview(pixels),
            state=list(state),
            stamp_ns=stamp_ns,
        )
        self._waiting[self.frames] = self._sim.moment(), pixels, frame
        return frame

    def draw(self, seq: int) -> None:
        """Render a frame into its buffer, once."""
        if seq not in self._waiting:
            return
        moment, pixels, frame = self._waiting.pop(seq)
        pixels[:] = self._sim.draw(moment).tobytes()
        if self._seen is not None:
            self._seen(frame)
        self._waiting = {each: frame for each, frame in self._waiting.items() if each > seq - KEPT}
