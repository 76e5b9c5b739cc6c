"""Linears through the simulated accelerator: the words that its bench reads, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeflow.accelerator.macro import CHANNELS, OUTPUTS, join, split
from tests.deploy.kv260.simulator import run

STRIP = 4  # words


@dataclass(frozen=True, slots=True)
class Linear:
    """macros: uint32 [B, E/G, 8 + G]; x: float32 [E], or None where the activations of the linear before stay."""

    macros: np.ndarray
    x: np.ndarray | None

    def encoded(self) -> bytes:
        """Steps, macros and strips, then activations and the weights of each channel (accelerator.cpp)."""
        x = np.zeros(0, np.float32) if self.x is None else self.x
        channels = split(self.macros)
        head = [(self.macros.shape[2] - 8) // 8, self.macros.shape[1], x.size // STRIP]
        for each in channels:
            head += [each.size // STRIP, len(each) * OUTPUTS // STRIP]
        return b"".join(array.tobytes() for array in (np.array(head, np.uint32), x, *channels))


@dataclass(frozen=True, slots=True)
class Answer:
    """sums: uint32 [B, 8], bits of float32; cycles: [4, 4], per channel first and last strip of weights and of sums."""

    sums: np.ndarray
    cycles: np.ndarray


@dataclass(frozen=True, slots=True)
class Pauses:
    """On how many of 1000 cycles streams pause: those of activations and weights, and those of sums."""

    into: int = 0
    out: int = 0
    seed: int = 0


def simulate(program: Path, linears: list[Linear], pauses: Pauses | None = None) -> list[Answer]:
    """The answers for linears, one after the other."""
    pauses = pauses or Pauses()
    settings = np.array([pauses.seed, pauses.into, pauses.out], np.uint32)
    given = settings.tobytes() + b"".join(each.encoded() for each in linears)
    words = np.frombuffer(run(program, given), np.uint32)
    answers = []
    for each in linears:
        blocks = [len(channel) for channel in split(each.macros)]
        sizes = [CHANNELS * 4, *(count * OUTPUTS for count in blocks)]
        cycles, *sums = np.split(words[: sum(sizes)], np.cumsum(sizes)[:-1])
        words = words[sum(sizes) :]
        answers.append(Answer(join(tuple(part.reshape(-1, OUTPUTS) for part in sums)), cycles.reshape(CHANNELS, 4)))
    assert not words.size
    return answers
