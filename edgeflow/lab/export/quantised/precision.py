"""The precisions of an exported stage, and the bits of each."""

from __future__ import annotations

from enum import Enum


class Precision(str, Enum):
    """The precision of weights and activations. W8A16: 8-bit weights, 16-bit activations."""

    FLOAT32 = "float32"
    INT16 = "int16"
    W8A16 = "w8a16"
    W8A8 = "w8a8"


WEIGHTS = {Precision.FLOAT32: 32, Precision.INT16: 16, Precision.W8A16: 8, Precision.W8A8: 8}
ACTIVATIONS = {Precision.FLOAT32: 32, Precision.INT16: 16, Precision.W8A16: 16, Precision.W8A8: 8}
