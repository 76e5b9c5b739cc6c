"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

from tests.local_hub import local_hub  # noqa: F401 - a fixture
from tests.oracles import pytest_runtest_setup, pytest_terminal_summary  # noqa: F401 - hooks
from tests.stub_policy import stub_plugin  # noqa: F401 - a fixture
from tests.template_plugin import template_plugin  # noqa: F401

# torch.compile and transformers import Triton when they are first used. Its library crashes the process where a policy
# has run before, so it is loaded first, whichever files a process gets.
with suppress(ImportError):
    import triton  # noqa: F401

os.environ["HF_HUB_CACHE"] = os.devnull  # what this machine has fetched from the hub is not there

# Speed is measured in benchmarks; a deadline, or a limit on drawing examples, would only tell how busy the machine is.
BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("edgeflow", max_examples=50, **BUSY)
settings.register_profile("nightly", max_examples=2_000, print_blob=True, **BUSY)
settings.load_profile("edgeflow")


@pytest.fixture
def one_thread_around() -> Generator[None]:
    """One thread of torch before and after a test that computes with more."""
    import torch

    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests while garbage collection is off, then exempt modules and tests from it.

    They stay to the end, and each search of their two million objects takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
