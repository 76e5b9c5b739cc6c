"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

from tests.oracles import pytest_runtest_setup, pytest_terminal_summary  # noqa: F401 - hooks

# Speed is measured in benchmarks; a deadline here would only tell how busy the machine is.
settings.register_profile("edgeflow", deadline=None, max_examples=50)
settings.register_profile("nightly", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("edgeflow")
