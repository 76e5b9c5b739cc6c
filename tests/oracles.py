"""Bundles recorded from the original implementations: where they are, and a last line on what was skipped without them.

Mark a test with `@pytest.mark.oracle("llama-tiny")`: it is skipped where that bundle is missing, and counted at the end
of the run. The bundles are not part of the repository; docs/testing.md tells how to point at them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

VARIABLE = "EDGEFLOW_ORACLES"
ORACLES = Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "shared" / "oracles")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose bundle is missing."""
    for mark in item.iter_markers("oracle"):
        missing = [name for name in mark.args if not (ORACLES / name).is_dir()]
        if missing:
            pytest.skip(f"no oracle bundle {', '.join(missing)} in {ORACLES}")


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Report the skipped oracle tests in a line of their own, however quiet the run."""
    skipped = [report for report in terminalreporter.getreports("skipped") if "oracle" in report.keywords]
    if skipped:
        line = f"{len(skipped)} oracle tests skipped: bundles missing in {ORACLES}; set {VARIABLE} (docs/testing.md)"
        terminalreporter.write_line(line, yellow=True, bold=True)
