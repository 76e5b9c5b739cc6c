"""Settings of the whole suite."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.oracles import pytest_runtest_setup, pytest_terminal_summary  # noqa: F401 - hooks

# Speed is measured in benchmarks; a deadline here would only tell how busy the machine is.
settings.register_profile("edgeflow", deadline=None, max_examples=50)
settings.register_profile("nightly", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("edgeflow")


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
