"""Run by scripts/nightly: what test_triton.py proves, of every case in every type and of every architecture."""

from __future__ import annotations

import pytest

from tests.kernels.subprocesses import run
from tests.kernels.test_triton import OPERATORS, SHARED_MEMORY, assert_fitting

pytestmark = pytest.mark.timeout(3000)


def test_kernels_equal_their_references():
    results = run("interpreted.py", "--every", *OPERATORS, interpret=True)
    assert len(results) > 300 and [result for result in results if not result["ok"]] == []


def test_kernels_fit_devices_that_are_not_here():
    results = run("compiled.py", "--every", interpret=False)
    assert {result["arch"] for result in results} == {*SHARED_MEMORY}
    assert_fitting(results)
