"""The least time of a flow policy's passes (subjects/floors.py): towers and prefix, and the steps of its expert."""

from __future__ import annotations

from edgeflow.lab.gpu.subjects.floors import NUMBER_BYTES, Ceilings, PassFloor
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, FlowShape, stack_of
from edgeflow.policies.pi.config import GemmaSizes
from edgeflow.policies.smolvla.config import SmolVLAConfig

FLOAT_BYTES = 4


def prefix_work(shape: FlowShape, frames: int = 1) -> PassFloor:
    """Work of the prefixes of `frames` frames: towers, projection, language model. Weights count once."""
    return vision_work(shape, frames) + language_work(shape, frames)


def language_work(shape: FlowShape, frames: int = 1) -> PassFloor:
    """Work of the language model over the prefixes of `frames` frames. In its last layer only keys and values are
    computed.
    """
    stack, rows = stacks(shape)[0], shape.prefix
    layers, inputs = stack.depth, stack.width * (stack.heads + 2 * stack.kv_heads) * stack.head_dim
    rest = stack.width * (stack.heads * stack.head_dim + 3 * stack.inner)
    weights = layers * inputs + (layers - 1) * rest
    attention = 4 * rows * rows * stack.heads * stack.head_dim * (layers - 1)
    return PassFloor(frames * (2 * rows * weights + attention), NUMBER_BYTES * weights + frames * _kept(stack, rows))


def vision_work(shape: FlowShape, frames: int = 1) -> PassFloor:
    """Work of the towers and the projection after them; those of π0 and π0.5 are in float32, at the same rate of
    products.
    """
    config = shape.config
    if isinstance(config, SmolVLAConfig):
        width, inner, depth, patch = config.vision_width, config.vision_inner, config.vision_layers, config.patch
        joined, wide, size = config.scale**2, config.width, NUMBER_BYTES
    else:
        vision = config.vision
        width, inner, depth, patch = vision.width, vision.inner, vision.depth, vision.patch
        joined, wide, size = 1, config.text.width, FLOAT_BYTES
    patches = (config.flow.side // patch) ** 2
    weights = 3 * patch**2 * width + depth * width * (4 * width + 2 * inner)
    projection = joined * width * wide
    attention = 4 * patches * patches * width * depth
    flops = 2 * patches * weights + attention + 2 * (patches // joined) * projection
    return PassFloor(frames * CAMERAS * flops, size * (weights + projection))


def step_work(shape: FlowShape, frames: int = 1) -> PassFloor:
    """Work of a step of `frames` frames: the expert's layers over its rows and each frame's prefix. Layers that only
    read the prefix have only queries.
    """
    stack, sizes, rows = stacks(shape)[1], shape.sizes, shape.sizes.step_rows
    crossing = sum(shape.config.cross) if isinstance(shape.config, SmolVLAConfig) else 0
    q_width, kv_width = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    weights = stack.width * (stack.depth * (2 * q_width + 3 * stack.inner) + (stack.depth - crossing) * 2 * kv_width)
    own = (sizes.rows + 1) / 2 if sizes.causal else sizes.rows
    attention = 4 * rows * q_width * (stack.depth * shape.prefix + (stack.depth - crossing) * own)
    kept = _kept(stack, shape.prefix + rows)
    return PassFloor(frames * (2 * rows * weights + attention), NUMBER_BYTES * weights + frames * kept)


def chunk_floor_s(shape: FlowShape, ceilings: Ceilings) -> float:
    """Seconds of a single frame: its prefix, then its steps one after another."""
    return ceilings.floor_s(prefix_work(shape)) + shape.sizes.steps * ceilings.floor_s(step_work(shape))


def pipelined_floor_s(shape: FlowShape, ceilings: Ceilings, robots: int = 1) -> float:
    """Seconds of a steady pass, in which each robot's newest frame starts and one frame finishes: N steps and a
    prefix.
    """
    return ceilings.floor_s(prefix_work(shape, robots) + step_work(shape, robots * shape.sizes.steps))


def stacks(shape: FlowShape) -> tuple[GemmaSizes, GemmaSizes]:
    """The stacks of the prefix and of the steps."""
    config = shape.config
    if not isinstance(config, SmolVLAConfig):
        return config.text, config.expert
    return stack_of(config, config.width, config.inner), stack_of(config, config.expert_width, config.expert_inner)


def _kept(stack: GemmaSizes, rows: int) -> int:
    """Bytes of the keys and values of `rows` rows in all layers."""
    return NUMBER_BYTES * 2 * stack.kv_heads * stack.head_dim * stack.depth * rows
