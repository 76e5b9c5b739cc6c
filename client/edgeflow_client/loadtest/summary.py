"""Computes the figures of a run from its ledgers, for one robot and for all together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from edgeflow_client.connection.wire import Opened
from edgeflow_client.loadtest.measure import Distribution, distribution
from edgeflow_client.loadtest.robots.ledger import Fate, Ledger, SentFrame
from edgeflow_client.loadtest.robots.plan import Fixed, LoadPlan
from edgeflow_client.loadtest.run import Measurement
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Execution

LATE_MS = 5.0  # p99 of the generator's delay, beyond which it cannot measure a service


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCounts:
    """Counts of frames: each offered frame is acted, superseded, rejected, dropped or unanswered.

    The mappings count by reason.
    """

    offered: int
    acted: int
    superseded: int
    rejected: dict[str, int]
    dropped: dict[str, int]
    unanswered: dict[str, int]
    overtaken: int
    """Superseded frames that were in flight on the device when a newer one was answered."""
    unsettled: int
    """Frames answered with tokens that were not verified."""
    continued: int
    """Frames whose chunk continues the one in execution."""
    late: int
    """Continued frames whose chunk did not fit the one in execution on arrival."""

    @property
    def shares(self) -> dict[str, float]:
        """overtaken_share: of the offered frames. unsettled_share, continued_share, late_share: of those acted on."""
        whole = {"overtaken": self.offered, "unsettled": self.acted, "continued": self.acted, "late": self.acted}
        return {f"{name}_share": getattr(self, name) / of if of else math.nan for name, of in whole.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSummary:
    """Figures of one robot, or of all of them."""

    robots: int
    frames: FrameCounts
    fps: float
    """Actions received per second. age: due to received, on the client's clock. service, decode, queue, inference:
    as reported by the service; transport: age minus service. interval: between actions of one robot. start_jitter:
    difference between the interval of the pass starts of consecutive frames and the interval of their arrivals.
    pass: inference divided by passes.
    """
    age_ms: Distribution
    service_ms: Distribution
    decode_ms: Distribution
    queue_ms: Distribution
    inference_ms: Distribution
    transport_ms: Distribution
    interval_ms: Distribution
    start_jitter_ms: Distribution
    pass_ms: Distribution
    passes: Distribution
    """Passes per action, reported by the service."""
    misses: int
    """Actions older than the requested limit, or without one than their own limit."""
    gaps: int
    """Times in which a robot had no valid action."""
    longest_gap_ms: float
    latency_at_execution_ms: Distribution
    """Due to executed, per executed row."""
    held_ms: float
    """Time after a robot's first action without a valid one."""
    held_share: float
    """The same, of all time after the first action."""
    executions: dict[str, int] = field(default_factory=dict)
    """Actions by how the service had them executed."""
    hold: dict[str, int] = field(default_factory=dict)
    stop: dict[str, int] = field(default_factory=dict)
    notices: dict[str, int] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    contradictions: dict[str, int] = field(default_factory=dict)
    """`hold`, `stop`, `notices`, `losses`, `contradictions`: by reason."""

    @property
    def jitter_ms(self) -> float:
        """Standard deviation of the action interval."""
        return self.interval_ms.deviation

    @property
    def pass_jitter(self) -> float:
        """p99 of the pass time divided by its p50."""
        return self.pass_ms.p99 / self.pass_ms.p50 if self.pass_ms.p50 > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Generator:
    """How late the load generator was. lateness: due to the start of the write; lag: of the event loop."""

    lateness_ms: Distribution
    lag_ms: Distribution

    @property
    def is_bottleneck(self) -> bool:
        return self.lateness_ms.p99 > LATE_MS or self.lag_ms.p99 > LATE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The service's forecast for a robot that keeps its declared period, with the measured values.

    age: mean time inside the service, as the service defines it.
    """

    mode: str
    depth: int
    fps: float
    measured_fps: float
    age_ms: float
    measured_age_ms: float
    kept: bool
    """True when the robot kept that period and did not rest. Only then are there deviations, (measured / forecast - 1)
    in per cent, else NaN.
    """

    @property
    def fps_deviation(self) -> float:
        return 100 * (self.measured_fps / self.fps - 1) if self.kept else math.nan

    @property
    def age_deviation(self) -> float:
        return 100 * (self.measured_age_ms / self.age_ms - 1) if self.kept else math.nan


def summarise(run: Measurement, ledgers: Sequence[Ledger]) -> RobotSummary:
    """Summarise the frames that were due, and the events that happened, in the measured time."""
    offered = [frame for ledger in ledgers for frame in ledger.frames if _inside(frame.scheduled_ns, run)]
    acted = [frame for frame in offered if frame.fate is Fate.ACTED]
    received = [frame for ledger in ledgers for frame in received_of(run, ledger)]
    gaps_ms = [gap for ledger in ledgers for gap in _gaps_ms(run, received_of(run, ledger))]
    stretches = [each for ledger in ledgers for each in _stretches(run, received_of(run, ledger))]
    held_ms = sum(max(length_ms - frame.valid_for_ms, 0.0) for length_ms, frame in stretches)
    directed_ms = sum(length_ms for length_ms, _ in stretches)
    limit_s = run.plan.session.max_action_age_s
    timings = [frame.timings for frame in acted]
    return RobotSummary(
        robots=len(ledgers),
        frames=_frames(offered),
        fps=len(received) / ((run.end_ns - run.begin_ns) / 1e9),
        age_ms=distribution([frame.age_ns / 1e6 for frame in acted]),
        service_ms=distribution([frame.server_ns / 1e6 for frame in acted]),
        decode_ms=distribution([each.decode_ns / 1e6 for each in timings]),
        queue_ms=distribution([each.queue_ns / 1e6 for each in timings]),
        inference_ms=distribution([each.inference_ns / 1e6 for each in timings]),
        transport_ms=distribution([(frame.age_ns - frame.server_ns) / 1e6 for frame in acted]),
        interval_ms=distribution([each for ledger in ledgers for each in _intervals_ms(received_of(run, ledger))]),
        start_jitter_ms=distribution([each for ledger in ledgers for each in _start_jitter_ms(run, ledger)]),
        pass_ms=distribution([each.inference_ns / each.passes / 1e6 for each in timings if each.passes]),
        passes=distribution([each.passes for each in timings]),
        misses=sum(frame.missed(limit_s) for frame in acted),
        gaps=len(gaps_ms),
        longest_gap_ms=max(gaps_ms, default=0.0),
        latency_at_execution_ms=distribution(
            [each for ledger in ledgers for each in _latencies_ms(run, received_of(run, ledger))]
        ),
        held_ms=held_ms,
        held_share=held_ms / directed_ms if directed_ms else math.nan,
        executions=dict(Counter(frame.execution for frame in acted if frame.execution)),
        hold=_happenings(run, ledgers, "hold"),
        stop=_happenings(run, ledgers, "stop"),
        notices=_happenings(run, ledgers, "notice"),
        losses=_happenings(run, ledgers, "lost"),
        contradictions=_happenings(run, ledgers, "contradicted"),
    )


def generator_of(run: Measurement) -> Generator:
    """The generator's lateness, from all robots' frames and the samples of the event loop."""
    sent = [frame for ledger in run.ledgers for frame in ledger.frames if frame.sent_ns]
    late = [(frame.sent_ns - frame.scheduled_ns) / 1e6 for frame in sent if _inside(frame.scheduled_ns, run)]
    return Generator(distribution(late), distribution([lag / 1e6 for lag in run.lags_ns]))


def prediction_of(plan: LoadPlan, opened: Opened | None, summary: RobotSummary) -> Prediction | None:
    """The prediction for one robot; None when the service gave no forecast or no action."""
    if opened is None or not (opened.predicted_fps > 0 and opened.predicted_age_s > 0 and summary.frames.acted):
        return None
    kept = isinstance(plan.pattern, Fixed) and abs(plan.pattern.rate_hz * plan.session.control_period_s - 1) < 0.03
    rests = Execution.REST.value in summary.executions
    return Prediction(
        mode=opened.mode.value,
        depth=opened.depth,
        fps=opened.predicted_fps,
        measured_fps=summary.fps,
        age_ms=opened.predicted_age_s * 1000,
        measured_age_ms=summary.service_ms.mean,
        kept=kept and not rests,
    )


def received_of(run: Measurement, ledger: Ledger) -> list[SentFrame]:
    """Frames whose actions arrived in the measured time, in the order of arrival."""
    acted = (frame for frame in ledger.frames if frame.fate is Fate.ACTED and _inside(frame.received_ns, run))
    return sorted(acted, key=lambda frame: frame.received_ns)


def _frames(offered: Sequence[SentFrame]) -> FrameCounts:
    reasons = {fate: Counter(frame.reason for frame in offered if frame.fate is fate) for fate in Fate}
    return FrameCounts(
        offered=len(offered),
        acted=reasons[Fate.ACTED].total(),
        superseded=reasons[Fate.SUPERSEDED].total(),
        rejected=dict(reasons[Fate.REJECTED]),
        dropped=dict(reasons[Fate.DROPPED]),
        unanswered=dict(reasons[Fate.UNANSWERED]),
        overtaken=reasons[Fate.SUPERSEDED][Reason.OVERTAKEN],
        unsettled=sum(frame.unsettled > 0 for frame in offered),
        continued=sum(frame.continued for frame in offered),
        late=sum(frame.late for frame in offered),
    )


def _intervals_ms(received: Sequence[SentFrame]) -> list[float]:
    return [(after.received_ns - before.received_ns) / 1e6 for before, after in pairwise(received)]


def _start_jitter_ms(run: Measurement, ledger: Ledger) -> list[float]:
    """Pass-start jitter between each two consecutive frames that were both acted on."""
    acted = [frame for frame in ledger.frames if frame.fate is Fate.ACTED and _inside(frame.scheduled_ns, run)]
    neighbours = ((before, after) for before, after in pairwise(acted) if after.number == before.number + 1)
    return [abs(after.start_ns - before.start_ns) / 1e6 for before, after in neighbours]


def _gaps_ms(run: Measurement, received: Sequence[SentFrame]) -> list[float]:
    """Intervals from an action to the next, or to the end, that outlast its validity; the whole run without actions."""
    if not received:
        return [(run.end_ns - run.begin_ns) / 1e6]
    return [length_ms for length_ms, frame in _stretches(run, received) if length_ms > frame.valid_for_ms]


def _stretches(run: Measurement, received: Sequence[SentFrame]) -> list[tuple[float, SentFrame]]:
    """Time in ms from each action to the next, or to the end."""
    return [((end_ns - frame.received_ns) / 1e6, frame) for frame, end_ns in _until_next(run, received)]


def _latencies_ms(run: Measurement, received: Sequence[SentFrame]) -> list[float]:
    """Latency at execution of each row that was executed."""
    executed = [frame for frame in received if frame.executed is not None]
    return [ns / 1e6 for frame, end_ns in _until_next(run, executed) for ns in frame.latencies_ns(end_ns)]


def _until_next(run: Measurement, received: Sequence[SentFrame]) -> Iterator[tuple[SentFrame, int]]:
    """Each frame with the receipt of the next one's action, or the end of the run."""
    ends_ns = (*(frame.received_ns for frame in received[1:]), run.end_ns)
    return zip(received, ends_ns, strict=False)  # without frames there is only the end


def _happenings(run: Measurement, ledgers: Sequence[Ledger], kind: str) -> dict[str, int]:
    reasons = (
        each.reason
        for ledger in ledgers
        for each in ledger.happenings
        if each.kind == kind and _inside(each.at_ns, run)
    )
    return dict(Counter(reasons))


def _inside(instant_ns: int, run: Measurement) -> bool:
    return run.begin_ns <= instant_ns < run.end_ns
