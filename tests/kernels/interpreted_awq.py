"""Run by test_triton_awq.py with TRITON_INTERPRET=1: products with 4-bit weights, and which bytes their kernel loads.

Prints a JSON line per problem. The loads are those whose addresses the kernel computes, masks included. What a program
loads by one instruction counts as the 32-byte sectors that it touches, as memory delivers them.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from triton.runtime import interpreter

from edgeflow.kernels.table.dimensions import signature
from edgeflow.kernels.triton.awq import CHUNK, WORDS, AwqChunks, AwqLinear, AWQParameters, linear
from edgeflow.lab.trials.model_cases import linear_cases, preset
from tests.kernels.awq_weights import random_weight

SECTOR = 32
ROWS = 16
MULTIPROCESSORS = 132  # of H100 and H200
MODELS = ("openvla-7b", "qwen2.5-7b", "qwen2.5-0.5b")
GROUP = 64

EXACT = [(1, 64, 64, 64, 1), (3, 136, 640, 32, 2), (5, 40, 448, 64, 4), (17, 24, 1024, 128, 8), (2, 8, 96, 32, 1)]
"""Rows, outputs, inputs, group and splits; inputs that no chunk divides among them."""


def products() -> Iterator[dict]:
    """How far products in float32 are from those of weights that nothing has rounded; again with the rows apart."""
    for rows, outputs, inputs, group, splits in EXACT:
        weight = random_weight(outputs, inputs, group)
        x, bias = torch.randn(rows, inputs + 8)[:, :inputs], torch.randn(outputs)
        made = linear(weight, bias, splits=splits)
        found, again = made(x), made(x)
        wanted = x.double() @ weight.exact().double().t() + bias
        off = float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max())
        yield {"shape": signature(m=rows, n=outputs, e=inputs), "off": off, "repeats": torch.equal(found, again)}


@dataclass
class Loads:
    """Elements that programs loaded from one tensor, by place; and sectors, as often as an instruction touched them."""

    tensor: torch.Tensor
    elements: list[np.ndarray] = field(default_factory=list)
    sectors: list[np.ndarray] = field(default_factory=list)

    def add(self, addresses: np.ndarray) -> None:
        places = addresses - self.tensor.data_ptr()
        if places.size and places.min() >= 0 and places.max() < self.tensor.nbytes:
            self.elements.append(np.unique(places // self.tensor.itemsize))
            self.sectors.append(np.unique(addresses // SECTOR))

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Loads of each element, loads of each sector."""
        return tuple(np.unique(np.concatenate(each), return_counts=True)[1] for each in (self.elements, self.sectors))


@contextmanager
def recorded(*tensors: torch.Tensor) -> Iterator[list[Loads]]:
    loads, plain = [Loads(each) for each in tensors], interpreter.InterpreterBuilder.create_masked_load

    def load(self, pointers, mask, *others):
        for each in loads:
            each.add(pointers.data[mask.data.astype(bool)].astype(np.int64))  # scalar masks are integers
        return plain(self, pointers, mask, *others)

    interpreter.InterpreterBuilder.create_masked_load = load
    try:
        yield loads
    finally:
        interpreter.InterpreterBuilder.create_masked_load = plain


@contextmanager
def programs_at_the_edges() -> Iterator[None]:
    """Of a grid, only the first and the last program of each axis run: `range` with one bound is the loop over one."""
    interpreter.range = lambda *bounds: sorted({0, bounds[0] - 1}) if len(bounds) == 1 else builtins.range(*bounds)
    try:
        yield
    finally:
        del interpreter.range


def chunks(outputs: int, inputs: int) -> AwqChunks:
    count, groups = inputs // CHUNK, inputs // GROUP
    words = torch.zeros(count, outputs, WORDS, dtype=torch.int32)
    scales = torch.zeros(groups, outputs, dtype=torch.float16)
    return AwqChunks(words, scales, torch.zeros(groups, outputs // 2, dtype=torch.uint8), inputs, GROUP)


def loads(outputs: int, inputs: int, splits: int, *, edges: bool, rows: int = ROWS) -> dict:
    """share: bytes of the weight among those loaded; most: how often an element or a sector is loaded at most; part,
    expected: the share of the weight that the programs load, and that they should."""
    weight = chunks(outputs, inputs)
    kernel, x = AwqLinear(weight, None, AWQParameters(block_m=ROWS, splits=splits)), torch.zeros(rows, inputs)
    with recorded(weight.words, weight.scales, weight.zeros) as found:
        if edges:
            with programs_at_the_edges():
                kernel(x)
        else:
            kernel(x)
    counted = [each.counts() for each in found]
    loaded = SECTOR * sum(int(sectors.sum()) for _, sectors in counted)
    useful = sum(len(elements) * each.tensor.itemsize for each, (elements, _) in zip(found, counted, strict=True))
    return {
        "shape": signature(m=rows, n=outputs, e=inputs),
        "share": useful / loaded,
        "most": int(max(counts.max() for pair in counted for counts in pair)),
        "part": useful / weight.nbytes,
        "expected": share_of_edges(outputs, len(weight.words), splits) if edges else 1.0,
    }


def share_of_edges(outputs: int, count: int, splits: int) -> float:
    """The share of the weight that the first and the last tile of outputs and part of the inputs have."""
    block, part = AWQParameters().block_n, -(-count // splits)
    tiles = {0: min(block, outputs), (outputs - 1) // block: outputs - (outputs - 1) // block * block}
    parts = {0: min(part, count), splits - 1: count - (splits - 1) * part}
    return sum(tiles.values()) * sum(parts.values()) / (outputs * count)


def shapes() -> list[tuple[int, int]]:
    """Outputs and inputs of the projections of the models."""
    signed = [case.signed()[1] for name in MODELS for case in linear_cases(preset(name), ROWS)]
    sizes = [dict(part.split("=") for part in each.split("|")) for each in signed]
    return list(dict.fromkeys((int(each["n"]), int(each["e"])) for each in sizes))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for line in products():
        print(json.dumps({"of": "products"} | line), flush=True)
    print(json.dumps({"of": "a whole grid"} | loads(320, 640, 2, edges=False)), flush=True)
    for outputs, inputs in shapes():
        splits = AWQParameters().of_call(ROWS, outputs, inputs // CHUNK, MULTIPROCESSORS).splits
        print(json.dumps({"of": "models"} | loads(outputs, inputs, splits, edges=True)), flush=True)
    print(json.dumps({"of": "two tiles of rows"} | loads(128, 256, 1, edges=False, rows=ROWS + 1)), flush=True)


if __name__ == "__main__":
    main()
