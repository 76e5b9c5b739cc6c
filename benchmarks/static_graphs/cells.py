"""Shapes that are measured: a prefix of so many rows and a step of so many, in the sizes of SmolVLA-450M.

The paper's figures are those of EdgeFM's Tables 9 and 10: SmolVLA-0.45B in INT16 on the BPU of a Horizon Journey 6M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgeflow.lab.gpu.subjects.floors import NUMBER_BYTES, Work
from edgeflow.lab.gpu.subjects.flow_floors import language_work, step_work, vision_work
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, PUBLISHED, TINY, FlowShape

PREFIXES, SUFFIXES = (512, 1024, 2048), (32, 64)
TICK_PREFIX, TICK_SUFFIX = 512, 32
"""The shape of a pipelined tick: a prefill, and a step of every frame in flight."""
TINY_PREFIXES, TINY_SUFFIXES = (16, 24), (4, 6)
JOURNEY = "Journey 6M, INT16 (EdgeFM's paper)"
JOURNEY_PREFILL: Mapping[int, float] = {512: 74.26, 1024: 248.27, 2048: 899.39}
"""Mean milliseconds by rows of the prefix."""
JOURNEY_STEP: Mapping[tuple[int, int], tuple[float, float, float, float]] = {
    (512, 32): (12.51, 12.42, 12.31, 12.89),
    (512, 64): (15.00, 14.89, 14.79, 15.47),
    (1024, 32): (19.48, 19.32, 19.13, 20.62),
    (1024, 64): (23.25, 23.13, 22.91, 23.62),
    (2048, 32): (38.38, 38.41, 37.86, 38.75),
    (2048, 64): (49.43, 49.43, 48.92, 50.49),
}
"""Mean, median, least and most milliseconds by rows of prefix and suffix."""


@dataclass(frozen=True, slots=True)
class Model:
    """A network's sizes with the shapes that it is measured in. tick: rows of prefix and suffix of a tick."""

    shape: FlowShape
    prefixes: tuple[int, ...]
    suffixes: tuple[int, ...]
    tick: tuple[int, int]


MODELS: Mapping[str, Model] = {
    "smolvla-450m": Model(PUBLISHED[0], PREFIXES, SUFFIXES, (TICK_PREFIX, TICK_SUFFIX)),
    "tiny": Model(TINY[0], TINY_PREFIXES, TINY_SUFFIXES, (TINY_PREFIXES[0], TINY_SUFFIXES[0])),
}


def shaped(shape: FlowShape, prefix: int, suffix: int) -> FlowShape:
    """The shape whose prefix and steps have exactly so many rows: three cameras, the state, and text for the rest."""
    flow = replace(shape.config.flow, chunk=suffix, horizon=suffix)
    text = prefix - CAMERAS * shape.image_rows - shape.sizes.closing
    if text < 1:
        raise ValueError(f"prefix: {prefix} rows; images and state take {prefix - text} and a text at least one")
    return replace(shape, config=replace(shape.config, flow=flow), text=text)


def work_of(shape: FlowShape, number_bytes: int, frames: int = 1) -> dict[str, Work]:
    """FLOPs and bytes of each stage, and of a tick of so many frames: a prefill, and a step of each."""
    prefill = language_work(shape)
    works = {"towers": vision_work(shape), "prefill": prefill, "step": step_work(shape)}
    works["tick"] = prefill + step_work(shape, frames)
    return {name: Work(work.flops, work.bytes * number_bytes / NUMBER_BYTES) for name, work in works.items()}
