"""Fixtures for tests of the demonstrations' training."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo  # optimisers import it; with the LLVM of a GL library loaded first, its own crashes


@pytest.fixture(scope="module")
def one_thread():
    """Torch computes in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
