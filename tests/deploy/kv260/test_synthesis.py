"""The modules of deploy/kv260 are in the subset of SystemVerilog that yosys reads, and Verilator has no warnings."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.kv260_estimate import estimate
from tests.deploy.kv260.simulator import ARITHMETIC, lint, needs_verilator, needs_yosys, sources

BESIDE = ("fp32_multiplier", "fp32_adder")
"""Modules that are not part of the accelerator."""


@needs_verilator
@pytest.mark.parametrize("top", ["channel", *BESIDE])  # four channels at once take five times as long
def test_verilator_has_no_warning(top: str):
    assert lint(top) == ""


@needs_yosys
def test_yosys_reads_every_module():
    read = f"read_verilog -sv -I{ARITHMETIC} {' '.join(sources())}"
    for top in ("accelerator", *BESIDE):
        script = f"{read}; hierarchy -check -top {top}; proc; check -assert"
        subprocess.run(["yosys", "-q", "-p", script], check=True, timeout=60)


@needs_yosys
def test_a_processing_element_takes_one_dsp():
    cells = estimate("processing_element")["processing_element"]
    assert cells["DSP"] == 1
    assert cells["FF"] > 35 and cells["LUT"] > 35  # at least its product of 35 bits
