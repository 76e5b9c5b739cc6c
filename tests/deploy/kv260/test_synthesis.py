"""The modules of deploy/kv260 are in the subset of SystemVerilog that yosys reads, and Verilator has no warnings."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.kv260_estimate import estimate, yosys_version
from tests.deploy.kv260.simulator import ARITHMETIC, YOSYS, lint, needs_verilator, needs_yosys, sources, unreadable

BESIDE = ("fp32_multiplier", "fp32_adder")
"""Modules that are not part of the accelerator."""


@needs_verilator
@pytest.mark.parametrize("top", ["channel", *BESIDE])  # four channels at once take five times as long
def test_verilator_has_no_warning(top: str):
    assert lint(top) == ""


@pytest.fixture(scope="module")
def yosys() -> str:
    if reason := unreadable("yosys"):
        pytest.skip(reason)
    return "yosys"


@needs_yosys
def test_yosys_reads_every_module(yosys: str):
    read = f"read_verilog -sv -I{ARITHMETIC} {' '.join(sources())}"
    for top in ("accelerator", *BESIDE):
        script = f"{read}; hierarchy -check -top {top}; proc; check -assert"
        subprocess.run([yosys, "-q", "-p", script], check=True, timeout=60)


@needs_yosys
def test_a_processing_element_takes_one_dsp():
    if not (found := yosys_version()).startswith(f"Yosys {YOSYS} "):
        pytest.skip(f"the estimate is one of yosys {YOSYS}, whose statistics it reads; found {found}")
    cells = estimate("processing_element")["processing_element"]
    assert cells["DSP"] == 1
    assert cells["FF"] > 35 and cells["LUT"] > 35  # at least its product of 35 bits
