"""The bits of each precision."""

from __future__ import annotations

from edgeflow.artifacts.precision import Precision

WEIGHTS = {Precision.FLOAT32: 32, Precision.INT16: 16, Precision.W8A16: 8, Precision.W8A8: 8}
ACTIVATIONS = {Precision.FLOAT32: 32, Precision.INT16: 16, Precision.W8A16: 16, Precision.W8A8: 8}
