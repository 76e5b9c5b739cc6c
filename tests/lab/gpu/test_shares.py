"""The GPU suite's accounting: its sections fit one call, and time that one leaves goes to the next."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from edgeflow.lab.gpu import section_order as order
from edgeflow.lab.gpu.section_order import SECTIONS, SIZES, TOTAL_S, end_of
from edgeflow.lab.gpu.subjects.random_policy import SIZES as SHAPES
from edgeflow.lab.gpu.suite import FEWEST_S, MINUTES, SPARE_S

ROOT = Path(__file__).parents[3]
TICK_S = 0.02  # processes' starts are known to a hundredth of a second
EARLY = {"one": 30.0, "two": 20.0, "three": 50.0}


def test_all_sections_fit_one_call_of_ten_minutes():
    """With what the wheels' installation and the suite itself may take."""
    assert sum(SECTIONS.values()) <= TOTAL_S == 570
    assert min(SECTIONS.values()) >= FEWEST_S
    assert TOTAL_S + SPARE_S + 20 <= 60 * MINUTES == 600


def test_a_section_that_does_not_fit_is_rejected_at_import():
    longer = inspect.getsource(order).replace('"facts": 12.0', '"facts": 12.5')
    with pytest.raises(ValueError, match=r"shares are 570.5 s, at most 570 s fit"):
        exec(compile(longer, "order.py", "exec"), {"__name__": "edgeflow.lab.gpu.section_order"})


def test_sections_that_use_their_whole_time_end_in_time():
    now = ends = 100.0
    ends += sum(SECTIONS.values())
    for name, share in SECTIONS.items():
        begun, now = now, end_of(name, SECTIONS, now, ends)
        assert now - begun == pytest.approx(share)
    assert now == pytest.approx(ends)


def test_time_that_a_section_leaves_goes_to_the_next():
    assert end_of("one", EARLY, 0.0, 100.0) == 30
    assert end_of("two", EARLY, 10.0, 100.0) == 50, "its own 20 s and 20 s that the first one left"
    assert end_of("three", EARLY, 15.0, 100.0) == 100
    assert end_of("one", {"one": 30.0}, 0.0, 100.0) == 100, "one section alone has all the time"


def test_all_sections_shrink_in_proportion_when_time_is_short():
    assert end_of("one", EARLY, 0.0, 50.0) == 15
    assert end_of("two", EARLY, 15.0, 50.0) == 25
    assert end_of("two", EARLY, 50.0, 50.0) == 50


def test_the_names_of_policies_are_known_without_their_shapes():
    assert set(SIZES) == set(SHAPES)


def test_the_time_of_a_call_begins_with_its_process():
    code = (
        "import time; from edgeflow.lab.gpu.suite import _process_started as started; time.sleep(0.3);"
        "print(time.monotonic() - started())"
    )
    begun = monotonic()
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.3 <= float(result.stdout) <= monotonic() - begun + TICK_S
