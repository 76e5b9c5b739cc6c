"""Pass times measured at start in the worker's own loop, so that they contain everything it does for a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from edgeflow.contract import Pace, PassTimes, Speculation
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.offline import limits_for, program_of
from edgeflow.engine.control.profile import Pacer
from edgeflow.engine.control.samples import sample_observations, uncounted
from edgeflow.engine.policy import INSTRUCTION
from edgeflow.ipc.messages import CloseSession, OpenSession, SubmitFrame
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import Clock, MonotonicClock

REPEATS = 5
PATIENCE_NS = 10_000_000_000  # of each kind of pass: slow ones are repeated less often
DRAFTED = 3  # frames that follow each other in a row, of which all but the first find others under way


class _Driver:
    def __init__(self, engine: PassEngine, row_budget: int, pacer: Pacer | None, clock: Clock, text: str) -> None:
        self._samples: list[PassSample] = []
        self.engine = engine
        self._text = text
        self._seq = 0
        self.sessions = min(2, engine.sessions)
        self.program = program_of(engine)
        self._key = next(key for key in engine.policy.unnorm_keys if engine.policy.program(key) == self.program)
        self.stages = self.program.passes
        self._limits = limits_for(self.stages, sessions=self.sessions, row_budget=row_budget)
        self.pacer, self._clock = pacer, clock
        self.begin(whole=False)
        (self._observation,) = sample_observations(engine.policy.inputs, 1, text)

    def begin(self, *, whole: bool) -> None:
        """Begin with a scheduler whose serial frames are whole passes, or not."""
        scheduler = Scheduler(self._limits, whole=whole)
        self._worker = Worker(self.engine, scheduler, self._clock, lambda message: None, pacer=self.pacer)  # noqa: ARG005 - nobody waits for these actions

    def open(self, sessions: int, pace: Pace) -> None:
        for session in range(sessions):
            opened = OpenSession(session=session, epoch=1, pace=pace, unnorm_key=self._key, instruction=self._text)
            self._worker.inbox.put(opened)

    def close(self, sessions: int) -> None:
        for session in range(sessions):
            self._worker.inbox.put(CloseSession(session))
        self.step()

    def offer(self, sessions: int) -> None:
        self._seq += 1
        images = self._observation.images.values()
        for session in range(sessions):
            self._worker.inbox.put(
                SubmitFrame(
                    session=session,
                    epoch=1,
                    seq=self._seq,
                    sizes=[side for image in images for side in (image.height, image.width)],
                    state=[number for vector in self._observation.state.values() for number in vector],
                    instruction=self._text,
                    payload=tuple(image.data for image in images),
                )
            )

    def step(self) -> bool:
        busy = self._worker.step()
        self._samples += self._worker.take_passes()
        return busy

    def drain(self) -> None:
        while self.step():
            pass

    def take(self) -> list[PassSample]:
        """The passes since the last call."""
        samples, self._samples = self._samples, []
        return samples


def calibrate(
    engine: PassEngine,
    *,
    row_budget: int = 1 << 30,
    pacer: Pacer | None = None,
    clock: Clock | None = None,
    instruction: str = INSTRUCTION,
) -> PassTimes:
    """Measure medians at the corners of the cost model: serial, pipelined and drained, two sessions side by side; then
    the cost of a row of drafts, for policies that draft.
    """
    clock = clock or MonotonicClock()
    with uncounted(engine.policy):
        return _measured(_Driver(engine, row_budget, pacer, clock, instruction), clock)


def _measured(driver: _Driver, clock: Clock) -> PassTimes:
    stages = driver.stages
    for sessions in range(1, driver.sessions + 1):
        _serve(driver, sessions, clock)
    driver.open(1, Pace(stages))
    for _ in _repeats(clock):
        _follow(driver, stages)
    driver.close(1)
    times = _corners(driver.take(), stages)
    if driver.program.drafts:
        for _ in _repeats(clock):  # the first frame of a session has nothing to draft from and takes longer
            driver.open(1, Pace(0, Speculation()))
            _follow(driver, DRAFTED)
            driver.close(1)
    times = replace(times, row_ns=_row_ns(driver.take(), times))
    if driver.engine.runs_whole and driver.pacer is None:
        driver.begin(whole=True)
        _serve(driver, 1, clock)
        times = replace(times, whole_ns=round(median(sample.ns for sample in driver.take())))
    return times


def _serve(driver: _Driver, sessions: int, clock: Clock) -> None:
    """Answer frames of serial sessions, one of each at a time."""
    driver.open(sessions, Pace(1))
    for _ in _repeats(clock):
        driver.offer(sessions)
        driver.drain()
    driver.close(sessions)


def _repeats(clock: Clock) -> Iterator[int]:
    """Yield up to REPEATS times, or until PATIENCE_NS have passed."""
    begun_ns = clock.now_ns()
    for index in range(REPEATS):
        yield index
        if clock.now_ns() - begun_ns >= PATIENCE_NS:
            return


def _follow(driver: _Driver, frames: int) -> None:
    """Offer frames, one after each pass."""
    for _ in range(frames):
        driver.offer(1)
        driver.step()
    driver.drain()


def _corners(samples: list[PassSample], stages: int) -> PassTimes:
    def typical(prefills: int, decodes: int, otherwise: int) -> int:
        times = [sample.ns for sample in samples if (sample.prefills, sample.decodes) == (prefills, decodes)]
        return round(median(times)) if times else otherwise

    prefill_ns = typical(1, 0, 0)
    decode_ns = typical(0, 1, prefill_ns)
    return PassTimes(
        stages=stages,
        prefill_ns=prefill_ns,
        two_prefills_ns=typical(2, 0, 2 * prefill_ns),
        packed_ns=typical(1, stages - 1, prefill_ns),
        decode_ns=decode_ns,
        decodes_ns=typical(0, stages - 1, decode_ns),
        launch_ns=round(median(sample.lead_ns for sample in samples if sample.prefills == 1)),
    )


def _row_ns(samples: list[PassSample], times: PassTimes) -> int:
    """The median time of a row beyond a full packed pass; without such passes, the mean time of the rows within one."""
    full = times.stages - 1
    beyond = [(sample.ns - times.packed_ns, sample.decodes - full) for sample in samples if sample.prefills == 1]
    slopes = [ns // rows for ns, rows in beyond if rows > 0] or [(times.packed_ns - times.prefill_ns) // max(full, 1)]
    return max(round(median(slopes)), 0)
