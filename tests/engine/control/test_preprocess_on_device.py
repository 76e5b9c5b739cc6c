"""Frames that are preprocessed on the device: the tokens of the host's, replayed too, and nobody waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.control.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.config import ImageConfig
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.openvla.preprocess import DevicePreprocessor
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine, choose_preprocess
from edgeflow_client.types import Mode
from tests.engine.control.test_lossless import make_engine
from tests.engine.test_graph_launches import META, OnTheDevice
from tests.engine.test_graphs import CPU, ON_THE_DEVICE, replaying, tokens
from tests.policies.openvla.test_preprocess import DINO, SIGLIP, picture
from tests.tiny_checkpoint import TinySize, write_checkpoint

SIZES = [(48, 64), (28, 28), (90, 40), (3000, 2)]  # the last one is too long for the device


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2))


def frames(policy: OpenVLAPolicy) -> list[PreparedFrame]:
    images = [picture(*SIZES[seed % len(SIZES)], seed) for seed in range(9)]
    return [PreparedFrame(policy.preprocess(image), policy.prompt_ids("go")) for image in images]


def test_tokens_are_those_of_frames_preprocessed_on_the_host(checkpoint):
    host, device = (
        load_openvla(checkpoint, torch.float32, CPU, table=ON_THE_DEVICE, preprocess_on_device=on_device)
        for on_device in (False, True)
    )
    for ours, theirs in zip(frames(device), frames(host), strict=True):
        assert torch.equal(ours.pixel_values, theirs.pixel_values)
    expected = tokens(decode_serially(make_engine(host, 1), frames(host)))
    run = OfflineRun(replaying(device), Scheduler(limits_for(device.K)), [Mode.PIPELINED])
    assert tokens(run.decode([frames(device)])[0]) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("strategy", ["resize-naive", "letterbox", "resize-crop"])
@pytest.mark.parametrize("crop", [False, True])
def test_a_frame_of_a_known_size_stays_on_the_device(strategy: str, crop: bool):
    preprocessor = DevicePreprocessor(ImageConfig(28, strategy, (DINO, SIGLIP), crop), META)
    image = torch.empty(48, 64, 3, dtype=torch.uint8, device=META)
    preprocessor.pixels(image)  # makes the plan
    with OnTheDevice() as seen:
        pixels = preprocessor.pixels(image)
    assert pixels.shape == (6, 28, 28) and pixels.dtype == torch.float32
    assert "gather" in seen.calls


@pytest.mark.parametrize("size", SIZES)
def test_it_is_preprocessed_where_the_option_says(checkpoint, monkeypatch, size: tuple[int, int]):
    seen: list[tuple[int, ...]] = []
    original = DevicePreprocessor.__call__

    def noted(self: DevicePreprocessor, image: np.ndarray) -> torch.Tensor:
        seen.append(image.shape)
        return original(self, image)

    monkeypatch.setattr(DevicePreprocessor, "__call__", noted)
    for option, short in (("auto", 0), ("host", 0), ("device", max(size) <= 28 * 64)):
        config = ServiceConfig(model=str(checkpoint), device="cpu", preprocess=option)
        seen.clear()
        build_engine(config).engine.policy.preprocess(picture(*size))
        assert len(seen) == short


def test_on_cuda_auto_is_the_device():
    cuda = torch.device("cuda")
    assert choose_preprocess("auto", cuda) and choose_preprocess("device", CPU)
    assert not choose_preprocess("host", cuda) and not choose_preprocess("auto", CPU)
