"""The progress bar of a load test, with rate and age over the last second."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from edgeflow_client.loadtest.robots.ledger import Fate, Ledger
from edgeflow_client.loadtest.robots.plan import LoadPlan, Ramp
from edgeflow_client.loadtest.run import Measurement

WINDOW_NS = 1_000_000_000
LOOK_BACK = 2_000  # frames of a robot that may hold the last second's actions


class LiveView:
    """A progress bar: pass it to LoadRun as `tick`, and enter the context to show it."""

    def __init__(self, plan: LoadPlan, console: Console) -> None:
        columns = (TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[now]}"))
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("opening", total=None, now="")
        self._length_s = planned_s(plan)

    def __enter__(self) -> LiveView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, run: Measurement, now_ns: int) -> None:
        if self._progress.disable:
            return
        fps, age_ms = recent(run.ledgers, now_ns)
        age = f"age {age_ms:.0f} ms" if math.isfinite(age_ms) else "no actions"
        elapsed_s = (now_ns - run.begin_ns) / 1e9
        self._progress.update(
            self._task,
            description="warm-up" if elapsed_s < 0 else "measuring",
            completed=max(elapsed_s, 0.0),
            total=self._length_s if elapsed_s >= 0 else None,
            now=f"{fps:.1f} FPS, {age}",
        )


def recent(ledgers: Sequence[Ledger], now_ns: int) -> tuple[float, float]:
    """Actions per second and their median age in ms (NaN: none), over the second before now."""
    ages = [
        frame.age_ns / 1e6
        for ledger in ledgers
        for frame in ledger.frames[-LOOK_BACK:]
        if frame.fate is Fate.ACTED and now_ns - frame.received_ns < WINDOW_NS
    ]
    return len(ages) * 1e9 / WINDOW_NS, float(np.median(ages)) if ages else math.nan


def planned_s(plan: LoadPlan) -> float | None:
    """How long the measurement takes at most; None when a number of frames ends it."""
    if isinstance(plan.pattern, Ramp):
        return len(plan.pattern.rates_hz) * plan.pattern.step_s
    return None if plan.count is not None else plan.duration_s
