"""Frames for a calibration, recorded on the spot: the policy in closed loop with the demo's simulated robot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Image, Observation
from edgeflow.engine.control.history import observation_of
from edgeflow.engine.control.offline import program_of
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.ipc.messages import SubmitFrame
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.progress import Report
from edgeflow.lab.quantize.policies.frames import FRAMES, RecordedFrame
from edgeflow.scheduler.pace import pace_of
from edgeflow.worker.build import BuiltEngine, build_engine
from edgeflow_client.types import Execution, Mode

PROFILE = DeviceProfile(name="recording", prefill_ns=50_000_000, decode_ns=15_000_000, packed_ns=50_000_000)
"""Roughly the pass times of a large policy on a desktop GPU, so that frames follow each other as they do there."""
PERIOD_S = 0.05
HELD_OUT_EPISODE = 1_990_000
FIRST_EPISODE = 2_000_000
"""First episode for calibration. Held-out episodes lie below, where no seed leads; training episodes lie below both."""
SEED_STRIDE = 1_000
HELD_OUT_FRAMES = 300


def record_frames(
    folder: Path, seed: int, report: Report, *, shown: int = FRAMES, held_out: int = HELD_OUT_FRAMES
) -> list[RecordedFrame]:
    """The frames that the policy answers in episodes of this seed, and those of the held-out episodes.

    shown, held_out: how many. Passes take the times of PROFILE, one frame after another; the objects are still.
    """
    built = build_engine(ServiceConfig(model=str(folder), max_sessions=1))
    first = FIRST_EPISODE + SEED_STRIDE * seed
    return [
        *_recorded(built, first, shown, lambda done: report("frames", done, shown), held_out=False),
        *_recorded(
            built, HELD_OUT_EPISODE, held_out, lambda done: report("held-out frames", done, held_out), held_out=True
        ),
    ]


def _recorded(
    built: BuiltEngine, first: int, count: int, done: Callable[[int], None], *, held_out: bool
) -> list[RecordedFrame]:
    """The first `count` frames of the episodes starting at `first`."""
    found: list[RecordedFrame] = []
    for episode, observations in _episodes(built, first):
        found += [RecordedFrame(episode=episode, observation=each, held_out=held_out) for each in observations]
        done(min(len(found), count))
        if len(found) >= count:
            break
    return found[:count]


def _episodes(built: BuiltEngine, first: int) -> Iterator[tuple[int, list[Observation]]]:
    """Endless episodes, with the observations that were answered in each."""
    observations: list[Observation] = []
    inputs, program = built.engine.policy.inputs, program_of(built.engine)

    def seen(frame: SubmitFrame) -> None:
        observations.append(_copied(observation_of(frame, inputs)))

    execution = Execution.FRESH if built.engine.policy.rtc is None else Execution.CONTINUE
    service = VirtualService(built.engine, built.limits, PROFILE.times_of(program), execution=execution, seen=seen)
    pace, sim, episode = pace_of(Mode.SERIAL, program.passes), RobotSim(first), first
    try:
        while True:
            sim.reset(episode)
            service.run_episode(sim, pace, period_s=PERIOD_S, anchored=True)
            yield episode, list(observations)
            observations.clear()
            episode += 1
    finally:
        sim.close()


def _copied(observation: Observation) -> Observation:
    """An observation with its own copy of the pixels."""
    images = {name: Image(image.height, image.width, bytes(image.data)) for name, image in observation.images.items()}
    return Observation(
        images=images, instruction=observation.instruction, state=observation.state, stamp_ns=observation.stamp_ns
    )
