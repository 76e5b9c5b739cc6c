"""Sealed memory and packets: what crosses is whole, bounded, and cannot change afterwards."""

from __future__ import annotations

import os

import pytest

from edgeflow.errors import WorkerError
from edgeflow.ipc.packets import Packets, close_all, packet_pair
from edgeflow.ipc.sealed import seal, unseal
from edgeflow.service.children.messages import CODING, Act, Beat, ChildMessage, Kept
from edgeflow.service.sessions.requests import OpenRequest
from edgeflow.types import CameraSpec, ImageFormat, Mode


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096])
def test_sealed_bytes_come_out_as_they_went_in(data: bytes):
    fd = seal(data)
    try:
        assert bytes(unseal(fd, len(data))) == data
        with pytest.raises(OSError, match="not permitted"):
            os.write(fd, b"more")
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, len(data) + 1)
    finally:
        os.close(fd)


def test_what_is_not_sealed_or_too_large_is_refused():
    loose = os.memfd_create("loose")
    fd = seal(bytes(10))
    try:
        for bad, most in ((loose, 10), (fd, 9)):
            with pytest.raises(WorkerError):
                unseal(bad, most)
    finally:
        close_all([loose, fd])


def test_a_message_crosses_with_its_descriptors():
    ours, theirs = packet_pair()
    here, there = Packets[ChildMessage](ours, CODING), Packets[ChildMessage](theirs, CODING)
    camera = CameraSpec("wrist", 2, 1, ImageFormat.RGB8)
    opened = OpenRequest(
        cameras=(camera,),
        proprio_names=("a",),
        instruction="go",
        control_period_ns=1,
        max_action_age_ns=None,
        mode=Mode.SERIAL,
        unnorm_key="",
    )
    act = Act(request=1, opened=opened, peer="p", principal="", token="", received_ns=5, decode_ns=6)
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


def test_a_full_socket_and_a_foreign_packet_are_told_apart():
    ours, theirs = packet_pair()
    here, there = Packets[ChildMessage](ours, CODING), Packets[ChildMessage](theirs, CODING)
    sent = 0
    while here.send(Kept("k" * 60_000)):
        sent += 1
    assert sent > 1
    for _ in range(sent):
        assert there.receive() is not None
    assert here.send(Beat())
    assert there.receive() == (Beat(), [])
    ours.send(b"\xc1")
    with pytest.raises(WorkerError):
        there.receive()
    here.close()
    there.close()
