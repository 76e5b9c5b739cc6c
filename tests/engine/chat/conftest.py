"""A robot's policy beside which chat is tried."""

from __future__ import annotations

import pytest
import torch

from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from tests.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    path = write_checkpoint(tmp_path_factory.mktemp("tiny"))
    return load_openvla(path, torch.float32, torch.device("cpu"))
