"""A training run: its progress bars, its CPU time, and the state that it saves."""

from __future__ import annotations

import math
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from edgeflow.lab.training.learner import ANEW, Learner
from edgeflow_client.errors import ConfigError, Stopped

_SAVE_EVERY: Final = 60.0  # seconds


class Trainer(Protocol):
    """A model in training; one `step` is one batch, the same for the same seed and step number."""

    learner: Learner

    def step(self) -> tuple[float, str]:
        """Train on one batch; return the loss and a note for the progress bar."""
        ...


def run_training(
    trainer: Trainer, steps: int, *, state: Path, resume: bool, progress: Progress, cpu_before: float
) -> None:
    """Train up to a number of steps, and save the state at regular times and at the end.

    SIGINT and SIGTERM end the run after the current step: the state is saved and Stopped raised; a second signal acts
    at once. resume: continue from the state, if there is one. cpu_before: `cpu_seconds` at the start of the run.
    """
    learner, saved_at = trainer.learner, time.monotonic()
    if resume and state.exists():
        learner.load(state, steps)
    cpu_before -= learner.cpu_seconds
    begins_with = f"already finished: {ANEW}" if learner.done_steps >= steps else ""
    bar = progress.add_task("training", total=steps, completed=learner.done_steps, note=begins_with)
    with stop_signals() as stopped:
        while learner.done_steps < steps and not stopped():
            loss, note = trainer.step()
            learner.cpu_seconds = cpu_seconds() - cpu_before
            progress.update(bar, completed=learner.done_steps, note=f"loss {loss:.3f}" + (f", {note}" if note else ""))
            if time.monotonic() - saved_at > _SAVE_EVERY:
                learner.save(state, steps)
                saved_at = time.monotonic()
        learner.save(state, steps)
    if learner.done_steps < steps:
        how = "the same command" if resume else "the same command without --no-resume"
        raise Stopped(f"stopped after step {learner.done_steps} of {steps}: {how} continues from there")


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after SIGINT or SIGTERM. A second signal acts as before; only the main thread
    receives any.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def take(number: int, _: FrameType | None) -> None:
        came.append(number)
        restore()  # so that a second signal acts at once, in case the current step hangs

    for number in before:
        signal.signal(number, take)
    try:
        yield lambda: bool(came)
    finally:
        restore()


def training_progress(console: Console | None = None) -> Progress:
    """Progress bars with a `note` at the end.

    console: standard output if None.
    """
    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console)


def cpu_seconds() -> float:
    """User and system time of this process and its finished children."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


_WARM_UP: Final = 100  # steps


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a training run: its rate rises to `peak` and falls along a cosine to `floor`, shares of the highest."""

    steps: int
    peak: float = 1.0
    floor: float = 0.02


def rate_share(step: int, phases: Sequence[Phase]) -> float:
    """Share of the highest learning rate at a step of a run, which goes through its phases in turn."""
    into = step
    for phase in phases:
        if into < phase.steps:
            break
        into -= phase.steps
    cosine = phase.floor + (phase.peak - phase.floor) * 0.5 * (1.0 + math.cos(math.pi * into / phase.steps))
    return min(1.0, (into + 1) / _WARM_UP) * cosine


def budget_share(minutes: float | None, full: float) -> float:
    """The share of a full run that fits a budget in minutes; None = all of it. ConfigError for a budget of nothing."""
    if minutes is None:
        return 1.0
    if minutes <= 0:
        raise ConfigError(f"minutes must be above 0, got {minutes}")
    return minutes / full
