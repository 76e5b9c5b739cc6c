"""Linears through the simulated accelerator: the words that its bench reads, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeflow.lab.kv260.macro import CHANNELS, OUTPUTS, Words, join, split
from tests.deploy.kv260.simulator import run

STRIP = 4  # words
STREAMS = 1 + 2 * CHANNELS
TIMES = 3


@dataclass(frozen=True, slots=True)
class Linears:
    """Linears that share their activations."""

    macros: tuple[Words, ...]
    """The macros of each, uint32 [B, E/G, 8 + G]."""
    x: np.ndarray
    """float32 [E]."""

    def blocks(self) -> np.ndarray:
        """Blocks of each linear in each channel [linears, channels]."""
        return np.array([[len(channel) for channel in split(macros)] for macros in self.macros])

    def encoded(self) -> bytes:
        """Settings and sizes, then activations and the weights of each channel (accelerator.cpp)."""
        channels = [np.concatenate(parts) for parts in zip(*map(split, self.macros), strict=True)]
        head = [(self.macros[0].shape[2] - 8) // 8, self.macros[0].shape[1], self.x.size // STRIP]
        for each in channels:
            head += [each.size // STRIP, len(each)]
        return b"".join(array.tobytes() for array in (np.array(head, np.uint32), self.x, *channels))


@dataclass(frozen=True, slots=True)
class StreamCycles:
    """Cycles in which a stream's strips were first offered, first taken and last taken; arrays have one per channel."""

    offered: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, words: np.ndarray) -> StreamCycles:
        """words: [..., 3]."""
        return cls(*np.moveaxis(words.astype(int), -1, 0))


@dataclass(frozen=True, slots=True)
class LinearSums:
    """The results of linears."""

    sums: tuple[np.ndarray, ...]
    """The sums of each linear, uint32 [B, 8], bits of float32. A channel without blocks has times of 0."""
    activations: StreamCycles
    weights: StreamCycles
    left: StreamCycles


@dataclass(frozen=True, slots=True)
class Pauses:
    """On how many of 1000 cycles streams of each kind pause."""

    x: int = 0
    weights: int = 0
    sums: int = 0
    seed: int = 0


def simulate(program: Path, linears: list[Linears], pauses: Pauses | None = None) -> list[LinearSums]:
    """The answers for linears, one after the other."""
    pauses = pauses or Pauses()
    settings = np.array([pauses.seed, pauses.x, pauses.weights, pauses.sums], np.uint32)
    given = settings.tobytes() + b"".join(each.encoded() for each in linears)
    words = np.frombuffer(run(program, given), np.uint32)
    answers = []
    for each in linears:
        blocks = each.blocks()
        sizes = [STREAMS * TIMES, *(OUTPUTS * blocks.sum(axis=0))]
        times, *channels, words = np.split(words, np.cumsum(sizes))
        answers.append(_answer(times.reshape(STREAMS, TIMES), [part.reshape(-1, OUTPUTS) for part in channels], blocks))
    assert not words.size
    return answers


def _answer(times: np.ndarray, channels: list[np.ndarray], blocks: np.ndarray) -> LinearSums:
    ends = np.cumsum(blocks, axis=0)[:-1]
    of_linears = zip(*(np.split(sums, ends[:, channel]) for channel, sums in enumerate(channels)), strict=True)
    activations, weights, left = (
        StreamCycles.of(part) for part in (times[0], times[1 : 1 + CHANNELS], times[1 + CHANNELS :])
    )
    return LinearSums(tuple(map(join, of_linears)), activations, weights, left)
