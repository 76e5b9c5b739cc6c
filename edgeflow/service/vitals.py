"""The service as live pages see it: worker, passes against their forecast, the device's share, recording, warnings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.ipc.messages import Pong
from edgeflow.service.observe.health import Health
from edgeflow.service.sessions.observers import Metrics
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.status import ServiceStatus
from edgeflow_client.clock import Clock
from edgeflow_client.types import Mode

KEPT = 40  # Pongs: those of ten seconds
PASSES_NS = 2_000_000_000  # over which passes are measured
WHOLE = 100


class ShownService(Protocol):
    """The service that is described."""

    plane: ControlPlane
    health: Health
    metrics: Metrics
    status: ServiceStatus
    """Its last announcement."""


class ServiceVitals:
    """Describes the service for live pages. standby: state of the worker in reserve."""

    def __init__(self, config: ServiceConfig, service: ShownService, standby: Callable[[], str], clock: Clock) -> None:
        self._config = config
        self._service = service
        self._standby = standby
        self._clock = clock
        self._pongs: deque[tuple[int, Pong]] = deque(maxlen=KEPT)

    def pong(self, message: Pong) -> None:
        """The worker reported its passes."""
        if self._pongs and message.passes < self._pongs[-1][1].passes:  # another worker
            self._pongs.clear()
        self._pongs.append((self._clock.now_ns(), message))

    def __call__(self) -> dict[str, Any]:
        """The service now; None where something is unknown."""
        now_ns, status = self._clock.now_ns(), self._service.status
        passes, share = self._passes(now_ns)
        return {
            "state": self._service.health.state.value,
            "worker": self._worker(status),
            "standby": self._standby(),
            "passes": passes,
            "share": share,
            "share_left": self._share_left(),
            "recording": status.recording,
            "warnings": [*status.warnings, *self._warnings()],
            "addresses": {"grpc": status.grpc_address, "robots": status.robots_address},
        }

    def _worker(self, status: ServiceStatus) -> dict[str, Any]:
        newest = self._service.plane.newest_worker
        restarts = _values(self._service.metrics.worker_restarts).values()
        return {
            "state": "ready" if self._service.plane.worker is not None else "starting" if newest is None else "lost",
            "restarts": round(sum(restarts)),
            "device": newest.device if newest is not None else status.device,
        }

    def _passes(self, now_ns: int) -> tuple[dict[str, float] | None, float | None]:
        """The passes of the last seconds beside the forecast for passes of the same shapes, and their share of the
        time.
        """
        times = self._service.plane.admission.pass_times
        recent = [each for each in self._pongs if now_ns - each[0] <= PASSES_NS]
        if times is None or len(recent) < 2:
            return None, None
        span_s = (recent[-1][0] - recent[0][0]) / 1e9
        measured, expected, count = 0, 0, 0
        for _, pong in recent[1:]:
            shapes = zip(pong.pass_prefills, pong.pass_decodes, pong.pass_whole, strict=True)
            count += len(pong.pass_ns)
            measured += sum(pong.pass_ns)
            expected += sum(times.pass_ns(*shape) for shape in shapes)
        if not count:
            return {"per_s": 0.0, "ms": 0.0, "forecast_ms": 0.0}, 0.0
        passes = {
            "per_s": count / span_s,
            "ms": measured / count / 1e6,
            "forecast_ms": expected / count / 1e6,
        }
        return passes, min(measured / 1e9 / span_s, 1.0)

    def _share_left(self) -> float | None:
        """The share of the device that admission still gives: all but the headroom and the rates promised to open
        sessions, each against the most that one robot could get in its mode. An estimate: robots that share passes
        take less.
        """
        most = {mode: fps for (mode,), fps in _values(self._service.metrics.predicted_fps).items()}
        left = 1 - self._config.admission_headroom_percent / WHOLE
        for plan in self._service.plane.admission.plans.values():
            fps = most.get(_name(plan.pace, plan.stages), 0.0)
            left -= plan.forecast.begun_fps / fps if fps else 0.0
        return max(left, 0.0) if most else None

    def _warnings(self) -> list[str]:
        found = []
        unusual = self._pongs[-1][1].unusual_states - self._pongs[0][1].unusual_states if self._pongs else 0
        if unusual > 0:
            found.append(f"{unusual} frames of the last seconds had a state outside the range of its statistics")
        if any(_values(self._service.metrics.recording_failing).values()):
            found.append("recordings cannot be written")
        return found


def _name(pace: Pace, stages: int) -> str:
    """The name of a pace among the forecasts."""
    if pace.speculation is not None:
        return Mode.SPECULATIVE.value
    return {stages: Mode.PIPELINED.value, 1: Mode.SERIAL.value}.get(pace.depth, f"depth {pace.depth}")


def _values(metric: Any) -> Mapping[tuple[str, ...], float]:
    """The values of a counter or gauge by its labels."""
    (family,) = metric.collect()
    return {tuple(s.labels.values()): s.value for s in family.samples if not s.name.endswith("_created")}
