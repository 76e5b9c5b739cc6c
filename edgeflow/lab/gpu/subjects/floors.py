"""The least time a pass can take: its FLOPs at the measured matrix rate, its bytes at the measured copy bandwidth.

FLOPs: two per weight and row, four per key, query head and element of a head in attention. Rows that are not sampled
end in the last layer with their keys and values. Bytes: every weight once, keys and values read and written; whatever
stays in a cache is not counted.

Beside them stand EdgeFM's times on an A800 80GB, from its appendix A. The copy of the paper at hand has lost the
tables' captions; which is which follows from their order (vision-language models, then language models, by size) and
from their times. 7B is the decoder of the vision-language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeflow.kernels.kv.layout import Span
from edgeflow.lab.gpu.subjects.random_policy import PolicySize, RandomTower
from edgeflow.models.llama import LlamaConfig

NUMBER_BYTES = 2
ZERO_BITS, CODE_BITS, SCALE_BITS = 4, 4, 16
"""Bits of weights in 4 bits, as their kernel reads them (kernels/triton/awq.py)."""
A800_BANDWIDTH = 2.039e12
"""Bytes per second, from the data sheet of the SXM part; the paper does not say which part it used."""
DECODE_STEPS = 32
PREFILL_ROWS = (512, 1024, 2048)
TIMES_MS = {
    "qwen2.5-0.5b": {512: (3.671, 56.547), 1024: (6.374, 54.924), 2048: (11.886, 54.134)},
    "qwen2.5-1.5b": {512: (8.607, 100.137), 1024: (15.294, 101.320), 2048: (30.073, 104.723)},
    "qwen2.5-3b": {512: (16.057, 171.640), 1024: (28.767, 171.036), 2048: (58.110, 177.585)},
    "qwen2.5-7b": {512: (30.525, 300.683), 1024: (58.343, 300.932), 2048: (120.855, 301.360)},
}
"""EdgeFM's milliseconds of a prefill and of DECODE_STEPS steps, by model and rows of the prompt."""


@dataclass(frozen=True, slots=True)
class PassFloor:
    """FLOPs, and bytes read and written, of a pass or a part of one."""

    flops: float
    bytes: float

    def __add__(self, other: PassFloor) -> PassFloor:
        return PassFloor(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates that a device reaches: bytes per second of a copy, read and written, and FLOP/s of a matrix product."""

    bandwidth: float
    matrix_rate: float

    def floor_s(self, work: PassFloor) -> float:
        """Seconds of the slower of arithmetic and memory."""
        return max(work.flops / self.matrix_rate, work.bytes / self.bandwidth)


def decoder_work(size: PolicySize, spans: Sequence[Span], group: int = 0) -> PassFloor:
    """Work of a policy's language model over the rows of a pass.

    group: G of projections in 4 bits; 0 for floats.
    """
    return awq_work(size.text, spans, group) if group else text_work(size.text, spans)


def text_work(text: LlamaConfig, spans: Sequence[Span]) -> PassFloor:
    """Work of a language model over the rows of a pass, of which the last row of each span is sampled."""
    return linear_work(text, spans) + attention_work(text, spans)


def linear_work(text: LlamaConfig, spans: Sequence[Span], weight_bytes: int = NUMBER_BYTES) -> PassFloor:
    """Work of the projections, the MLPs and the head; weight_bytes: bytes per weight."""
    rows, sampled, layers = sum(span.length for span in spans), len(spans), text.num_hidden_layers
    qkv = text.hidden_size * (text.q_width + 2 * text.kv_width)
    rest = text.hidden_size * (text.q_width + 3 * text.intermediate_size)
    head = text.vocab_size * text.hidden_size
    products = rows * (layers * qkv + (layers - 1) * rest) + sampled * (rest + head)
    return PassFloor(2 * products, weight_bytes * (layers * (qkv + rest) + head))


def awq_weight_bytes(group: int) -> float:
    """Bytes per weight in 4 bits, with the scale and the zero point of its group."""
    return (CODE_BITS + (SCALE_BITS + ZERO_BITS) / group) / 8


def awq_work(text: LlamaConfig, spans: Sequence[Span], group: int) -> PassFloor:
    """`text_work` with the projections of the layers in 4 bits; the head stays in the model's dtype."""
    layer = text.hidden_size * (2 * text.q_width + 2 * text.kv_width + 3 * text.intermediate_size)
    whole, saved = text_work(text, spans), NUMBER_BYTES - awq_weight_bytes(group)
    return PassFloor(whole.flops, whole.bytes - saved * text.num_hidden_layers * layer)


def attention_work(text: LlamaConfig, spans: Sequence[Span]) -> PassFloor:
    """Work of attention: scores and weighted sums; keys and values read and written."""
    keys = sum(span.length * (span.start + (span.length + 1) / 2) for span in spans)
    last_keys = sum(span.start + span.length for span in spans)
    flops = 4 * (keys * (text.num_hidden_layers - 1) + last_keys) * text.q_width
    kept = sum(span.start + 2 * span.length for span in spans) * 2 * text.kv_width * text.num_hidden_layers
    return PassFloor(flops, NUMBER_BYTES * kept)


def vision_work(size: PolicySize) -> PassFloor:
    """Work of one frame's vision: both towers, without their last blocks, and the projector."""
    vision, hidden = sum(tower.width for tower in size.towers), size.text.hidden_size
    weights = 4 * vision * vision + 4 * vision * hidden + hidden * hidden
    work = PassFloor(2 * size.image_tokens * weights, NUMBER_BYTES * weights)
    for tower in size.towers:
        work += tower_work(tower, size.image_tokens)
    return work


def tower_work(tower: RandomTower, patches: int) -> PassFloor:
    """Work of one tower, without its last block, for an image of `patches` patches."""
    rows, width, blocks = patches + tower.prefix, tower.width, tower.depth - 1
    weights = blocks * width * (4 * width + 2 * tower.inner)
    attention = 4 * rows * rows * width * blocks
    return PassFloor(2 * rows * weights + attention, NUMBER_BYTES * weights)


def serial_floor_s(size: PolicySize, ceilings: Ceilings, group: int = 0) -> float:
    """Seconds of a frame by itself: vision and prefill, then one pass per token. group: as in `decoder_work`."""
    rows = size.rows
    passes = [vision_work(size) + decoder_work(size, [Span(0, 0, rows)], group)]
    passes += [decoder_work(size, [Span(0, rows + stage, 1)], group) for stage in range(size.stages - 1)]
    return sum(ceilings.floor_s(work) for work in passes)


def pipelined_floor_s(size: PolicySize, ceilings: Ceilings, group: int = 0) -> float:
    """Seconds of a steady pass: one frame's prefill and a decode row of each frame before it. group: as in
    `decoder_work`."""
    return ceilings.floor_s(vision_work(size) + decoder_work(size, pipelined_spans(size), group))


def pipelined_spans(size: PolicySize) -> list[Span]:
    """Segments of a steady pass: a prefill, then the decode rows."""
    rows = size.rows
    return [Span(0, 0, rows), *(Span(stage, rows + stage - 1, 1) for stage in range(1, size.stages))]


def scaled_ms(model: str, rows: int, bandwidth: float) -> tuple[float, float] | None:
    """EdgeFM's prefill and decode, scaled by bandwidth (bytes per second); None if the paper does not have them."""
    times = TIMES_MS.get(model, {}).get(rows)
    if times is None:
        return None
    prefill, decode = (ms * A800_BANDWIDTH / bandwidth for ms in times)
    return prefill, decode
