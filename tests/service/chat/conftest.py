"""A real tiny chat model, loaded once, behind a real front and a real worker loop in a thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.chat_checkpoint import write_chat_checkpoint
from tests.service.chat.workers import Loaded, load
from tests.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def policy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def text_model(policy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return _loaded(policy_path, tmp_path_factory.mktemp("text-model"), "qwen2")


@pytest.fixture(scope="session")
def image_model(policy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return _loaded(policy_path, tmp_path_factory.mktemp("image-model"), "qwen2_5_vl")


def _loaded(policy_path: Path, path: Path, family: str) -> Loaded:
    torch.set_num_threads(1)
    write_chat_checkpoint(path, family)
    return load(policy_path, path)
