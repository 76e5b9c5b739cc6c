"""The time of a linear on the accelerator for one row: streaming of macros, steps of the PEs, inputs and sums.

A unit starts a step as soon as its two weight strips are there, so steps run behind streaming and the slower of both
counts. `in_turn` is the time without that overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.macro import MacroShape

STREAMING = "DDR streaming"
PES = "PEs"
ACTIVATIONS = "activations"
FLOAT_BITS = 32  # of an input and of a sum


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Microseconds of a linear, one row. streaming: of its macros; steps: of the PEs; activations: inputs and sums."""

    streaming: float
    steps: float
    activations: float

    @property
    def overlapped(self) -> float:
        return max(self.streaming, self.steps) + self.activations

    @property
    def in_turn(self) -> float:
        return self.streaming + self.steps + self.activations

    @property
    def limits(self) -> dict[str, float]:
        """The microseconds that each limit sets, `overlapped` in all: STREAMING or PES, and ACTIVATIONS."""
        slower = STREAMING if self.streaming >= self.steps else PES
        return {slower: max(self.streaming, self.steps), ACTIVATIONS: self.activations}


def linear_time(shape: MacroShape) -> LinearTime:
    """The time of a linear. The channel with most blocks counts, and the memory behind all of them."""
    blocks, macros, words = shape.channel_shape(0)
    strips = blocks * macros * (32 * words // int(constants.STRIP.value))
    steps = blocks * macros * (shape.group // int(constants.PE_INPUTS.value))
    moved_bits = FLOAT_BITS * (shape.inputs + shape.outputs)
    return LinearTime(
        streaming=max(_microseconds(strips), shape.nbytes / constants.DDR.value / 1e3),
        steps=_microseconds(steps * constants.STEP_CYCLES.value),
        activations=_microseconds(moved_bits / constants.ACTIVATION_PORT.value),
    )


def _microseconds(cycles: float) -> float:
    return cycles / constants.CLOCK.value
