"""The least time a pass can take: its FLOPs at the measured matrix rate, its bytes at the measured copy bandwidth.

FLOPs: two a weight and row, four a key, head width and query head of attention. Bytes: every weight once, the keys and
values read, those written; what stays in a cache is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeflow.bench.random_policy import PolicySize, TowerSize
from edgeflow.kernels.layout import Span
from edgeflow.models.llama import LlamaConfig

NUMBER_BYTES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """Of one pass."""

    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured. bandwidth: bytes read and written a second by a copy; matrix_rate: FLOP/s of a large product."""

    bandwidth: float
    matrix_rate: float

    def floor_s(self, work: Work) -> float:
        """The slower of both."""
        return max(work.flops / self.matrix_rate, work.bytes / self.bandwidth)


def decoder_work(size: PolicySize, spans: Sequence[Span]) -> Work:
    """The language model of a policy over the rows of a pass."""
    return text_work(size.text, spans)


def text_work(text: LlamaConfig, spans: Sequence[Span]) -> Work:
    """A language model over the rows of a pass; the head for the last row of each span."""
    return linear_work(text, spans) + attention_work(text, spans)


def linear_work(text: LlamaConfig, spans: Sequence[Span], weight_bytes: int = NUMBER_BYTES) -> Work:
    """Projections, MLP and head."""
    rows = sum(span.length for span in spans)
    layer = text.hidden_size * (2 * text.q_width + 2 * text.kv_width + 3 * text.intermediate_size)
    weights = text.num_hidden_layers * layer
    head = text.vocab_size * text.hidden_size
    return Work(2 * rows * weights + 2 * len(spans) * head, weight_bytes * (weights + head))


def attention_work(text: LlamaConfig, spans: Sequence[Span]) -> Work:
    """Scores and sums of values; keys and values read and written."""
    keys = sum(span.length * (span.start + (span.length + 1) / 2) for span in spans)
    flops = 4 * keys * text.q_width * text.num_hidden_layers
    kept = sum(span.start + 2 * span.length for span in spans) * 2 * text.kv_width * text.num_hidden_layers
    return Work(flops, NUMBER_BYTES * kept)


def vision_work(size: PolicySize) -> Work:
    """Both towers, without their last blocks, and the projector, of one frame."""
    work = _projector_work(size)
    for tower in size.towers:
        work += _tower_work(tower, size.image_tokens)
    return work


def _tower_work(tower: TowerSize, patches: int) -> Work:
    rows, width, blocks = patches + tower.prefix, tower.width, tower.depth - 1
    weights = blocks * width * (4 * width + 2 * tower.inner)
    attention = 4 * rows * rows * width * blocks
    return Work(2 * rows * weights + attention, NUMBER_BYTES * weights)


def _projector_work(size: PolicySize) -> Work:
    vision, hidden = sum(tower.width for tower in size.towers), size.text.hidden_size
    weights = 4 * vision * vision + 4 * vision * hidden + hidden * hidden
    return Work(2 * size.image_tokens * weights, NUMBER_BYTES * weights)


def serial_floor_s(size: PolicySize, ceilings: Ceilings) -> float:
    """A frame by itself: vision, prefill, then one pass a token."""
    rows = size.rows
    passes = [vision_work(size) + decoder_work(size, [Span(0, 0, rows)])]
    passes += [decoder_work(size, [Span(0, rows + stage, 1)]) for stage in range(size.stages - 1)]
    return sum(ceilings.floor_s(work) for work in passes)


def pipelined_floor_s(size: PolicySize, ceilings: Ceilings) -> float:
    """One steady pass: a frame's prefill and a decode row of each frame before it."""
    return ceilings.floor_s(vision_work(size) + decoder_work(size, pipelined_spans(size)))


def pipelined_spans(size: PolicySize) -> list[Span]:
    """The segments of a steady pass."""
    rows = size.rows
    return [Span(0, 0, rows), *(Span(stage, rows + stage - 1, 1) for stage in range(1, size.stages))]
