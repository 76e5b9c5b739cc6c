"""Bundles recorded from the original implementations: where they are, and a last line on what was skipped without them.

Mark a test with `@pytest.mark.oracle("llama-tiny")` and read `oracle("llama-tiny")`. A few cases are in
`tests/recorded`, and used where the whole bundle is missing. A test of any other is skipped without its bundle, and
counted at the end of the run; docs/develop/testing.md says how to point at them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

VARIABLE = "EDGEFLOW_ORACLES"
ORACLES = Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "shared" / "oracles")
RECORDED = Path(__file__).parent / "recorded"


def oracle(name: str) -> Path:
    """The folder of a bundle: the whole one, or else its one case in the repository."""
    whole, one_case = ORACLES / name, RECORDED / name.removesuffix("-tiny")
    return one_case if one_case.is_dir() and not whole.is_dir() else whole


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose bundle is missing."""
    for mark in item.iter_markers("oracle"):
        missing = [name for name in mark.args if not oracle(name).is_dir()]
        if missing:
            pytest.skip(f"no oracle bundle {', '.join(missing)} in {ORACLES}")


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Report the skipped oracle tests in a line of their own, however quiet the run."""
    skipped = [report for report in terminalreporter.getreports("skipped") if "oracle" in report.keywords]
    if skipped:
        line = f"{len(skipped)} oracle tests skipped: bundles missing in {ORACLES}; set {VARIABLE}"
        terminalreporter.write_line(f"{line} (docs/develop/testing.md)", yellow=True, bold=True)
