"""FlashInfer without a GPU: our calls bind to its signatures, and what we plan means what we mean.

A double in plain torch stands for the library (flashinfer_double.py), once a version whose signatures are recorded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Heads
from edgeflow.lab.trials.catalogue import small_cases
from edgeflow.lab.trials.compare import tolerance
from edgeflow.lab.trials.visibility import window
from edgeflow_client.errors import ConfigError
from tests.kernels.deviation import deviation
from tests.kernels.flashinfer_double import flashinfer
from tests.kernels.flashinfer_signatures import USED, read, recorded

CPU = torch.device("cpu")
TABLE = built_in_table()
OURS = "edgeflow.kernels.flashinfer."
CANDIDATES = [
    (name, impl_id)
    for name in TABLE.operators
    for impl_id in TABLE.candidates(name)
    if impl_id.startswith("flashinfer")
]
ATTENTION = [impl_id for name, impl_id in CANDIDATES if name == "packed_attention"]


VERSIONS = list(recorded())


@pytest.fixture
def version():
    """Whose signatures hold, where a test does not go through all."""
    return VERSIONS[0]


@pytest.fixture
def library(version, monkeypatch):
    """A double in the place of the library, and with less room to work in."""
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer(version))
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.import_module(f"{OURS}attention"), "WORKSPACE_BYTES", 1 << 10)


def off_by(case, impl_id: str, dtype: torch.dtype, **params: int) -> float:
    candidate = partial(TABLE.implementation(case.op_name, impl_id).load(), **params)
    return deviation(case, candidate, TABLE.implementation(case.op_name, REFERENCE, case.kv).load(), CPU, dtype)


def fitting(op_name: str, impl_id: str) -> list:
    """Proofs of an operator that the candidate takes, by its sizes."""
    sizes = TABLE.implementation(op_name, impl_id)
    proofs = [case for case in small_cases(op_name, sizes.kv) if not sizes.size_objection(case.signed()[1])]
    return [case for case in proofs if case.causal or not sizes.causal]


@pytest.mark.parametrize(("impl_id", "in_a_graph"), [("flashinfer", True), ("flashinfer_mixed", False)])
def test_rows_that_are_not_causal_are_rejected_where_they_cannot_be_served(library, impl_id, in_a_graph):
    kv = KVSlots(layers=1, slots=1, capacity=16, kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=CPU)
    span = Span(0, 4, 3)
    layout = PackedLayout.of([span], CPU, visibility=[window(span, 2)])
    layout = replace(layout, places=None) if in_a_graph else layout
    with pytest.raises(ConfigError, match=f"packed_attention: {impl_id}.* serves only causal rows"):
        TABLE.implementation("packed_attention", impl_id).load()(layout, kv)


def test_kinds_of_layers_do_not_attend_by_the_plan_of_another(library):
    kv = KVSlots(layers=4, slots=2, capacity=16, kv_heads=2, head_dim=64, dtype=torch.bfloat16, device=CPU)
    kv.data.normal_()
    spans = [Span(0, 4, 3), Span(1, 9, 1)]
    layout = PackedLayout.of(spans, CPU).seen_by_kind({"local": [window(span, 2) for span in spans]})
    candidate, reference = (TABLE.implementation("packed_attention", name).load() for name in ("flashinfer", REFERENCE))
    attends = [(candidate(each, kv), reference(each, kv)) for each in (layout, layout.of_kind("local"))]
    for layer in range(4):
        q = torch.randn(4, 2, 64).bfloat16()
        attend, expected = attends[layer % 2]
        off = attend(q, kv.layer(layer)).float() - expected(q.float(), wide(kv.layer(layer)))
        assert off.norm(dim=-1).max() < 0.05


@pytest.mark.parametrize(("op_name", "impl_id"), CANDIDATES, ids=[" ".join(each) for each in CANDIDATES])
def test_a_candidate_equals_the_reference(library, op_name, impl_id):
    proofs = fitting(op_name, impl_id)
    assert len(proofs) >= 3
    for index, case in enumerate(proofs):
        dtype = (torch.bfloat16, torch.float16)[index % 2]
        assert off_by(case, impl_id, dtype) <= tolerance(case, dtype)


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize(("op_name", "impl_id"), CANDIDATES, ids=[" ".join(each) for each in CANDIDATES])
def test_calls_bind_to_the_signatures_of_other_versions(library, version, op_name, impl_id):
    for case in fitting(op_name, impl_id)[:3]:
        assert off_by(case, impl_id, torch.bfloat16) <= tolerance(case, torch.bfloat16)


@st.composite
def spans_of_a_pass(draw) -> list[Span]:
    """Distinct slots in any order, decode rows and longer spans, ends around every page."""
    slots = draw(st.permutations(range(4)))[: draw(st.integers(1, 4))]
    return [Span(slot, draw(st.integers(0, 34)), draw(st.sampled_from([1, 1, 2, 15, 16, 17, 33]))) for slot in slots]


@pytest.mark.parametrize("impl_id", ATTENTION)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(spans=spans_of_a_pass(), heads=st.sampled_from([Heads(2, 2, 64), Heads(7, 1, 64), Heads(6, 2, 64)]))
def test_attention_over_random_passes(library, impl_id, spans, heads):
    in_order = sorted(spans, key=lambda span: span.length == 1)
    for params, order in [({}, spans)] + [
        ({"apart": 1}, each) for each in (spans, in_order) if impl_id == "flashinfer"
    ]:
        case = cases.packed_attention(order, heads)
        assert off_by(case, impl_id, torch.bfloat16, **params) <= tolerance(case, torch.bfloat16)


@pytest.mark.parametrize("capacity", [1, 7, 16, 24, 40, 41])
def test_slots_become_pages_without_a_copy(library, capacity):
    pages_of = importlib.import_module(f"{OURS}attention")
    as_pages, page_size = pages_of.as_pages, pages_of.page_size
    store = KVSlots(layers=1, slots=3, capacity=capacity, kv_heads=1, head_dim=4, dtype=torch.float32, device=CPU)
    keys = store.layer(0).keys
    pages = as_pages(keys)
    assert pages.data_ptr() == keys.data_ptr() and capacity % page_size(capacity) == 0
    keys[2] = torch.arange(capacity)[:, None, None]
    table = pages_of.PageTable.of([Span(2, capacity - 1, 1)], capacity)
    assert pages[table.indices].flatten(0, 1)[: table.ends[0], 0, 0].tolist() == list(range(capacity))


def test_one_plan_serves_all_layers_and_the_store_keeps_its_wrappers(library):
    kv = KVSlots(layers=3, slots=2, capacity=32, kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=CPU)
    attention = TABLE.implementation("packed_attention", "flashinfer").load()
    for spans in ([Span(0, 0, 5), Span(1, 3, 1)], [Span(0, 5, 1), Span(1, 4, 1)], [Span(0, 6, 1), Span(1, 5, 1)]):
        attend = attention(PackedLayout.of(spans, CPU), kv)
        for layer in range(3):
            attend(torch.zeros(sum(span.length for span in spans), 1, 64, dtype=torch.bfloat16), kv.layer(layer))
    kept = kv.kept("flashinfer 1", lambda _: None)
    assert (kept._longer.plans, kept._single.plans) == (1, 2)


def test_the_table_of_rotations_is_made_once_per_pass(library, monkeypatch):
    rows_of = importlib.import_module(f"{OURS}rows")
    made: list[int] = []
    plain = rows_of._table
    monkeypatch.setattr(rows_of, "_table", lambda rows: made.append(1) or plain(rows))
    problem = cases.rope_write_kv([Span(0, 0, 5), Span(1, 3, 1)], Heads(2, 2, 64)).problem(CPU, torch.bfloat16)
    for _ in range(3):  # layers
        rows_of.rope_write_kv(*problem.arguments)
    assert len(made) == 1


@pytest.mark.parametrize(("lengths", "apart", "plans"), [((17, 1, 2), 0, 1), ((17, 1, 1), 1, 2), ((17, 1, 2), 1, 1)])
def test_one_plan_serves_all_passes_of_a_graph(library, lengths, apart, plans):
    """Slots and positions change on the device, under the same layout; the host is asked nothing."""
    heads = Heads(7, 1, 64)
    kv = KVSlots(
        layers=2, slots=4, capacity=41, kv_heads=heads.kv, head_dim=heads.width, dtype=torch.bfloat16, device=CPU
    )
    kv.data.normal_()
    plain = placed(lengths, [(0, 0), (1, 0), (2, 0)])
    layout = replace(plain, places=None, sampled_rows=plain.sampled_rows - torch.tensor([5, 0, 0]))  # 5 rows only pad
    candidate, reference = (TABLE.implementation("packed_attention", name).load() for name in ("flashinfer", REFERENCE))
    for places in ([(0, 0), (1, 0), (2, 0)], [(3, 9), (2, 40), (0, 39)], [(1, 24), (0, 31), (2, 1)]):
        now = placed(lengths, places)
        layout.row_slot.copy_(now.row_slot)
        layout.row_position.copy_(now.row_position)
        q = torch.randn(sum(lengths), heads.query, heads.width).bfloat16()
        attend, expected = candidate(layout, kv, apart=apart), reference(now, kv)
        for layer in range(2):
            off = attend(q, kv.layer(layer)).float() - expected(q.float(), wide(kv.layer(layer)))
            assert off.norm(dim=-1).max() < 0.05
    assert plans_in(layout._kept) == [1] * plans


def wide(layer: DenseLayer) -> DenseLayer:
    return DenseLayer(layer.keys.float(), layer.values.float())


def plans_in(kept: dict) -> list[int]:
    """How often each cached wrapper was planned, those of parts included."""
    plans: list[int] = []
    for each in kept.values():
        plans += (
            plans_in(each) if isinstance(each, dict) else [each._wrapper.plans] if hasattr(each, "_wrapper") else []
        )
    return plans


def anew(layout: PackedLayout) -> PackedLayout:
    """The layout with index tensors gathered by this call, over shared cached values."""
    gathered = {name: getattr(layout, name).clone() for name in ("row_slot", "row_position", "sampled_rows")}
    return replace(layout, **gathered).sharing(layout, "anew")


@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("gather", [PackedLayout.of_sampled_rows, anew])
def test_a_layout_gathered_per_call_is_read_at_its_current_address(library, gather, apart):
    """A graph's warm-up fills the cache with one layout; the capture, with another, must not read the first."""
    lengths, heads = (17, 1, 1), Heads(7, 1, 64)
    kv = KVSlots(
        layers=1, slots=4, capacity=41, kv_heads=heads.kv, head_dim=heads.width, dtype=torch.bfloat16, device=CPU
    )
    kv.data.normal_()
    layout = replace(placed(lengths, [(0, 0), (1, 0), (2, 0)]), places=None)
    candidate, reference = (TABLE.implementation("packed_attention", name).load() for name in ("flashinfer", REFERENCE))
    for places in ([(0, 0), (1, 0), (2, 0)], [(3, 9), (2, 40), (0, 39)]):
        now = placed(lengths, places)
        layout.row_slot.copy_(now.row_slot)
        layout.row_position.copy_(now.row_position)
        given, expected = gather(layout), gather(now)
        q = torch.randn(len(given.row_slot), heads.query, heads.width).bfloat16()
        wanted = reference(expected, kv)(q.float(), wide(kv.layer(0)))
        found = candidate(given, kv, apart=apart)(q, kv.layer(0))
        assert (found.float() - wanted).norm(dim=-1).max() < 0.05


def placed(lengths, places) -> PackedLayout:
    return PackedLayout.of([Span(*place, length) for place, length in zip(places, lengths, strict=True)], CPU)


def test_operators_that_wait_for_the_device_are_not_captured(library):
    kv = KVSlots(layers=1, slots=1, capacity=8, kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=CPU)
    attention = TABLE.implementation("packed_attention", "flashinfer_mixed").load()
    with pytest.raises(ConfigError, match="a graph cannot hold it"):
        attention(replace(placed([1], [(0, 0)]), places=None), kv)


def test_without_tensor_cores_the_decode_wrapper_takes_only_some_groups(library):
    attention = partial(TABLE.implementation("packed_attention", "flashinfer").load(), tensor_cores=0)
    for query, taken in ((6, True), (7, False)):
        kv = KVSlots(layers=1, slots=1, capacity=16, kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=CPU)
        attend = attention(placed([1], [(0, 3)]), kv)
        with contextlib.nullcontext() if taken else pytest.raises(AssertionError):
            attend(torch.zeros(1, query, 64, dtype=torch.bfloat16), kv.layer(0))


@pytest.mark.parametrize("impl_id", ATTENTION)
def test_heads_of_another_width_are_reported(library, impl_id):
    kv = KVSlots(layers=1, slots=1, capacity=8, kv_heads=1, head_dim=80, dtype=torch.bfloat16, device=CPU)
    attend = TABLE.implementation("packed_attention", impl_id).load()(PackedLayout.of([Span(0, 0, 1)], CPU), kv)
    with pytest.raises(ConfigError, match="heads of 64, 128 or 256 numbers, not 80"):
        attend(torch.zeros(1, 1, 80, dtype=torch.bfloat16), kv.layer(0))


@pytest.mark.parametrize("wrong", ["pages", "last", "indices", "rows"])
def test_the_double_notices_a_wrong_page_table(library, monkeypatch, wrong):
    table_of = importlib.import_module(f"{OURS}attention").PageTable
    right = table_of.of

    def bent(spans, capacity):
        table = right(spans, capacity)
        values = getattr(table, wrong)
        values[-1 if wrong == "indices" else 1 if wrong in ("pages", "rows") else 0] += -1 if wrong == "last" else 1
        return table

    monkeypatch.setattr(table_of, "of", bent)
    case = cases.packed_attention([Span(0, 0, 20), Span(1, 18, 4)], Heads(2, 1, 64))
    try:
        found = off_by(case, "flashinfer", torch.bfloat16)
    except (AssertionError, RuntimeError, IndexError):
        return
    assert found > 10 * tolerance(case, torch.bfloat16)


def test_the_recorded_signatures_are_those_installed():
    found = importlib.util.find_spec("flashinfer")
    if found is None:
        pytest.skip("flashinfer is not installed: its signatures are as recorded")
    from importlib.metadata import version

    installed = version("flashinfer-python")
    if installed not in recorded():
        pytest.skip(f"run scripts/flashinfer-signatures {' '.join(recorded())} {installed}")
    assert read(Path(found.submodule_search_locations[0])) == recorded()[installed]


def test_every_function_used_is_recorded():
    names = {
        f"{name}.{method}" if methods else name for name, (_, methods) in USED.items() for method in methods or [""]
    }
    assert all(set(told) == names for told in recorded().values())
