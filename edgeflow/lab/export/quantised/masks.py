"""The number that replaces minus infinity for the hidden scores of a model (EdgeFM appendix B.3).

It lies below the lowest of all rows' largest visible scores, so far that the hidden keys of a row together get less
than a quarter of a step of the softmax's result: the softmax rounds each of them to 0, and the range of the scores
grows as little as possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from edgeflow.lab.export.graphs.graph_files import Traced
from edgeflow.lab.export.graphs.rewrites import INFINITE, masked
from edgeflow.lab.export.request import ACTIVATIONS, Precision


def calibrate_mask(
    traced: Traced, inputs: Sequence[Mapping[str, NDArray[Any]]], precision: Precision = Precision.INT16
) -> float:
    """The largest number that works for a stage on these inputs; infinite if the stage hides nothing.

    traced: without the rewrite finite-mask. The number of a model is the lowest of its stages. FLOAT32 counts as 16
    bits.
    """
    watch, bits = _Watch(traced.program.module()), min(ACTIVATIONS[precision], 16)
    with torch.no_grad():
        for each in inputs:
            watch.run(*(torch.from_numpy(each[name]) for name in traced.stage.inputs))
    return min((low - margin(keys, bits) for keys, low in watch.lowest.items()), default=math.inf)


def margin(keys: int, bits: int) -> float:
    """log(2^(bits + 1) keys): scores lower than the largest by this margin together weigh at most 2^-(bits + 1)."""
    return math.log(2.0 ** (bits + 1) * keys)


class _Watch(Interpreter):
    """Runs a graph. lowest: the lowest of the rows' largest visible scores, by the number of keys."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._masked = set(masked(module.graph))
        self.lowest: dict[int, float] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n in self._masked:
            hidden: Tensor = result
            shown = hidden.amax(-1)
            low = float(shown[shown > INFINITE].min())
            keys = hidden.shape[-1]
            self.lowest[keys] = min(self.lowest.get(keys, math.inf), low)
        return result
