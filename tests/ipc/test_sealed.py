"""Sealed memory and packets: what crosses is whole, bounded, and cannot change afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeflow.ipc.packets import (
    DescriptorsLackingError,
    Packets,
    close_all,
    packet_pair,
    read_sealed,
    seal,
    seal_parts,
    seal_written,
    unseal,
)
from edgeflow.service.children.messages import CODING, Act, ChildMessage, Heartbeat, SavedState
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import WorkerError
from edgeflow_client.types import CameraSpec, ImageFormat, Mode, StateSpec


@contextlib.contextmanager
def full_table() -> Iterator[None]:
    """This process has no free descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096])
def test_sealed_bytes_come_out_as_they_went_in(data: bytes):
    fd = seal(data)
    try:
        assert bytes(unseal(fd, len(data))) == data == read_sealed(fd, len(data))
        with pytest.raises(OSError, match="not permitted"):
            os.write(fd, b"more")
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, len(data) + 1)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_memory_that_is_written_in_place_is_sealed_afterwards(size: int):
    def write(memory: memoryview) -> None:
        memory[:] = b"x" * size

    made = seal_written(size, write)
    descriptor = made.descriptor
    assert bytes(unseal(descriptor, size)) == b"x" * size
    with pytest.raises(OSError, match="not permitted"):
        os.write(descriptor, b"more")
    del made
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_memory_whose_writing_fails_is_gone_while_its_error_is_kept():
    seen: list[int] = []

    def write(memory: memoryview) -> None:
        seen.append(len(memory[2:]))
        raise ValueError("no picture")

    def ours() -> list[str]:
        """What this process has open and mapped of such memory: other descriptors may come and go."""
        found = Path("/proc/self/maps").read_text().splitlines()
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
                found.append(str(entry.readlink()))
        return [line for line in found if "memfd:edgeflow" in line]

    before = ours()
    with pytest.raises(ValueError, match="no picture") as kept:
        seal_written(10, write)
    assert seen == [8] and ours() == before and kept.tb is not None


def test_unsealed_or_too_large_memory_is_rejected():
    loose = os.memfd_create("loose")
    fd = seal(bytes(10))
    try:
        for bad, most in ((loose, 10), (fd, 9)):
            for read in (unseal, read_sealed):
                with pytest.raises(WorkerError):
                    read(bad, most)
    finally:
        close_all([loose, fd])


def test_a_message_crosses_with_its_descriptors():
    ours, theirs = packet_pair()
    here, there = Packets[ChildMessage](ours, CODING), Packets[ChildMessage](theirs, CODING)
    camera = CameraSpec("wrist", 2, 1, ImageFormat.RGB8)
    opened = OpenRequest(
        cameras=(camera,),
        state=(StateSpec(name="a", size=1),),
        instruction="go",
        control_period_ns=1,
        max_action_age_ns=None,
        mode=Mode.SERIAL,
        unnorm_key="",
    )
    act = Act(request=1, opened=opened, state=[0.5], caller=Caller("p"), received_ns=5, decode_ns=6)
    pixels = seal(b"abcdef")
    assert here.send(act, [pixels])
    os.close(pixels)
    received = there.receive()
    assert received is not None
    message, descriptors = received
    assert message == act
    assert bytes(unseal(descriptors[0], 6)) == b"abcdef"
    close_all(descriptors)
    assert there.receive() is None
    here.close()
    with pytest.raises(EOFError):
        there.receive()
    there.close()


def test_a_message_without_room_for_its_descriptor_is_not_a_broken_protocol():
    ours, theirs = packet_pair()
    here, there = Packets[ChildMessage](ours, CODING), Packets[ChildMessage](theirs, CODING)
    fd = seal(b"abc")
    assert here.send(SavedState("a"), [fd]) and here.send(SavedState("b"), [fd]) and here.send(Heartbeat(), [fd] * 5)
    with full_table():
        assert read_sealed(fd, 3) == b"abc"
        with pytest.raises(DescriptorsLackingError) as lack:
            there.receive()
    assert lack.value.message == SavedState("a")
    received = there.receive()
    assert received is not None and received[0] == SavedState("b")
    close_all([fd, *received[1]])
    with pytest.raises(WorkerError):
        there.receive()  # more than a message may have
    here.close()
    there.close()


def test_a_full_socket_and_a_foreign_packet_are_distinguished():
    ours, theirs = packet_pair()
    here, there = Packets[ChildMessage](ours, CODING), Packets[ChildMessage](theirs, CODING)
    sent = 0
    while here.send(SavedState("k" * 60_000)):
        sent += 1
    assert sent > 1
    for _ in range(sent):
        assert there.receive() is not None
    assert here.send(Heartbeat())
    assert there.receive() == (Heartbeat(), [])
    ours.send(b"\xc1")
    with pytest.raises(WorkerError):
        there.receive()
    here.close()
    there.close()


@pytest.mark.parametrize("parts", [[], [b""], [b"abc"], [b"", b"ab", memoryview(b"cdef")[1:]], [bytes(5 << 20), b"z"]])
def test_parts_are_sealed_one_after_the_other(parts: list[bytes]):
    whole = b"".join(parts)
    made = seal_parts(parts)
    assert read_sealed(made.descriptor, len(whole)) == whole
