"""Two programs on two streams, without a GPU: whoever reads a tensor must have waited for the stream that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_policy
from edgeflow.policies.openvla.network import SideStream

CPU = torch.device("cpu")


class Stream:
    """passed: how far this stream has come, and how far each stream it waited for had come by then."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.passed: dict[Stream, int] = {self: 0}

    def wait_stream(self, other: Stream) -> None:
        for stream, count in other.passed.items():
            self.passed[stream] = max(count, self.passed.get(stream, 0))


class StreamDevice(TorchDispatchMode):
    """What torch calls a device with streams. Every operation of the mode runs on the current one."""

    def __init__(self) -> None:
        super().__init__()
        self.current = Stream()
        self.used: set[Stream] = set()
        self.read_by: list[Stream] = []
        self._written: dict[int, tuple[Stream, int]] = {}
        self._alive: list[Tensor] = []

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        read = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        for address in read:
            writer, count = self._written.get(address, (self.current, 0))
            assert self.current.passed.get(writer, 0) >= count, f"{function} reads what another stream still writes"
        result = function(*args, **(kwargs or {}))
        self.current.passed[self.current] += 1
        self.used.add(self.current)
        for tensor in tensors(result):
            address = tensor.untyped_storage().data_ptr()
            if address not in read or function._schema.is_mutable:  # else a view
                self._written[address] = self.current, self.current.passed[self.current]
            self._alive.append(tensor)  # no address is used twice
        return result


def tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and not leaf.is_mkldnn]


@pytest.fixture
def device(monkeypatch) -> StreamDevice:
    made = StreamDevice()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(Tensor, "record_stream", lambda _, stream: made.read_by.append(stream))
    return made


def run_both(device: StreamDevice) -> Tensor:
    side = SideStream(torch.device("cuda"))
    with device:
        x = torch.ones(3) + 1
        first, second = side.both(lambda: x * 2, lambda: x * 3)
        return first + second


def test_both_programs_are_ordered_between_what_was_before_and_what_follows(device: StreamDevice):
    assert run_both(device).tolist() == [10.0] * 3
    assert len(device.used) == 2 and device.read_by == [device.current]


def test_in_a_capture_memory_is_left_to_the_pool(device: StreamDevice, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert run_both(device).tolist() == [10.0] * 3
    assert device.read_by == []


@pytest.mark.parametrize("forgotten", [0, 1])
def test_the_double_notices_a_missing_wait(device: StreamDevice, monkeypatch, forgotten: int):
    waits: list[Stream] = []
    plain = Stream.wait_stream

    def wait(self: Stream, other: Stream) -> None:
        waits.append(other)
        if len(waits) - 1 != forgotten:
            plain(self, other)

    monkeypatch.setattr(Stream, "wait_stream", wait)
    with pytest.raises(AssertionError, match="another stream still writes"):
        run_both(device)


def test_both_towers_of_a_policy_run_at_once_and_give_the_same(device: StreamDevice):
    policy = random_policy(SIZES["tiny"], CPU, torch.float32)
    pixels = torch.randn(2, *policy.pixel_shape)
    with torch.inference_mode():
        expected = policy.vision.project(policy.vision.features(pixels))
        policy.vision._side = SideStream(torch.device("cuda"))
        with device:
            found = policy.vision.project(policy.vision.features(pixels))
    assert torch.equal(found, expected) and len(device.used) == 2


def test_on_a_cpu_programs_run_in_order():
    order: list[str] = []

    def program(name: str) -> Tensor:
        order.append(name)
        return torch.zeros(1)

    SideStream(CPU).both(lambda: program("here"), lambda: program("aside"))
    assert order == ["here", "aside"]
