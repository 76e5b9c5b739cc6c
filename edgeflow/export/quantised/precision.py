"""The precisions of exported graphs."""

from __future__ import annotations

from enum import Enum


class Precision(str, Enum):
    """FLOAT32: as it was loaded. INT16: weights and activations of 16 bits. W8A16, W8A8: weights of 8 bits, activations
    of 16 or 8."""

    FLOAT32 = "float32"
    INT16 = "int16"
    W8A16 = "w8a16"
    W8A8 = "w8a8"

    @property
    def weights(self) -> int:
        """Bits of a weight."""
        return {Precision.FLOAT32: 32, Precision.INT16: 16}.get(self, 8)

    @property
    def activations(self) -> int:
        """Bits of an activation."""
        return {Precision.FLOAT32: 32, Precision.W8A8: 8}.get(self, 16)
