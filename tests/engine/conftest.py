"""What the tests of the chat plane share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.chat_checkpoint import write_chat_checkpoint


@pytest.fixture(scope="session")
def chat_directory(tmp_path_factory) -> Path:
    """A tiny Qwen2, as published; nobody writes to it."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("chat")
    write_chat_checkpoint(directory, "qwen2")
    return directory
