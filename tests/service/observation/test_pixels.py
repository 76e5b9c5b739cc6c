"""Pixels of the policy's cameras: the same in new memory and in memory that is given, and never twice."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import simplejpeg

from edgeflow.ipc.packets import seal_written, unseal
from edgeflow.service.observation.pixels import crc32c, decode_frame, decode_frame_into, frame_bytes, images_of
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow_client.errors import DataLoss, InvalidArgument
from edgeflow_client.types import CameraSpec, ImageFormat

TOP = CameraSpec("top", 640, 480, ImageFormat.JPEG)
SPARE = CameraSpec("spare", 16, 16, ImageFormat.JPEG)
WRIST = CameraSpec("wrist", 32, 24, ImageFormat.RGB8)
OPENED = OpenRequest(
    cameras=(TOP, SPARE, WRIST),
    instruction="go",
    control_period_ns=1,
    max_action_age_ns=None,
    mode=None,
    unnorm_key="",
    policy_cameras=(WRIST, TOP),
)
RAW = bytes(range(256)) * 9
JPEG = simplejpeg.encode_jpeg(np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8))
IMAGES = (JPEG, b"nobody decodes this", RAW)


def frame(*images: bytes, crc: int | None = None) -> CheckedFrame:
    return CheckedFrame(seq=1, stamp_ns=0, images=images or IMAGES, crc32c=crc)


def test_the_policy_s_cameras_come_in_its_order_and_raw_ones_as_they_are():
    wrist, top = decode_frame(frame(crc=crc32c(IMAGES)), OPENED)
    assert wrist is RAW and np.array_equal(np.frombuffer(top, np.uint8), simplejpeg.decode_jpeg(JPEG).reshape(-1))


def test_memory_that_is_given_holds_the_same():
    memory = memoryview(bytearray(frame_bytes(OPENED)))
    decode_frame_into(memory, frame(), OPENED)
    assert [bytes(part) for part in images_of(memory, OPENED)] == [
        bytes(part) for part in decode_frame(frame(), OPENED)
    ]


def test_decoding_into_sealed_memory_takes_no_other_memory():
    tracemalloc.start()
    try:
        made = seal_written(frame_bytes(OPENED), lambda memory: decode_frame_into(memory, frame(), OPENED))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < frame_bytes(OPENED) // 8
    assert bytes(unseal(made.descriptor, frame_bytes(OPENED))) == b"".join(decode_frame(frame(), OPENED))


def test_a_broken_image_is_named_also_when_it_is_decoded_into_sealed_memory():
    broken = frame(JPEG[: len(JPEG) // 2], *IMAGES[1:])
    with pytest.raises(InvalidArgument, match=r"frame\.images\[0\]\.data"):
        seal_written(frame_bytes(OPENED), lambda memory: decode_frame_into(memory, broken, OPENED))


def test_a_checksum_is_of_all_images_also_of_those_that_are_not_decoded():
    with pytest.raises(DataLoss) as caught:
        decode_frame(frame(JPEG, b"another", RAW, crc=crc32c(IMAGES)), OPENED)
    assert caught.value.reason == "CRC_MISMATCH"


def test_a_broken_image_is_named_by_its_index():
    small = CameraSpec("top", 16, 16, ImageFormat.JPEG)
    opened = OpenRequest(
        cameras=(WRIST, small),
        instruction="go",
        control_period_ns=1,
        max_action_age_ns=None,
        mode=None,
        unnorm_key="",
        policy_cameras=(small,),
    )
    with pytest.raises(InvalidArgument, match=r"frame\.images\[1\]\.data"):
        decode_frame(frame(RAW, JPEG[:200]), opened)
