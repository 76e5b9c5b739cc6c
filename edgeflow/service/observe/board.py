"""A Jetson's power mode, clocks, temperatures and throttling in metrics, log and /v1/models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from edgeflow.jetson import BoardFacts, power_difference, read_board
from edgeflow.service.observe.log import EventLog

SAMPLE_S = 1.0
FIRST_WITHIN_S = 2.0  # the service starts without the board's facts if its files do not answer
UNKNOWN = "unknown"


class BoardMonitor(Collector):
    """Samples the board once per second. A read may hang in the kernel, so it has a thread that nothing waits for.

    On another machine it shows nothing. root: the root of the files.
    """

    def __init__(self, registry: CollectorRegistry, log: EventLog, root: Path = Path("/")) -> None:
        self._registry = registry
        self._log = log
        self._root = root
        self._facts: BoardFacts | None = None
        self._measured: Mapping[str, str] = {}

    async def found(self) -> bool:
        """Take the first sample; True on a Jetson, whose facts are in the metrics from now on."""
        try:
            self._facts = await asyncio.wait_for(self._sample(), FIRST_WITHIN_S)
        except asyncio.TimeoutError:
            self._log.event("board_unreadable", within_s=FIRST_WITHIN_S)
        if self._facts is not None:
            self._registry.register(self)
        return self._facts is not None

    async def watch(self, changed: Callable[[], None]) -> None:
        """Sample forever. changed: called when the power mode changed, or times became those of another one."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.take(await self._sample(), changed)

    def _sample(self) -> asyncio.Future[BoardFacts | None]:
        loop = asyncio.get_running_loop()
        sampled: asyncio.Future[BoardFacts | None] = loop.create_future()

        def give(facts: BoardFacts | None) -> None:
            if not sampled.done():
                sampled.set_result(facts)

        def read() -> None:
            facts = read_board(self._root)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(give, facts)

        Thread(target=read, name="board", daemon=True).start()
        return sampled

    def take(self, facts: BoardFacts | None, changed: Callable[[], None]) -> None:
        """Take a sample."""
        if facts is None or self._facts is None:
            return
        before, elsewhere = self._facts.power_mode, bool(self.measured_elsewhere)
        self._facts = facts
        if facts.power_mode != before or bool(self.measured_elsewhere) is not elsewhere:
            self._log.event("power_changed", power_mode=facts.power_mode, measured_elsewhere=self.measured_elsewhere)
            changed()

    def measured(self) -> None:
        """Pass times were measured now."""
        self._measured = self._facts.power if self._facts is not None else {}

    @property
    def measured_elsewhere(self) -> str:
        """How the power mode or the largest clocks differ from those in which pass times were measured; "" if not."""
        return power_difference(self._measured, self._facts.power) if self._facts is not None else ""

    def summary(self) -> dict[str, Any]:
        """The board for /v1/models; empty on another machine."""
        if self._facts is None:
            return {}
        return {
            "board": {
                "model": self._facts.model,
                "power_mode": self._facts.power_mode,
                "times_measured_in": dict(self._measured),
                "times_measured_elsewhere": self.measured_elsewhere or None,
            }
        }

    def collect(self) -> Iterator[Metric]:
        """The facts of the last sample; what the board does not say has no series."""
        facts = self._facts
        if facts is None:
            return
        info = GaugeMetricFamily("edgeflow_board_info", "Model and power mode.", labels=["model", "power_mode"])
        info.add_metric([facts.model, facts.power_mode or UNKNOWN], 1)
        yield info
        clocks = facts.clocks
        yield _gauge("clock_hertz", "Clock now.", "part", {name: each.now_hz for name, each in clocks.items()})
        text = "The largest clock that power mode and throttling permit now."
        yield _gauge("clock_max_hertz", text, "part", {name: each.most_hz for name, each in clocks.items()})
        yield _gauge("temperature_celsius", "Temperature of a thermal zone.", "zone", facts.temperatures)
        yield _gauge("throttling", "Whether a part is throttled for its temperature (1).", "device", facts.throttling)
        events = CounterMetricFamily("edgeflow_board_throttled", "Times throttled for its supply.", labels=["event"])
        for event, count in facts.throttled.items():
            events.add_metric([event], count)
        yield events
        text = "Whether pass times are those of another power mode or other clocks (1)."
        yield GaugeMetricFamily("edgeflow_times_measured_elsewhere", text, value=bool(self.measured_elsewhere))


def _gauge(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(f"edgeflow_board_{name}", text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family
