"""Chat passes as replays: a decode row, or a whole chunk of a prompt, is one launch (engine/graphs.py).

A shape is a number of rows and a bound on how far their slot is read, a power of two. The rest of a prompt, after its
whole chunks, runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.engine.generate import RunPass, StepRows, run_pass
from edgeflow.engine.graphs import CudaRecord, Graphs, Record
from edgeflow.engine.policy import Decoder
from edgeflow.errors import ConfigError
from edgeflow.kernels.dimensions import size_class
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout
from edgeflow.kernels.shapes import stage_of
from edgeflow.models.chat import ChatModel

LEAST_REACH = 256


def replayed(
    model: ChatModel, decode: ChatModel, kv: KVSlots, chunk: int, *, required: bool, record: Record | None = None
) -> tuple[RunPass, str]:
    """Record the passes of a model and of the one that decodes; returns what runs them, and a line for the start.

    required: raise ConfigError where passes cannot be recorded; otherwise they run eagerly.
    """
    passes = ReplayedPasses(kv, record)
    try:
        passes.record(decode.decoder, (1,), 1)
        for components in (1,) if model.vision is None else (1, 3):
            passes.record(model.decoder, (min(chunk, kv.capacity),), components)
    except (ConfigError, RuntimeError) as error:
        if required:
            raise ConfigError(f"graphs: {error}") from error
        return run_pass, f"no graphs: {error}"
    passes.seal()
    return passes, f"{len(passes)} graphs"


@dataclass(frozen=True, slots=True)
class _Shape:
    """components: numbers per position (3 for M-RoPE). reach: positions of the slot that may be read."""

    decoder: Decoder
    rows: int
    components: int
    reach: int


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of a recording besides its integers: hidden [n, E] enters, logits [V] of the last row leave."""

    hidden: Tensor
    logits: Tensor


class ReplayedPasses:
    """A stand-in for `run_pass` that replays. `record` writes into slot 0: call it before the slot is in use."""

    def __init__(self, kv: KVSlots, record: Record | None = None) -> None:
        self._kv = kv
        self._graphs: Graphs[_Memory] = Graphs(record or CudaRecord(kv.data.device))

    def __len__(self) -> int:
        return len(self._graphs)

    @torch.inference_mode()
    def record(self, decoder: Decoder, rows: Sequence[int], components: int) -> None:
        """Record passes of each number of rows, at every reach."""
        for count in rows:
            for reach in self._reaches():
                shape = _Shape(decoder, count, components, reach)
                self._graphs.find(shape, partial(self._harmless, shape))

    def seal(self) -> None:
        """Record nothing from now on."""
        self._graphs.seal()

    @torch.inference_mode()
    def __call__(self, decoder: Decoder, kv: KVSlots, steps: Sequence[StepRows]) -> list[Tensor | None]:
        (step, *others), span = steps, steps[0].span
        shape = _Shape(decoder, span.length, len(step.positions), self._reach(span.start + span.length))
        recording = None if others else self._graphs.find(shape, partial(self._harmless, shape))
        if recording is None:
            return run_pass(decoder, kv, steps)
        places = torch.arange(span.start, span.start + span.length)
        numbers = torch.cat([torch.full((1, span.length), span.slot), places[None], step.positions])
        numbers = F.pad(numbers, (0, span.length % 2))
        device = self._kv.data.device
        recording.outputs.hidden.copy_(step.hidden)
        held = recording.run(numbers.pin_memory() if device.type == "cuda" else numbers)
        return [held.logits.clone() if step.samples else None]

    def _harmless(self, shape: _Shape) -> tuple[Tensor, Callable[[], _Memory]]:
        """Inputs in which all rows are row 0 of slot 0, and the program over them.

        Each line of the inputs has an even length, so that all begin at multiples of 16 bytes (PackedLayout).
        """
        device = self._kv.data.device
        size = 2 + shape.components, shape.rows + shape.rows % 2
        inputs = torch.zeros(size, dtype=torch.long, device=device)
        numbers = inputs[:, : shape.rows]
        hidden = shape.decoder.embed(numbers[0])
        last = numbers.new_full((1,), shape.rows - 1)
        layout = PackedLayout(
            lengths=(shape.rows,),
            reach=shape.reach,
            row_slot=numbers[0],
            row_position=numbers[1],
            rope_position=numbers[2:],
            sampled_rows=last,
        )

        def program() -> _Memory:
            rows = shape.decoder.forward_sampled(hidden, layout, self._kv)
            return _Memory(hidden, shape.decoder.logits(rows, stage_of(layout.lengths))[0])

        return inputs, program

    def _reach(self, end: int) -> int:
        return min(max(size_class(end), LEAST_REACH), self._kv.capacity)

    def _reaches(self) -> list[int]:
        return sorted({self._reach(end) for end in (1 << power for power in range(self._kv.capacity.bit_length() + 1))})
