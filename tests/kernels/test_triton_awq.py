"""The kernel for weights of 4 bits without a GPU: its memory, its products, and what it loads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgeflow.kernels.awq import AWQ, AwqWeight
from edgeflow.kernels.linear import ByRows
from edgeflow.kernels.table.bind_linear import bind_linear
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow.kernels.triton import awq
from edgeflow.kernels.triton.awq import BFLOAT, CHUNK, HALF, MOST_ROWS, AwqChunks, AwqLinear, AWQParameters
from edgeflow.lab.trials.compare import TOLERANCE
from tests.kernels.awq_weights import random_weight
from tests.kernels.compiled_launches import launches
from tests.kernels.subprocesses import run


def naive(chunks: AwqChunks, output: int, e: int) -> tuple[int, float, int]:
    """Code, scale and zero point of one weight, as the layout is described."""
    within = e % CHUNK
    word = int(chunks.words[e // CHUNK, output, within % 32 // 2]) % (1 << 32)
    code = word >> 4 * (within // 32 + 4 * (e % 2)) & 15
    group = e // chunks.group
    return code, float(chunks.scales[group, output]), int(chunks.zeros[group, output // 2]) >> 4 * (output % 2) & 15


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(8, 128, 128), (16, 192, 64), (24, 160, 32)])
def test_chunks_hold_the_weight(outputs: int, inputs: int, group: int):
    weight = random_weight(outputs, inputs, group)
    chunks = AwqChunks.of(weight)
    places = [(output, e) for output in range(outputs) for e in range(inputs)]
    wanted = [
        (int(weight.q[n, e]), float(weight.scales[n, e // group]), int(weight.zeros[n, e // group])) for n, e in places
    ]
    assert chunks.shape == weight.shape and [naive(chunks, *place) for place in places] == wanted


@pytest.mark.parametrize("group", [32, 64, 128])
def test_zero_points_take_4_bits(group: int):
    weight = random_weight(64, 896, group)
    assert AwqChunks.of(weight).nbytes == 64 * 896 * (4 + 20 / group) / 8 == weight.nbytes - weight.zeros.numel() / 2


@pytest.mark.parametrize(("dtype", "constants"), [(torch.bfloat16, BFLOAT), (torch.float16, HALF)])
def test_differences_are_made_bit_by_bit(dtype: torch.dtype, constants: tuple[int, float]):
    """The interpreter has no bfloat16 of its own, so that it sees the constants of float16 alone."""
    bits, value = constants
    differences = torch.arange(-15, 16)
    found = (bits + differences).to(torch.int16).view(dtype) - value
    assert found.dtype == dtype and torch.equal(found.float(), differences.float())


def test_products_and_loads():
    """Were scales and zero points loaded output by output, each would take a sector: a share of 34.5 / 96 = 0.36.
    Weights rounded to float16, as the reference has them, give products that are off by 2e-4."""
    results = run("interpreted_awq.py", interpret=True)
    products, grids = ([each for each in results if (each["of"] == "products") is wanted] for wanted in (True, False))
    assert len(products) == 5 and all(each["repeats"] and each["off"] < TOLERANCE[torch.float32] for each in products)
    *grids, twice = grids
    assert len(grids) == 13 and all(each["share"] >= 0.95 and each["most"] == 1 for each in grids)
    assert [each["part"] for each in grids] == pytest.approx([each["expected"] for each in grids])
    assert (twice["share"], twice["most"]) == (0.5, 2), "rows beyond a tile load the weight again"


@pytest.mark.parametrize(
    ("rows", "outputs", "chunks", "tile"),
    [
        (1, 4096, 32, (16, 8, 4)),
        (16, 37888, 28, (16, 1, 4)),
        (7, 896, 7, (16, 1, 4)),
        (282, 4096, 32, (64, 2, 8)),
        (282, 22016, 32, (64, 1, 8)),
    ],
)
def test_splits_fill_a_device_of_132_multiprocessors(rows: int, outputs: int, chunks: int, tile: tuple[int, int, int]):
    found = AWQParameters().of_call(rows, outputs, chunks, 132)
    assert (found.block_m, found.splits, found.num_warps) == tile


def test_no_split_is_empty():
    for chunks in range(1, 40):
        for splits in range(1, 17):
            found = AWQParameters(splits=splits).of_call(1, 64, chunks, 132).splits
            part = -(-chunks // found)
            assert found <= splits and (found - 1) * part < chunks <= found * part


@pytest.mark.parametrize("multiprocessors", [16, 132])
@pytest.mark.parametrize(
    ("outputs", "inputs", "tuning"),
    [
        (896, 4864, {}),
        (22016, 4096, {}),
        (4096, 4096, {"block_m": 32}),
        (4096, 4096, {"splits": 40}),
        (512, 3584, {}),
        (64, 128, {}),
    ],
)
def test_binding_compiles_for_every_number_of_rows(
    outputs: int, inputs: int, tuning: dict[str, int], multiprocessors: int, monkeypatch: pytest.MonkeyPatch
):
    """Warm-up passes have few row counts; kernels for the others would be compiled while robots are served."""
    monkeypatch.setattr(awq, "multiprocessors", lambda _: multiprocessors)
    compiled = launches(monkeypatch)
    codes, groups = torch.empty(outputs, inputs // 2, dtype=torch.uint8, device="meta"), (outputs, inputs // 64)
    scales, zeros = (torch.empty(groups, dtype=each, device="meta") for each in (torch.float16, torch.uint8))
    weight, key = AwqWeight(codes, scales, zeros, torch.bfloat16), OperatorKey(op_name="linear", weight=AWQ)
    bound = bind_linear(anywhere(TableEntry(key, "triton", tuning)), OperatorKey(op_name="linear"), weight, None)
    ahead = set(compiled)
    assert 1 <= len({each for each in ahead if each[0] == "_multiply"}) <= 6
    for rows in range(1, MOST_ROWS + 1):
        bound["prefill"](torch.empty(rows, inputs, dtype=torch.bfloat16, device="meta"))
    assert compiled == ahead


def anywhere(*entries: TableEntry) -> OperatorTable:
    """A table in which the kernel may be prepared on a CPU."""
    return OperatorTable([replace(each, devices=frozenset(), dtypes=frozenset()) for each in BUILT_IN], entries)


def test_implementations_of_one_weight_share_its_memory():
    """An overlay has other parameters for one row; a second copy would double the memory."""
    weight, key = random_weight(64, 128, 64), OperatorKey(op_name="linear", weight=AWQ)
    few = TableEntry(replace(key, shape_sig="m=1", stage="decode"), "triton", {"splits": 4})
    bound = bind_linear(anywhere(TableEntry(key, "triton"), few), OperatorKey(op_name="linear"), weight, None)
    many, both = bound["prefill"], bound["decode"]
    assert isinstance(many, AwqLinear) and isinstance(both, ByRows)
    made = {id(each._chunks) for each in (many, *both._by_class)}
    assert len(made) == 1 and {each._tuning.splits for each in both._by_class} == {0, 4}
    assert sum(each.nbytes for each in {many, *both._by_class}) == AwqChunks.of(weight).nbytes


@pytest.mark.parametrize(
    ("dtype", "shape", "impl_id"),
    [
        (torch.bfloat16, "m=1|n=64|e=128", "triton"),
        (torch.float16, "m=512|n=64|e=128", "triton"),
        (torch.float32, "m=1|n=64|e=128", "dequantised"),
    ],
)
def test_it_serves_weights_of_4_bits_on_a_gpu(dtype: torch.dtype, shape: str, impl_id: str):
    key = OperatorKey(op_name="linear", weight=AWQ, shape_sig=shape)
    assert built_in_table().choose(key, Hardware("cuda", 87), dtype).implementation.impl_id == impl_id


def test_it_takes_no_other_weights():
    table, key = built_in_table(), OperatorKey(op_name="linear", shape_sig="m=1|n=64|e=128")
    for format in ("float", "int8", "fp8"):
        chosen = table.choose(replace(key, weight=format), Hardware("cuda", 90), torch.bfloat16)
        assert chosen.implementation.impl_id != "triton"
