"""A test that lacks its oracle bundle is skipped, and the end of the run reports it, with and without workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORACLE_TEST = """
import pytest

@pytest.mark.oracle("tiny")
@pytest.mark.parametrize("case", range(2))
def test_original(case): ...
"""


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
@pytest.mark.parametrize("present", [False, True])
def test_a_skipped_oracle_is_reported(tmp_path: Path, workers: str, present: bool):
    bundles = tmp_path / "bundles"
    (bundles / "tiny" if present else bundles).mkdir(parents=True)
    (tmp_path / "test_it.py").write_text(ORACLE_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = oracle: recorded\n")
    command = [sys.executable, "-m", "pytest", "-q", workers, "-p", "tests.oracles", "-p", "no:cacheprovider"]
    environment = {**os.environ, "EDGEFLOW_ORACLES": str(bundles), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    line = f"2 oracle tests skipped: bundles missing in {bundles}; set EDGEFLOW_ORACLES"
    assert (line in done.stdout) is not present
    assert (f"{2} passed" in done.stdout) is present
