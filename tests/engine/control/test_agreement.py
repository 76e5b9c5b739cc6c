"""Checks of a pipeline that rounds: they pass whatever rounding does and fail for every fault of a pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from time import monotonic
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.engine import staging
from edgeflow.engine import tokens as tokens_contract
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.warmup import warm_up
from edgeflow.kernels import packed_attention
from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.implementations import Implementation
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.lab.gpu.section_order import Order
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting
from edgeflow.lab.gpu.sections.token_checks import compared, tokens
from edgeflow.lab.gpu.subjects.random_policy import SIZES, PolicySize, RandomTower, random_policy
from edgeflow.models.llama import LlamaConfig
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import WorkerError
from tests.cases import by_night

CPU = torch.device("cpu")
TEXT = LlamaConfig(
    hidden_size=128,
    intermediate_size=344,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=1024,
)
MEDIUM = PolicySize(
    name="medium",
    text=TEXT,
    towers=(
        RandomTower(width=32, inner=64, depth=3, heads=2, prefix=5, scaled=True),
        RandomTower(width=32, inner=64, depth=3, heads=2),
    ),
    side=56,
    patch=14,
)
SHAPES = {"tiny": SIZES["tiny"], "medium": MEDIUM}
IN_GROUPS = replace(MEDIUM, name="in groups", text=replace(TEXT, intermediate_size=352))  # of 32 weights each
FAULTS = ("position", "slot", "key", "nan")
OTHER_SUMS = 1 + 4e-6  # a float32 sum in another order, on a processor where passes of different shapes differ much


def decode_rows(layout: PackedLayout) -> list[int]:
    """Decode rows of packed passes; serial passes, which hold one span, stay right."""
    if len(layout.lengths) == 1:
        return []
    firsts = list(accumulate(layout.lengths, initial=0))
    return [row for first, end in pairwise(firsts) for row in range(first, end) if int(layout.row_position[first]) > 0]


class Faulty:
    """Attention with a fault in the decode rows of packed passes; without one, packed passes only sum and round
    otherwise."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, layout: PackedLayout, kv: KVSlots) -> Any:
        rows = decode_rows(layout)
        slot, position = layout.row_slot.clone(), layout.row_position.clone()
        if self.fault == "slot":
            slot[rows] = (slot[rows] + 1) % 7
        if self.fault == "position":
            position[rows] -= 1
        attend = packed_attention.masked(replace(layout, row_slot=slot, row_position=position), kv)
        if self.fault == "key":
            attend = all_but_one(layout, rows)
        if not self.fault and len(layout.lengths) > 1:

            def other(q: Tensor, layer: DenseLayer) -> Tensor:
                exact = attend(q.float(), DenseLayer(layer.keys.float(), layer.values.float()))
                return (exact * OTHER_SUMS).to(q.dtype)

            return other
        if self.fault != "nan":
            return attend

        def poisoned(q: Tensor, layer: DenseLayer) -> Tensor:
            out = attend(q, layer)
            out[rows] = torch.nan
            return out

        return poisoned

    def table(self) -> OperatorTable:
        other = Implementation(op_name="packed_attention", impl_id="faulty", function=self)
        return built_in_table(other).forcing(packed_attention="faulty")


def all_but_one(layout: PackedLayout, rows: list[int]) -> Any:
    """Rows see all keys before them but the one at position 5."""
    seen = torch.arange(layout.reach) <= layout.row_position[:, None]
    seen[rows, 5] = False

    def attend(q: Tensor, layer: DenseLayer) -> Tensor:
        read = layer.read(layout.row_slot, slice(layout.reach), layout.row_position)
        k, v = (each.masked_fill(~seen[..., None, None], 0).transpose(1, 2) for each in read)
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=seen[:, None, None]).reshape(q.shape)

    return attend


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def warmed(size: PolicySize, dtype: torch.dtype, fault: str = "", *, group: int = 0, rounds: bool = False) -> None:
    table = Faulty(fault).table()
    policy = random_policy(size, CPU, dtype, table=table, group=group)
    served = PolicyEngine(policy, policy.K, size.rows + policy.K, table=table)
    warm_up(served, Shift.ROTATE, lambda *_: None, rounds=rounds)
    assert not served.keep_logits, "the service does not copy logits"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_healthy_model_starts(name: str, dtype: torch.dtype):
    warmed(SHAPES[name], dtype)


def test_weights_of_four_bits_start_whatever_their_sums_are(monkeypatch: pytest.MonkeyPatch):
    """Rows are rounded to 8 bits before each product, in float32 too: most ways to sum give other tokens somewhere."""
    for last_bits in range(1, 13):
        monkeypatch.setattr(f"{__name__}.OTHER_SUMS", 1 + last_bits * 1e-6)
        try:
            warmed(IN_GROUPS, torch.float32, group=32)
        except WorkerError as error:
            assert "gave other tokens when" in str(error)
            break
    else:
        pytest.fail("all sums give the same tokens")
    warmed(IN_GROUPS, torch.float32, group=32, rounds=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_of_four_bits_at_fault_do_not_start(fault: str):
    with pytest.raises(WorkerError, match="not finite" if fault == "nan" else "off, at most .* rounding accounts for"):
        warmed(IN_GROUPS, torch.float32, fault, group=32, rounds=True)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_pipeline_at_fault_does_not_start(name: str, fault: str):
    with pytest.raises(WorkerError, match="not finite" if fault == "nan" else "off, at most .* rounding accounts for"):
        warmed(SHAPES[name], torch.bfloat16, fault)


def setting(size: PolicySize, table: OperatorTable, monkeypatch, tmp_path) -> SectionSetting:
    monkeypatch.setattr(SectionSetting, "table", lambda *_: table)
    order = Order(section="", device="cpu", size="tiny", frames=10, ends=monotonic() + 600, out=str(tmp_path))
    made = SectionSetting.of(order, lambda _: None)
    return replace(made, size=size, dtype=torch.bfloat16)


def test_the_suite_passes_a_healthy_machine_in_16_bits(monkeypatch, tmp_path):
    rows = tokens(setting(MEDIUM, Faulty("").table(), monkeypatch, tmp_path))["tokens that differ"]
    assert {row["fault"] for row in rows} == {""}
    for row in rows:
        if row["policy"].endswith("bfloat16"):
            assert 0.001 < row["by rounding"] < 0.05
            assert row["logits off"] > row["by rounding"] / 5, "these passes do round otherwise"


@pytest.mark.parametrize("fault", [by_night("position"), "slot", by_night("key"), "nan"])
def test_the_warm_up_finds_a_fault_in_16_bits(fault: str, monkeypatch, tmp_path):
    rows = compared(setting(MEDIUM, Faulty(fault).table(), monkeypatch, tmp_path), 2)
    assert all(row["fault"] for row in rows)


def test_the_suite_ends_with_an_error_when_a_row_is_at_fault(monkeypatch, tmp_path):
    with pytest.raises(OffError, match="tokens differ"):
        tokens(setting(SIZES["tiny"], Faulty("slot").table(), monkeypatch, tmp_path))


def test_a_wrong_row_is_a_fault(monkeypatch, tmp_path):
    """Packed passes sample a frame's first token from the row before the last one of its prefill."""

    def wrong(planned, prompts, shape, contract, **options):
        numbers, *pixels = staging.stage(planned, prompts, shape, contract, **options)
        if shape.prefills and shape.decodes:
            inputs = staging.PassInputs.over(torch.cat([numbers, *pixels]), shape, contract)
            numbers.view(torch.long)[inputs.layout.sampled_rows.storage_offset()] -= 1
        return [numbers, *pixels]

    monkeypatch.setattr(tokens_contract, "stage", wrong)
    rows = compared(setting(MEDIUM, Faulty("").table(), monkeypatch, tmp_path), 2)
    assert all("first tokens" in row["fault"] for row in rows)
