"""Measures of a service as a robot notices it: latency at execution, reactions, held ticks, seams of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.simulated.episodes import HELD, EpisodeRun
from edgeflow_client.loadtest.measure import Distribution, distribution

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamJump:
    """The jumps of one quantity between control periods."""

    seam: Distribution
    """Where another chunk takes over, and where the robot stops or starts."""
    inside: Distribution
    """Between the rows of one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamJumps:
    """How far the commanded position, velocity and acceleration jump from one control period to the next.

    The commanded position is sampled once per period, and the others are its differences. A difference counts as a seam
    if any of its periods begins with another chunk than the one before.
    """

    position_mm: SeamJump
    velocity_m_s: SeamJump
    acceleration_m_s2: SeamJump


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpReactions:
    """Time from the jump of an object to commands, in milliseconds."""

    first: Distribution
    """To the first command computed from a frame that shows it."""
    towards: Distribution
    """To the first such command that leads nearer to the new place than to the old one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFigures:
    """Figures of the commands of a condition's episodes."""

    latency_at_execution_ms: Distribution
    """Age of the frame when a row of its answer is executed, per row."""
    held_ticks_per_minute: float
    """Control periods for which the SDK ordered HOLD after the first action."""
    executions: dict[str, float]
    """Share of the answers by how the service had them executed."""
    seams: SeamJumps
    reaction: JumpReactions | None = None
    """None if objects do not jump."""

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "latency_at_execution_ms": asdict(self.latency_at_execution_ms),
            "held_ticks_per_minute": self.held_ticks_per_minute,
            "executions": self.executions,
            "seams": asdict(self.seams),
            "reaction_to_jump_ms": self.reaction and asdict(self.reaction),
        }


def execution_figures(runs: Sequence[EpisodeRun], period_s: float) -> ExecutionFigures:
    """The figures of some episodes. period_s: between two rows, and between two frames."""
    rows = [row for run in runs for row in run.commands if row.captured_ns != HELD]
    answers = Counter(each.execution for run in runs for each in run.acted if each.execution)
    held_ticks = sum(run.held_ns for run in runs) / 1e9 / period_s
    return ExecutionFigures(
        latency_at_execution_ms=distribution([(row.at_ns - row.captured_ns) / 1e6 for row in rows]),
        held_ticks_per_minute=held_ticks / (sum(run.seconds for run in runs) / 60),
        executions={name: count / answers.total() for name, count in answers.most_common()},
        seams=_seams(runs, period_s),
        reaction=_reactions(runs) if any(run.jumped_ns is not None for run in runs) else None,
    )


def _reactions(runs: Sequence[EpisodeRun]) -> JumpReactions:
    first: list[float] = []
    towards: list[float] = []
    for run in runs:
        jumped_ns = run.jumped_ns
        if jumped_ns is None:
            continue
        seen = [row for row in run.commands if row.captured_ns >= jumped_ns]
        first += [(row.at_ns - jumped_ns) / 1e6 for row in seen[:1]]
        towards += [(row.at_ns - jumped_ns) / 1e6 for row in seen if row.towards][:1]
    return JumpReactions(first=distribution(first), towards=distribution(towards))


def _seams(runs: Sequence[EpisodeRun], period_s: float) -> SeamJumps:
    per_run = [_jumps(run, period_s) for run in runs if run.commands]
    position, velocity, acceleration = (
        SeamJump(
            seam=distribution(_joined([jumps[order][seams[order]] for jumps, seams in per_run])),
            inside=distribution(_joined([jumps[order][~seams[order]] for jumps, seams in per_run])),
        )
        for order in range(3)
    )
    return SeamJumps(position_mm=position, velocity_m_s=velocity, acceleration_m_s2=acceleration)


def _jumps(run: EpisodeRun, period_s: float) -> tuple[list[Series], list[NDArray[np.bool_]]]:
    """Jumps in position (mm), velocity (m/s) and acceleration (m/s²) of an episode; and which of each are seams.

    Samples lie in the middle of the first chunk's rows.
    """
    at_ns = np.array([each.at_ns for each in run.commands], np.int64)
    period_ns = round(period_s * 1e9)
    samples_ns = np.arange(at_ns[0] + period_ns // 2, run.seconds * 1e9, period_ns)
    last = np.searchsorted(at_ns, samples_ns, "right") - 1
    stands = samples_ns > at_ns[last] + _lasts_ns(run, period_ns)[last]
    chunks = np.where(stands, HELD, np.array([each.captured_ns for each in run.commands])[last])
    positions = np.array([(each.x, each.y, each.z) for each in run.commands])[last]
    velocities = np.diff(positions, axis=0) / period_s
    accelerations = np.diff(velocities, axis=0) / period_s
    seams = [chunks[1:] != chunks[:-1]]
    for _ in range(2):
        seams.append(seams[-1][1:] | seams[-1][:-1])
    moved = [1000 * period_s * velocities, np.diff(velocities, axis=0), np.diff(accelerations, axis=0)]
    return [np.linalg.norm(each, axis=1) for each in moved], seams


def _lasts_ns(run: EpisodeRun, period_ns: int) -> NDArray[np.int64]:
    """How long each command leads on: until the next row of its chunk, and the last row as long as the one before it.

    After that the robot stands.
    """
    lasts = np.full(len(run.commands), period_ns, np.int64)
    for index, (row, after) in enumerate(pairwise(run.commands)):
        if row.captured_ns == after.captured_ns:
            lasts[index] = after.at_ns - row.at_ns
            lasts[index + 1] = max(lasts[index], period_ns)
    return lasts


def _joined(parts: Sequence[Series]) -> Series:
    return np.concatenate([np.zeros(0), *parts])
