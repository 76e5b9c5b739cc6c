"""Substitutions of operators in a traced graph, by name (EdgeFM appendix B.3).

They work on ATen operators, after in-place writes have become functions. Each returns the number of places that it
changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node

ATEN = torch.ops.aten
INFINITE = float("-inf")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A substitution in an exported graph."""

    name: str
    summary: str
    """One line, for a person."""
    make: Callable[[Graph, float | None], int]
    """Changes a graph and returns the number of changed places."""


def erf_gelu(graph: Graph, constant: float | None) -> int:  # noqa: ARG001
    """GELU by the error function, written out: x / 2 (1 + erf(x / sqrt 2)).

    In the tanh form the cubic term overflows 16 bits, and ONNX has no operator for either form before opset 20.
    """
    found = _calls(graph, ATEN.gelu.default)
    for node in found:
        x = node.args[0]
        with graph.inserting_before(node):
            scaled = graph.call_function(ATEN.mul.Tensor, (x, math.sqrt(0.5)))
            turned = graph.call_function(ATEN.add.Tensor, (graph.call_function(ATEN.erf.default, (scaled,)), 1.0))
            halved = graph.call_function(ATEN.mul.Tensor, (x, 0.5))
            result = graph.call_function(ATEN.mul.Tensor, (halved, turned))
        node.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    return len(found)


def rope_concat(graph: Graph, constant: float | None) -> int:  # noqa: ARG001
    """RoPE by slices, a negation and a concatenation, instead of in-place writes of halves.

    x cos + concat(-x2, x1) sin, with x1 and x2 the halves of x.
    """
    sines: dict[Node, Node] = {}
    count = 0
    for node in _calls(graph, ATEN.slice_scatter.default):
        turn = _Rotation.of(node)  # a rotation may read the result of one that was replaced
        if turn is not None:
            turn.replace(graph, sines)
            count += 1
    graph.eliminate_dead_code()
    return count


def finite_mask(graph: Graph, constant: float | None) -> int:
    """Hidden scores become a finite number, calibrated per model (masks.py), instead of minus infinity."""
    if constant is None:
        raise ValueError("a finite mask needs its constant")
    found = masked(graph)
    for node in found:
        node.args = (*node.args[:2], constant)
    return len(found)


def masked(graph: Graph) -> list[Node]:
    """The calls that hide scores: (scores, hidden, -inf)."""
    return [node for node in _calls(graph, ATEN.masked_fill.Scalar) if node.args[2] == INFINITE]


REWRITES: Mapping[str, Rewrite] = {
    each.name: each
    for each in (
        Rewrite("erf-gelu", "GELU by erf, written out", erf_gelu),
        Rewrite("rope-concat", "RoPE by slice, negate and concat where halves are written in place", rope_concat),
        Rewrite("finite-mask", "hidden scores are a calibrated number instead of minus infinity", finite_mask),
    )
}


def select_by_one_list(graph: Graph) -> None:
    """Turn indexing by one list of integers into a selection, which every compiler has: Gather, not GatherND."""
    for node in _calls(graph, ATEN.index.Tensor):
        source, indices = _argument(node, 0), cast("list[Node | None]", node.args[1])
        given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
        if len(given) != 1 or given[0][1].meta["val"].dtype == torch.bool:
            continue
        dim, index = given[0]
        with graph.inserting_before(node):
            flat = graph.call_function(ATEN.view.default, (index, [-1]))
            selected = graph.call_function(ATEN.index_select.default, (source, dim, flat))
            shaped = graph.call_function(ATEN.view.default, (selected, list(node.meta["val"].shape)))
        node.replace_all_uses_with(shaped)
    graph.eliminate_dead_code()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rotation:
    """A rotation: turned = x cos, whose halves gain x2 (-sin) and x1 sin."""

    last: Node
    """The node with the result."""
    x: Node
    turned: Node
    sine: Node
    half: int
    dim: int

    @classmethod
    def of(cls, last: Node) -> _Rotation | None:
        """The rotation that ends in a write of the second half; None for other writes."""
        first, second, dim, half = _argument(last, 0), _argument(last, 1), last.args[2], last.args[3]
        if not (_is(first, ATEN.slice_scatter.default) and _is(second, ATEN.addcmul.default)) or not half:
            return None
        turned, sums = cast("Node", first.args[0]), cast("Node", first.args[1])
        if not _is(sums, ATEN.addcmul.default) or not _is(turned, ATEN.mul.Tensor):
            return None
        x, sine, negated = cast("Node", turned.args[0]), cast("Node", second.args[2]), cast("Node", sums.args[2])
        writes_first_half = first.args[2:5] == (dim, 0, half)
        halves = _half_of(sums.args[1], x, dim, half) and _half_of(second.args[1], x, dim, 0)
        if not (writes_first_half and halves and _is(negated, ATEN.neg.default) and negated.args[0] is sine):
            return None
        return cls(last=last, x=x, turned=turned, sine=sine, half=cast("int", half), dim=cast("int", dim))

    def replace(self, graph: Graph, sines: dict[Node, Node]) -> None:
        """Replace the rotation. sines: the sines made for both halves, by those of one half."""
        if self.sine not in sines:
            with graph.inserting_after(self.sine):
                sines[self.sine] = graph.call_function(ATEN.cat.default, ([self.sine, self.sine], -1))
        with graph.inserting_before(self.last):
            low = graph.call_function(ATEN.slice.Tensor, (self.x, self.dim, 0, self.half))
            high = graph.call_function(ATEN.slice.Tensor, (self.x, self.dim, self.half, 2 * self.half))
            halves = graph.call_function(ATEN.cat.default, ([graph.call_function(ATEN.neg.default, (high,)), low], -1))
            gained = graph.call_function(ATEN.mul.Tensor, (halves, sines[self.sine]))
            result = graph.call_function(ATEN.add.Tensor, (self.turned, gained))
        self.last.replace_all_uses_with(result)


def _half_of(found: Any, x: Node, dim: Any, start: Any) -> bool:
    """True for the slice of x along `dim` that starts at `start`."""
    return _is(found, ATEN.slice.Tensor) and found.args[0] is x and found.args[1] == dim and found.args[2] == start


def _argument(node: Node, index: int) -> Node:
    return cast("Node", node.args[index])


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target


def _calls(graph: Graph, target: Any) -> list[Node]:
    return list(graph.find_nodes(op="call_function", target=target))


def rewritten(module: GraphModule, names: tuple[str, ...], constant: float | None) -> dict[str, int]:
    """Make the named substitutions; return the number of changed places for each."""
    made = {name: REWRITES[name].make(module.graph, constant) for name in names}
    module.graph.lint()
    module.recompile()
    return made
