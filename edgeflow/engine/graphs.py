"""Programs recorded once a shape and replayed: a pass becomes one launch (docs/architecture.md).

A recording holds the addresses of its inputs and outputs and every number the host chose; what differs from replay to
replay lies in memory. Recordings share one pool of memory for what lies between, so they are replayed one after the
other, on one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

Outputs = TypeVar("Outputs")
MOST_GRAPHS = 256
WARM_UPS = 2  # the first compiles and reserves, the second shows that nothing is left to do


class Record(Protocol):
    """Records what a program launches; the replay, and what it left where every replay will leave it."""

    def __call__(self, program: Callable[[], Any]) -> tuple[Callable[[], None], Any]: ...


class CudaRecord:
    """By CUDA graphs. The program is run on a stream of its own before it is captured there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, program: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                program()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = program()
        return graph.replay, outputs


@dataclass(frozen=True, slots=True)
class Recording(Generic[Outputs]):
    """One shape. inputs: the buffer that is filled before a replay."""

    inputs: Tensor
    replay: Callable[[], None]
    outputs: Outputs

    def run(self, *staged: Tensor) -> Outputs:
        """Enqueue copies, one piece behind the other, and a replay. The outputs hold until this shape's next replay."""
        for place, piece in zip(torch.split(self.inputs, [len(piece) for piece in staged]), staged, strict=True):
            place.copy_(piece, non_blocking=True)
        self.replay()
        return self.outputs


class Graphs(Generic[Outputs]):
    """Recordings by shape: made when a shape is first asked for, until `seal`; then others run eagerly and are counted.

    most: recordings that are kept, at most.
    """

    def __init__(self, record: Record, most: int = MOST_GRAPHS) -> None:
        self.eager_passes = 0
        self._record = record
        self._most = most
        self._sealed = False
        self._by_shape: dict[Hashable, Recording[Outputs]] = {}

    def __len__(self) -> int:
        return len(self._by_shape)

    def seal(self) -> None:
        """From now on nothing is recorded: nobody waits for it."""
        self._sealed = True
        self.eager_passes = 0

    def find(
        self, shape: Hashable, make: Callable[[], tuple[Tensor, Callable[[], Outputs]]]
    ) -> Recording[Outputs] | None:
        """The recording of a shape; None where the pass must run eagerly.

        make: a buffer of inputs with which the program does no harm, and the program over it.
        """
        if shape not in self._by_shape and not self._sealed and len(self._by_shape) < self._most:
            inputs, program = make()
            self._by_shape[shape] = Recording(inputs, *self._record(program))
        recording = self._by_shape.get(shape)
        self.eager_passes += recording is None
        return recording
