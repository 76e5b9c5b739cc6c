"""Programs recorded once per shape and replayed: a pass becomes one launch (engine/README.md).

A recording consists of addresses and of every number chosen by the host; whatever differs between replays lies in
memory. It does not own the memory that existed before the capture, so each `GraphRecording` keeps its program, and
with it all tensors that the program refers to. Recordings share one memory pool for intermediate results, so they are
replayed one after the other, on one stream.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from edgeflow.contract import CaptureError
from edgeflow_client.errors import ConfigError

Outputs = TypeVar("Outputs")
MOST_GRAPHS = 256
WARM_UPS = 2  # the first compiles and reserves, the second shows that nothing is left to do


Record: TypeAlias = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]
"""Records what a program launches; returns the replay, and the outputs that every replay overwrites."""
Progress = Callable[[str, int, int], None]
"""Told the name of a step, and how much of it is done of how much."""


class GraphOwner(Protocol):
    """An executor, or several, whose passes may be recorded."""

    def record_all(self, progress: Callable[[int, int], None]) -> int: ...

    def drop_graphs(self) -> None: ...


class CudaRecord:
    """Recordings as CUDA graphs. A program runs on a side stream first and is then captured there.

    One per device and process, shared by control and chat: destroying a graph clears the cuBLAS workspace of its
    stream, which the other graphs of the stream still address (pytorch issue 193402). So no graph, nor one whose
    capture failed, is destroyed before all of them.
    CaptureError where a capture fails: torch's allocator then keeps memory that streams share for ever, so that the
    process must end.
    check_inputs: have torch verify at each replay that the inputs of torch's operators are still allocated, where it
    can (2.13). That walks over every weight at every replay and does not see the arguments of Triton's kernels, so it
    is for tests on a GPU, not for serving.
    """

    def __init__(self, device: torch.device, *, check_inputs: bool = False) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        checkable = "check_input_liveness" in inspect.signature(torch.cuda.CUDAGraph.capture_begin).parameters
        self._options = {"check_input_liveness": True} if check_inputs and checkable else {}

    def __call__(self, program: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        if not self._graphs:
            gc.collect()
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        with torch.cuda.stream(self._stream):
            # Kernels compile, and libraries reserve workspaces, outside of the capture.
            for _ in range(WARM_UPS):
                program()
            torch.cuda.synchronize(self._device)  # in a capture, torch must not ask whether pinned memory is free
            with _no_collection():
                outputs = self._capture(graph, program)
        return graph.replay, outputs

    def _capture(self, graph: torch.cuda.CUDAGraph, program: Callable[[], Any]) -> Any:
        """Without torch.cuda.graph, which empties the allocator's caches before each capture."""
        graph.capture_begin(self._pool, capture_error_mode="thread_local", **self._options)
        try:
            try:
                return program()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            cause = error.__context__ or error  # the end of a failed capture says only that it failed
            (told, *_) = str(cause).splitlines() or [type(cause).__name__]
            raise CaptureError(f"graphs: a pass could not be captured: {told}") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """A collection may free what a capture must not: an event, or a tensor of another stream."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@dataclass(frozen=True, slots=True)
class GraphRecording(Generic[Outputs]):
    """The recording of one shape of a pass."""

    inputs: Tensor
    """The buffer that is filled before a replay."""
    program: Callable[[], Outputs]
    """The program, kept for the memory that its replays address."""
    replay: Callable[[], None]
    outputs: Outputs

    def run(self, *staged: Tensor) -> Outputs:
        """Enqueue copies of the pieces, end to end, and a replay. The outputs last until this shape's next replay."""
        for place, piece in zip(torch.split(self.inputs, [len(piece) for piece in staged]), staged, strict=True):
            place.copy_(piece, non_blocking=True)
        self.replay()
        return self.outputs


class Graphs(Generic[Outputs]):
    """Recordings by shape, at most `most`: a new shape is recorded until `seal`, from then on it runs eagerly.

    eager_passes: passes that found no recording since `seal`. sealed: no further shape is recorded.
    """

    def __init__(self, record: Record, most: int = MOST_GRAPHS) -> None:
        self.eager_passes = 0
        self._record = record
        self._most = most
        self.sealed = False
        self._by_shape: dict[Hashable, GraphRecording[Outputs]] = {}

    def __len__(self) -> int:
        return len(self._by_shape)

    def __contains__(self, shape: Hashable) -> bool:
        return shape in self._by_shape

    def seal(self) -> None:
        """Record nothing from now on: a capture would delay a robot's pass."""
        self.sealed = True
        self.eager_passes = 0

    def find(
        self, shape: Hashable, make: Callable[[], tuple[Tensor, Callable[[], Outputs]]]
    ) -> GraphRecording[Outputs] | None:
        """The recording of a shape; None where the pass must run eagerly.

        make: returns a buffer of inputs that is safe to run the program with, and the program over that buffer.
        """
        if shape not in self._by_shape and not self.sealed and len(self._by_shape) < self._most:
            inputs, program = make()
            self._by_shape[shape] = GraphRecording(inputs, program, *self._record(program))
        recording = self._by_shape.get(shape)
        self.eager_passes += recording is None
        return recording


def record_passes(engine: GraphOwner, progress: Progress, *, required: bool, name: str = "graphs") -> str:
    """Record every shape that sessions may need, whatever their depths, arrivals and instructions; a line for the log,
    empty where nothing is recorded.

    required: ConfigError where passes cannot be recorded; else the engine runs them eagerly.
    """
    try:
        count = engine.record_all(lambda done, total: progress(name, done, total))
    except (ConfigError, RuntimeError) as error:
        if required:
            raise ConfigError(f"graphs: {error}") from error
        engine.drop_graphs()
        return f"no graphs: {error}"
    return f"{count} graphs" if count else ""
