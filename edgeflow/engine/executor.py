"""Runs passes: one launch each over inputs that are staged on the host, on one device, for one caller, in order.

A `PassContract` says what passes are: their shapes, how their inputs lie in one buffer, the program over that buffer,
and the outcomes. There are contracts of tokens (engine/tokens.py), of denoised chunks (engine/flow/passes.py) and of
policies that answer in one pass (engine/one_pass.py). A program is run as it stands, or recorded once per shape and
replayed (engine/graphs.py). Results stay on the device, in the state of the slots; they are copied to the host after
the pass, and read when it is collected (ActionFlow algorithm 1, lines 4 to 11).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.graphs import CudaRecord, GraphRecording, Graphs, Record
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.plan import FrameRef, Outcome, Pass, Ref
from edgeflow_client.clock import MonotonicClock


class Stamp(Protocol):
    """A mark in the device's queue, reached when everything enqueued before it is done."""

    recorded_ns: int
    """When the host enqueued it, by the clock of the worker's loop."""

    @property
    def reached(self) -> bool: ...

    def wait(self) -> None:
        """Block until it is reached."""
        ...

    def since_ns(self, earlier: Stamp) -> int:
        """Device time from an earlier stamp, nanoseconds; both must have been reached."""
        ...


class CudaStamp:
    """A timing event on the device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(device))
        self.recorded_ns = MonotonicClock().now_ns()

    @property
    def reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def since_ns(self, earlier: Stamp) -> int:
        if not isinstance(earlier, CudaStamp):
            raise TypeError(f"{type(earlier).__name__} is of another device")
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return round(milliseconds * 1e6)


@dataclass(frozen=True, slots=True)
class Chunked(Outcome[FrameRef]):
    """An outcome of a frame whose answer is chunks."""

    values: NDArray[np.float64] | None = field(default=None, compare=False)
    """[M, horizon, A]: M candidates, normalised; None before its last pass."""

    @classmethod
    def of(cls, frame: FrameRef, values: Tensor) -> Chunked:
        """The end of an answer. values [M, horizon, A]: on the host."""
        found = values.numpy().astype(np.float64)
        return cls(frame, (), bool(np.isfinite(found).all()), values=found)


class PassContract(ABC):
    """The passes of one kind of policy or model: their rows, program and outcomes."""

    device: torch.device
    launches_ahead: bool = True
    """False where a pass must be collected before the next is launched, even if launching only enqueues."""
    reads_places: bool = False
    """True where programs that are not recorded read on the host where rows lie, which may follow from the pass before.
    """

    @abstractmethod
    def shapes(self) -> Sequence[Hashable]:
        """The shapes to record: all that sessions may need."""

    @abstractmethod
    def shape(self, planned: Pass[Any], prompts: Mapping[Any, Any], *, waits: bool) -> Any:
        """Everything about a pass that the host decides it by, unpadded."""

    @abstractmethod
    def fits(self, shape: Any, planned: Pass[Any]) -> Iterable[Any]:
        """The shapes in which a recording may run a pass, the best first; none where it must run as it is."""

    @abstractmethod
    def stage(self, planned: Pass[Any], prompts: Mapping[Any, Any], shape: Any) -> list[Tensor]:
        """The inputs of a pass in this shape, in pieces of bytes that lie end to end on the device."""

    @abstractmethod
    def program(self, buffer: Tensor, shape: Any, planned: Pass[Any] | None) -> Callable[[], Any]:
        """The program over a buffer of inputs. planned: of the only pass that it runs; None for a recording."""

    @abstractmethod
    def harmless(self, shape: Any) -> Tensor:
        """Inputs for the warm-up of a recording, all in the scratch slot, on the device."""

    @abstractmethod
    def results(self, planned: Pass[Any], shape: Any, ran: Any, outputs: Any) -> Tensor | None:
        """The outputs that the host reads, on the device. ran: the shape that the pass ran in, padded where it was
        replayed.
        """

    @abstractmethod
    def outcomes(self, planned: Pass[Any], results: Any, ran: Any) -> Sequence[Outcome[Any]]:
        """The outcome of each segment, of the results on the host."""

    def before(self, planned: Pass[Any]) -> None:  # noqa: B027 - most passes change nothing
        """Enqueue what changes slots before the program runs."""

    def after(self, planned: Pass[Any]) -> None:  # noqa: B027
        """Enqueue what changes slots after it."""

    def sample(self, planned: Pass[Any], ran: Any, outputs: Any, allowed: Tensor | None) -> Tensor | None:  # noqa: ARG002
        """Sample a pass that waited, as in `Executor.sample`; None without logits."""
        raise ValueError("these passes do not wait to be sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket(Generic[Ref]):
    """A launched pass."""

    planned: Pass[Ref]
    shape: Any
    """The shape that it runs in, padded where it is replayed."""
    results: Tensor | None
    """Those of the contract, on the host once it is done."""
    started: Stamp | None
    """A mark before its first copy to the device; None where launching computes."""
    done: Stamp | None
    """A mark after its last copy to the host; None where launching computes."""
    logits: Tensor | None = None
    """[n, V] of sampled rows, where they are kept."""
    outputs: Any = None
    """The outputs of a pass whose rows are not sampled yet (`Executor.sample`); None for others."""


Kind = TypeVar("Kind", bound=PassContract)


class Executor(Generic[Kind]):
    """The executor of a contract: one device, one caller, passes in order.

    graphs: record passes and replay them. record: makes the recordings, as CUDA graphs if not given. Shapes are
    recorded as they come until `graphs.seal()`. keep_logits: copy the logits of each pass into its ticket; may be
    switched while it runs.
    launch_ahead: how many passes may be launched before the oldest is collected: 0 where launching computes (CPU), 1
    where it enqueues (CUDA), so that no launch waits for a host copy.
    """

    def __init__(
        self, contract: Kind, *, graphs: bool = False, record: Record | None = None, keep_logits: bool = False
    ) -> None:
        self.contract = contract
        self.keep_logits = keep_logits
        self.record: Record | None = (record or CudaRecord(contract.device)) if graphs else None
        self.graphs: Graphs[Any] | None = None if self.record is None else Graphs(self.record)
        self.launch_ahead = self._launch_ahead()

    def drop_graphs(self) -> None:
        """Run all passes without recordings from now on, and give the memory of recordings back."""
        self.graphs = self.record = None
        self.launch_ahead = self._launch_ahead()

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Run passes as they stand within the block."""
        graphs, self.graphs = self.graphs, None
        try:
            yield
        finally:
            self.graphs = graphs

    def _launch_ahead(self) -> int:
        known = self.graphs is not None or not self.contract.reads_places
        return int(self.contract.launches_ahead and known and self.contract.device.type == "cuda")

    @torch.inference_mode()
    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any], *, waits: bool = False) -> Ticket[Ref]:
        """Start a pass: stage its inputs, run or replay it, begin to copy its results.

        prompts: those of its prefills. waits: rows are sampled later, by `sample`.
        """
        contract = self.contract
        shape = contract.shape(planned, prompts, waits=waits)
        padded = self._padded(planned, shape)
        ran = shape if padded is None else padded
        # Each pass has its own host memory: what the device still reads is never overwritten.
        staged = [self._pinned(piece) for piece in contract.stage(planned, prompts, ran)]
        started = self.stamp()
        contract.before(planned)
        outputs = self._run(planned, shape, staged) if padded is None else self._replay(padded, staged)
        results = contract.results(planned, shape, ran, outputs)
        logits = getattr(outputs, "logits", None) if self.keep_logits else None
        contract.after(planned)
        return Ticket(
            planned=planned,
            shape=ran,
            results=_to_host(results),
            started=started,
            done=self.stamp(),
            logits=None if logits is None else logits.clone(),
            outputs=outputs.copied() if waits else None,
        )

    @torch.inference_mode()
    def sample(self, ticket: Ticket[Ref], allowed: Tensor) -> Ticket[Ref]:
        """Sample the rows of a pass launched with `waits`. allowed [n, V] bool: what a grammar permits."""
        if ticket.outputs is None:
            raise ValueError("a pass that does not wait is sampled already")
        allowed = allowed.to(self.contract.device, non_blocking=True)
        results = self.contract.sample(ticket.planned, ticket.shape, ticket.outputs, allowed)
        if results is None:
            raise ValueError("a pass without logits has nothing to sample")
        return replace(ticket, results=_to_host(results), done=self.stamp(), outputs=None)

    def collect(self, ticket: Ticket[Ref]) -> Sequence[Outcome[Ref]]:
        """Wait for a pass, also for one without results; returns the outcome of each segment."""
        if ticket.done is not None:
            ticket.done.wait()
        return self.contract.outcomes(ticket.planned, ticket.results, ticket.shape)

    @torch.inference_mode()
    def record_all(self, progress: Callable[[int, int], None], shapes: Sequence[Hashable] | None = None) -> int:
        """Record these shapes, by default all of the contract, and return how many recordings there are, 0 without
        graphs. RuntimeError or ConfigError where an operator cannot be recorded.
        """
        if self.graphs is None:
            return 0
        if shapes is None:
            shapes = self.contract.shapes()
        for index, shape in enumerate(shapes):
            progress(index, len(shapes))
            self._find(shape)
        return len(self.graphs)

    def stamp(self) -> Stamp | None:
        """A mark after everything enqueued so far; None where launching computes."""
        return CudaStamp(self.contract.device) if self.contract.device.type == "cuda" else None

    def _padded(self, planned: Pass[Any], shape: Any) -> Any | None:
        """The shape to replay; None to run the pass as it is.

        With the robots waiting, no graph is captured: after `seal` only a shape that is recorded will do.
        """
        if self.graphs is None:
            return None
        fits = self.contract.fits(shape, planned)
        return next((each for each in fits if each in self.graphs or not self.graphs.sealed), None)

    def _replay(self, shape: Hashable, staged: list[Tensor]) -> Any:
        recording = self._find(shape)  # None where there are too many
        return (
            self.contract.program(self._upload(staged), shape, None)() if recording is None else recording.run(*staged)
        )

    def _run(self, planned: Pass[Any], shape: Any, staged: list[Tensor]) -> Any:
        if self.graphs is not None:
            self.graphs.eager_passes += 1
        return self.contract.program(self._upload(staged), shape, planned)()

    def _find(self, shape: Hashable) -> GraphRecording[Any] | None:
        return self.graphs.find(shape, lambda: self._made(shape)) if self.graphs is not None else None

    def _made(self, shape: Hashable) -> tuple[Tensor, Callable[[], Any]]:
        """A buffer for a new recording, and the program over it, which keeps everything that operators cache."""
        buffer = self.contract.harmless(shape)
        return buffer, self.contract.program(buffer, shape, None)

    def _pinned(self, piece: Tensor) -> Tensor:
        return piece.pin_memory() if self.contract.device.type == "cuda" and piece.is_cpu else piece

    def _upload(self, staged: list[Tensor]) -> Tensor:
        return torch.cat([piece.to(self.contract.device, non_blocking=True) for piece in staged])


def _to_host(results: Tensor | None) -> Tensor | None:
    return None if results is None else results.to("cpu", non_blocking=True, copy=True)


@dataclass(frozen=True, slots=True)
class Running(Generic[Ref]):
    """A launched pass whose outcome has not been collected."""

    ticket: Ticket[Ref]
    turn_ns: int
    """The beginning of the loop's turn that launched it."""
    begun: Stamp | None = None
    """A mark before its inputs were prepared."""
    queued: bool = False
    """True when the device still had earlier work after the launch."""
    apart: bool = False
    """True when only its sampling was launched in that turn."""

    @classmethod
    def of(
        cls, ticket: Ticket[Ref], turn_ns: int, begun: Stamp | None, *, apart: bool = False, prepared: bool = False
    ) -> Running[Ref]:
        """A pass that was launched just now. prepared: its inputs were computed on the device, which counts."""
        return cls(ticket, turn_ns, begun, begun is not None and (prepared or not begun.reached), apart)

    def sample(self, prefills: int, decodes: int, now_ns: int, *, on_device: bool, whole: bool = False) -> PassSample:
        """The time of a collected pass: of its turn, or on the device: from the end of earlier work if it queued after
        that, else from when its inputs were staged.
        """
        if not on_device:
            return PassSample(prefills, decodes, now_ns - self.turn_ns, whole=whole)
        ticket = self.ticket
        since = self.begun if self.queued else ticket.started
        if ticket.done is None or ticket.started is None or since is None:
            raise RuntimeError("an engine that launches ahead gave a pass without stamps")
        lead_ns = ticket.started.recorded_ns - self.turn_ns
        return PassSample(prefills, decodes, ticket.done.since_ns(since), lead_ns, whole)
