"""Triton kernels without a GPU: an interpreter runs them against their references, a compiler fits them to devices."""

from __future__ import annotations

from itertools import product

import pytest

from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.trials.catalogue import small_cases
from tests.kernels.subprocesses import run

DTYPES = ("float32", "float16", "bfloat16")
OPERATORS = [name for name in built_in_table().operators if "triton" in built_in_table().candidates(name)]
SHARED_MEMORY = {80: 163 * 1024, 87: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}  # bytes a block may have
EXPECTED = {80: {*OPERATORS}, 87: {*OPERATORS}, 89: {"linear"}, 90: {*OPERATORS}}
"""The operators that are compiled for an architecture. On sm_89 only FP8 kernels of `linear` are: no other needs it."""

pytestmark = pytest.mark.timeout(600)


def test_kernels_equal_their_references():
    results = run("interpreted.py", *OPERATORS, interpret=True)
    assert [result for result in results if not result["ok"]] == []
    assert {(result["op"], result["dtype"]) for result in results} == set(product(OPERATORS, DTYPES))
    for op in OPERATORS:
        told = {result["case"] for result in results if result["op"] == op and result["dtype"] == "float32"}
        posed = small_cases(op, weight=AWQ if op == "linear" else FLOAT)
        served = [case.kv for case in posed if "triton" in built_in_table().candidates(op, case.kv)]
        assert {served[index] for index in told} == set(served)
        assert told >= {index for index, kv in enumerate(served) if kv in ("", "dense")}


def test_kernels_fit_devices_that_are_not_here():
    results = run("compiled.py", interpret=False)
    assert {result["arch"] for result in results} == {87, 89, 90}
    assert_fitting(results)


def assert_fitting(results: list[dict]) -> None:
    for arch in {result["arch"] for result in results}:
        there = [result for result in results if result["arch"] == arch]
        assert {result["op"] for result in there} == EXPECTED[arch]
        assert [result for result in there if result["stack"]] == [], "registers are spilled"
        assert [result for result in there if result["shared"] > SHARED_MEMORY[arch]] == []
        assert [result for result in there if result["registers"] > 232 and not result["trees"]] == []  # of 255
        products = [result["wide_loads"] for result in there if result["kernel"] == "_multiply"]
        assert all(products), "codes are not loaded 16 bytes at a time"
        carries = {result["hash"] for result in there if result["kernel"] == "_carry"}
        assert len(carries) <= 1, "one move and two are two kernels: one is compiled within a pass"
        attention = [each for each in there if each["op"] == "packed_attention" and each["kernel"] == "_attend"]
        attention = [each for each in attention if each["kv"] == "dense" and each["causal"]]
        if attention:
            assert max(map(blocks_by_registers, attention)) >= 4, "a launch of decode rows alone is sized for prefills"


def blocks_by_registers(result: dict) -> int:
    """How many blocks the 65536 registers of a multiprocessor hold."""
    return 65536 // (32 * result["warps"] * result["registers"])


def test_the_engine_in_triton_gives_the_tokens_of_torch():
    """The whole path that a GPU takes, with stale memory poisoned: fused write, packed attention, shift, choice,
    projections of 4 bits."""
    results = run("interpreted_engine.py", interpret=True)
    assert [result["way"] for result in results] == ["rotate", "copy", "rotate, 4 bits"]
    for result in results:
        assert result["found"] == result["expected"] and len(set(map(tuple, result["found"]))) > 1


def test_a_flow_policy_in_triton_gives_the_chunks_of_torch():
    """Rows that see ranges, in layers of both kinds, several candidates and frames in a pass."""
    (result,) = run("interpreted_flow.py", interpret=True)
    assert result["off"] < 1e-5


def test_a_decoder_with_latent_slots_in_triton_gives_the_logits_of_torch():
    """Norms of a part of a projection's rows, and a move of slots that hold each position once."""
    (result,) = run("interpreted_latent.py", interpret=True)
    assert result["off"] < 1e-5 and result["spread"] > 0.1


def test_slots_of_four_bits_in_triton_hold_what_rows_see():
    """Pass after pass, where one pass is replayed at other places, and where slots move."""
    *replayed, moved = run("interpreted_int4.py", interpret=True)
    assert len(replayed) == 3 and all(result["off"] < 2e-6 for result in replayed)
    assert moved == {"same": [True] * 5, "moved": [True] * 4 + [False]}, "the exact keys are of one pass"
