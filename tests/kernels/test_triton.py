"""Triton kernels without a GPU: the interpreter runs them against their references, the compiler fits them to devices.

Each in a process of its own: the interpreter must be chosen before a kernel is imported, and a read far out of bounds
ends its process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeflow.kernels.catalogue import small_cases
from edgeflow.kernels.table import built_in_table

HERE = Path(__file__).parent
DTYPES = ("float32", "float16", "bfloat16")
OPERATORS = [name for name in built_in_table().operators if "triton" in built_in_table().candidates(name)]
SHARED_MEMORY = {80: 163 * 1024, 87: 163 * 1024, 90: 227 * 1024}  # bytes a block may have

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.timeout(600),
]


def run(script: str, *arguments: str, interpret: bool) -> list[dict]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(HERE.parents[1])} | ({"TRITON_INTERPRET": "1"} if interpret else {})
    command = [sys.executable, str(HERE / script), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout[-300:]}\n{result.stderr[-3000:]}"
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("group", [OPERATORS[:6], OPERATORS[6:]], ids=["first half", "second half"])
def test_kernels_equal_their_references(group: list[str]):
    results = run("interpreted.py", *group, interpret=True)
    assert [result for result in results if not result["ok"]] == []
    assert {(result["op"], result["dtype"]) for result in results} == {(op, dtype) for op in group for dtype in DTYPES}
    for op in group:
        told = {result["case"] for result in results if result["op"] == op and result["dtype"] == "float32"}
        assert told == set(range(len(small_cases(op))))


@pytest.mark.parametrize(("arch", "widths"), [(80, "one"), (87, "every"), (90, "one")])
def test_kernels_fit_devices_that_are_not_here(arch: int, widths: str):
    results = run("compiled.py", str(arch), widths, interpret=False)
    assert {result["op"] for result in results} == set(OPERATORS)
    assert [result for result in results if result["stack"]] == [], "registers are spilled"
    assert [result for result in results if result["shared"] > SHARED_MEMORY[arch]] == []
    assert [result for result in results if result["registers"] > 232] == []  # of 255


def test_the_engine_in_triton_gives_the_tokens_of_torch():
    """The whole path that a GPU takes, with stale memory poisoned: fused write, packed attention, shift, choice."""
    results = run("interpreted_engine.py", interpret=True)
    assert [result["shift"] for result in results] == ["rotate", "copy"]
    for result in results:
        assert result["found"] == result["expected"] and len(set(map(tuple, result["found"]))) > 1
