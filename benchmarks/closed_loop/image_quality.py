"""The cost of JPEG and of resizing images, in success: the embedded policy in closed loop, in simulated time.

    .venv/bin/python -m benchmarks.closed_loop.image_quality --json FILE

The same episodes for every way of sending, still objects and objects at 5 cm/s, with the encoder and the resizing of
the SDK. Images have the 96 x 96 pixels that the policy was trained with, or are taken with 192 x 192 and shrunk by the
SDK. Beside success: bytes per image, and the time that a 640 x 480 image takes to encode on this machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.closed_loop.grid import PERIOD_S, RTX5090, STAGES, condition
from benchmarks.command import keep, machine_facts, options
from edgeflow.engine.control.offline import program_of
from edgeflow.engine.control.profile import PROFILES
from edgeflow.lab.demo.evaluation import load_policy, result_of, run_episodes
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.scene import POLICY_CAMERA, POLICY_SIZE, Image, Moment, Spectator
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.model_paths import EMBEDDED_MODEL
from edgeflow.scheduler.pace import auto_pace
from edgeflow.worker.build import BuiltEngine
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.pictures import Picture
from edgeflow_client.types import CameraSpec, ImageFormat

SPEEDS = (0.0, 0.05)  # m/s
QUALITIES = (50, 75, 85, 90, 95)
LARGE = 192  # pixels per side of a camera whose images are shrunk
ENCODED, ENCODED_TIMES = (640, 480), 200


@dataclass(frozen=True, slots=True)
class SentImages:
    """A way of sending images."""

    side: int = POLICY_SIZE
    """Pixels per side of the camera's images; the SDK shrinks larger ones to the policy's."""
    quality: int = 0
    """Quality of the JPEG; 0 = raw."""


WAYS = (
    SentImages(),
    *(SentImages(quality=quality) for quality in QUALITIES),
    SentImages(LARGE),
    SentImages(LARGE, 75),
    SentImages(LARGE, 90),
)


class SendingSim(RobotSim):
    """A robot whose images arrive as they were sent. sizes: bytes of each."""

    def __init__(self, seed: int, speed: float, way: SentImages) -> None:
        super().__init__(seed, speed)
        self._way = way
        self.sizes: list[int] = []

    def draw(self, moment: Moment, spectator: Spectator | None = None) -> Image:
        """The frame as the service gets it."""
        image = self._scene.picture(moment, spectator, self._way.side)
        data = sent(image, self._way)
        self.sizes.append(len(data))
        if not self._way.quality:
            return np.frombuffer(data, np.uint8).reshape(POLICY_SIZE, POLICY_SIZE, 3)
        decoded: Image = simplejpeg.decode_jpeg(data, colorspace="RGB")
        return decoded


def sent(image: Image, way: SentImages) -> bytes:
    """The bytes of an image on the wire."""
    send = ImageFormat.JPEG if way.quality else ImageFormat.RGB8
    camera = CameraSpec(POLICY_CAMERA, way.side, way.side, ImageFormat.RGB8, send=send, quality=way.quality or 1)
    return Picture(image.tobytes(), camera, (POLICY_SIZE, POLICY_SIZE)).encoded()


def conditions(built: BuiltEngine, episodes: int) -> Iterator[dict[str, Any]]:
    """A row for each way and speed."""
    program = program_of(built.engine)
    pace, times = auto_pace(program), PROFILES[RTX5090].times_of(program)
    service = VirtualService(built.engine, built.limits, times)
    for speed in SPEEDS:
        sent_at = condition(pace, speed, RTX5090)
        for way in WAYS:
            sim, seeds = SendingSim(FRESH_SEEDS, speed, way), range(FRESH_SEEDS, FRESH_SEEDS + episodes)
            runs = list(run_episodes(service, sent_at, seeds, PERIOD_S, sim))
            figures = result_of(sent_at, [runs], STAGES, PERIOD_S).as_json()
            yield {"camera": way.side, "quality": way.quality, "bytes": statistics.mean(sim.sizes), **figures}


def encoding() -> Iterator[dict[str, float]]:
    """Time and bytes of a camera's image at each quality."""
    for quality in QUALITIES:
        camera = CameraSpec("camera", *ENCODED, ImageFormat.RGB8, send=ImageFormat.JPEG, quality=quality)
        pictures = [Picture(pixels, camera) for (pixels,) in frames_for([camera], None, 8, seed=0)]
        times_ms, sizes = [], []
        for index in range(ENCODED_TIMES):
            began = time.perf_counter()
            sizes.append(len(pictures[index % len(pictures)].encoded()))
            times_ms.append(1000 * (time.perf_counter() - began))
        yield {"quality": quality, "ms": statistics.median(times_ms), "bytes": statistics.mean(sizes)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine_facts(), "model": EMBEDDED_MODEL, "encoding": list(encoding())}
    rows = []
    for row in conditions(load_policy(EMBEDDED_MODEL), arguments.episodes):
        said = f"quality {row['quality']}" if row["quality"] else "raw"
        print(f"{row['camera']} px, {said}, {row['speed_cm_s']:g} cm/s: {row['successes']} of {row['episodes']}")
        rows.append(row)
    keep(arguments.json, {**report, "conditions": rows})


if __name__ == "__main__":
    main()
