"""The operator table: the most specific entry that may run wins, and something always serves."""

from __future__ import annotations

import pytest
import torch

from edgeflow.kernels.kv.formats import CONFIGURED, LATENT
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.dimensions import KINDS, KV_FORMATS, kv_formats
from edgeflow.kernels.table.implementations import Hardware, Implementation
from edgeflow.kernels.table.operator_table import Choice, OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow_client.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def named(name: str, **constraints) -> Implementation:
    return Implementation(op_name="op", impl_id=name, function=lambda: name, **constraints)


@pytest.fixture
def table() -> OperatorTable:
    implementations = [
        named("reference"),
        named("plain"),
        named("gpu", devices=frozenset({"cuda"})),
        named("half", dtypes=frozenset({torch.bfloat16})),
    ]
    return OperatorTable(implementations, [TableEntry(OperatorKey(op_name="op"), "plain")])


def serving(table: OperatorTable, context: OperatorKey, device=CPU, dtype=torch.float32) -> str:
    return table.resolve(context, device, dtype)()


def test_the_default_serves_any_context(table):
    assert serving(table, OperatorKey(op_name="op", model_name="llama", stage="decode", shape_sig="m=1")) == "plain"


def test_a_more_specific_entry_wins_wherever_it_stands(table):
    specific = TableEntry(OperatorKey(op_name="op", model_name="llama", stage="decode"), "reference")
    table = OperatorTable(
        [named("reference"), named("plain")], [specific, TableEntry(OperatorKey(op_name="op"), "plain")]
    )
    assert serving(table, OperatorKey(op_name="op", model_name="llama", stage="decode")) == "reference"
    assert serving(table, OperatorKey(op_name="op", model_name="llama", stage="prefill")) == "plain"
    assert serving(table, OperatorKey(op_name="op", model_name="llama")) == "plain"


def test_an_overlay_wins_over_an_equal_entry_and_leaves_the_table(table):
    changed = table.overlaid(TableEntry(OperatorKey(op_name="op"), "reference"))
    assert (serving(changed, OperatorKey(op_name="op")), serving(table, OperatorKey(op_name="op"))) == (
        "reference",
        "plain",
    )


def test_hardware_is_the_device_unless_named(table):
    changed = table.overlaid(TableEntry(OperatorKey(op_name="op", hw_profile="cuda"), "gpu"))
    assert serving(changed, OperatorKey(op_name="op"), CUDA) == "gpu"
    assert serving(changed, OperatorKey(op_name="op"), CPU) == "plain"
    assert serving(changed, OperatorKey(op_name="op", hw_profile="cuda_sm87"), CUDA) == "gpu"
    assert serving(changed, OperatorKey(op_name="op", hw_profile="cudax"), CUDA) == "plain"


def test_a_candidate_that_cannot_run_is_passed_over(table):
    changed = table.overlaid(TableEntry(OperatorKey(op_name="op", model_name="llama"), "half"))
    assert serving(changed, OperatorKey(op_name="op", model_name="llama"), dtype=torch.bfloat16) == "half"
    assert serving(changed, OperatorKey(op_name="op", model_name="llama")) == "plain"


def test_the_reference_serves_where_no_entry_does(table):
    assert serving(table.forcing(op="gpu"), OperatorKey(op_name="op")) == "reference"


def test_forcing_beats_specific_entries(table):
    changed = table.overlaid(TableEntry(OperatorKey(op_name="op", model_name="llama"), "reference")).forcing(op="plain")
    assert serving(changed, OperatorKey(op_name="op", model_name="llama")) == "plain"


def test_unknown_names_are_reported(table):
    with pytest.raises(ConfigError, match="no implementation 'fast'; known: reference, plain, gpu, half"):
        table.overlaid(TableEntry(OperatorKey(op_name="op"), "fast"))
    with pytest.raises(ConfigError, match="no operator of this name"):
        table.forcing(other="plain")


def test_an_architecture_wins_over_a_kind_of_device(table):
    entries = [TableEntry(OperatorKey(op_name="op", hw_profile=profile), name) for profile, name in
               (("cuda_sm87", "gpu"), ("cuda", "half"))]  # fmt: skip
    changed = table.overlaid(*entries)
    assert serving(changed, OperatorKey(op_name="op", hw_profile="cuda_sm87"), CUDA, torch.bfloat16) == "gpu"
    assert serving(changed, OperatorKey(op_name="op", hw_profile="cuda_sm90"), CUDA, torch.bfloat16) == "half"


def test_an_entry_without_an_operator_serves_all_of_a_kind():
    table = built_in_table().overlaid(TableEntry(OperatorKey(op_name="", op_kind="norm"), "reference"))
    chosen = table.choose(OperatorKey(op_name="rms_norm"), Hardware("cpu"), torch.float32)
    assert (chosen.implementation.impl_id, chosen.reason) == ("reference", "built in: op_kind=norm")
    assert table.choose(OperatorKey(op_name="swiglu"), Hardware("cpu"), torch.float32).implementation.impl_id == "fused"


def test_parameters_reach_the_implementation(table):
    implementations = [
        Implementation(op_name="op", impl_id="reference", function=lambda size=1: size, choices={"size": (1, 2)})
    ]
    tuned = OperatorTable(implementations, [TableEntry(OperatorKey(op_name="op"), "reference", {"size": 2})])
    assert serving(tuned, OperatorKey(op_name="op")) == 2
    with pytest.raises(ConfigError, match="reference has no parameter color"):
        OperatorTable(implementations, [TableEntry(OperatorKey(op_name="op"), "reference", {"color": 2})])


def test_entries_for_shapes_are_looked_up_when_a_shape_is_first_seen():
    calls: list[str] = []
    implementations = [
        Implementation(op_name="swiglu", impl_id=name, function=lambda x, name=name: calls.append(name))
        for name in ("reference", "small")
    ]
    table = OperatorTable(implementations, [TableEntry(OperatorKey(op_name="swiglu", shape_sig="m=4|f=8"), "small")])
    function = table.resolve(OperatorKey(op_name="swiglu"), CPU, torch.float32)
    for rows in (3, 4, 5, 3):
        function(torch.empty(rows, 16))
    assert calls == ["small", "small", "reference", "small"]


def test_entries_for_stages_follow_the_spans():
    table = built_in_table().overlaid(TableEntry(OperatorKey(op_name="packed_attention", stage="decode"), "reference"))
    function = table.resolve(OperatorKey(op_name="packed_attention"), CPU, torch.float32)
    kv = KVSlots(layers=1, slots=2, capacity=4, kv_heads=1, head_dim=8, dtype=torch.float32, device=CPU)
    names = [
        function(PackedLayout.of(spans, CPU), kv).__qualname__.split(".")[0]
        for spans in ([Span(0, 2, 1)], [Span(0, 0, 3), Span(1, 3, 1)])
    ]
    assert names == ["reference", "slots_in_place"]


def test_an_entry_may_name_some_sizes_and_the_one_that_names_more_wins():
    implementations = [
        Implementation(op_name="swiglu", impl_id=name, function=lambda x: None)
        for name in ("reference", "wide", "small")
    ]
    entries = [
        TableEntry(OperatorKey(op_name="swiglu", shape_sig=text), name)
        for text, name in (("m=4|f=8", "small"), ("f=8", "wide"))
    ]
    table = OperatorTable(implementations, entries)
    chosen = [
        table.choose(
            OperatorKey(op_name="swiglu", shape_sig=text), Hardware("cpu"), torch.float32
        ).implementation.impl_id
        for text in ("m=4|f=8", "m=8|f=8", "m=8|f=9")
    ]
    assert chosen == ["small", "wide", "reference"]


def test_the_only_role_of_an_operator_need_not_be_named():
    table = built_in_table().overlaid(TableEntry(OperatorKey(op_name="swiglu", layer_role="mlp"), "reference"))
    assert (
        table.choose(OperatorKey(op_name="swiglu"), Hardware("cpu"), torch.float32).implementation.impl_id
        == "reference"
    )


def test_a_choice_says_what_was_passed_over():
    chosen = built_in_table().choose(OperatorKey(op_name="rms_norm"), Hardware("cuda", 75), torch.bfloat16)
    assert chosen.implementation.impl_id == "fused"
    assert chosen.passed_over == ("triton: needs sm_80",)


@pytest.mark.parametrize(
    ("hardware", "dtype", "shape", "objection"),
    [
        (Hardware("cpu"), torch.float32, "", "not for cpu"),
        (Hardware("cuda", 75), torch.float32, "", "needs sm_80"),
        (Hardware("cuda", 87), torch.float32, "", "not for float32"),
        (Hardware("cuda", 87), torch.bfloat16, "m=1|d=512", "d over 256"),
        (Hardware("cuda", 87), torch.bfloat16, "m=1|d=256", ""),
        (Hardware("cuda"), torch.bfloat16, "", ""),
    ],
)
def test_constraints(hardware, dtype, shape, objection):
    pytest.importorskip("triton")
    candidate = built_in_table().implementation("varlen_attention", "triton")
    assert candidate.objection(hardware, dtype, shape) == objection


def test_a_library_that_is_missing_is_reported():
    candidate = Implementation(op_name="op", impl_id="fast", function="nowhere:fast", needs=("no_such_library",))
    assert candidate.objection(Hardware("cpu"), torch.float32) == "no_such_library is not installed"


@pytest.mark.parametrize("profile", ["tpu", "cpu_sm80", "cuda_smx", "cuda87"])
def test_hardware_that_is_not_known_is_rejected(profile):
    with pytest.raises(ConfigError, match="hardware profile"):
        Hardware.named(profile)


def test_hardware_has_a_name():
    assert [Hardware.named(name).profile for name in ("cpu", "cuda", "cuda_sm87")] == ["cpu", "cuda", "cuda_sm87"]
    assert Hardware.of(CPU) == Hardware("cpu")


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_every_built_in_operator_has_a_reference_and_a_default(device):
    table = built_in_table()
    assert set(table.operators) == set(KINDS)
    for name, kv in [(each, kv) for each in table.operators for kv in kv_formats(each)]:
        assert "reference" in table.candidates(name, kv)
        chosen = table.choose(OperatorKey(op_name=name, kv=kv), Hardware(device.type), torch.bfloat16).implementation
        assert chosen.impl_id != "reference" and chosen.takes(kv)


def test_formats_are_known_by_the_names_that_lookups_use():
    assert {each.name for each in (*CONFIGURED.values(), LATENT)} == set(KV_FORMATS)


def over_kv(kv: str, hardware: str = "cpu", *entries: TableEntry) -> Choice:
    table = built_in_table().overlaid(*entries)
    return table.choose(OperatorKey(op_name="packed_attention", kv=kv), Hardware.named(hardware), torch.bfloat16)


def test_each_kv_format_has_its_own_implementations():
    assert [over_kv(kv).implementation.impl_id for kv in ("", "dense", "int8")] == [
        "slots_in_place",
        "slots_in_place",
        "widened",
    ]
    dense, eight = (over_kv(kv, "cuda_sm90").implementation for kv in ("dense", "int8"))
    assert (dense.impl_id, eight.impl_id) == ("triton", "triton") and dense.function != eight.function
    for_all = TableEntry(OperatorKey(op_name="packed_attention"), "masked")
    for_one = TableEntry(OperatorKey(op_name="packed_attention", kv="int8"), "naive_gather")
    chosen = [over_kv(kv, "cpu", for_one, for_all).implementation.impl_id for kv in ("dense", "int8")]
    assert chosen == ["masked", "naive_gather"]


@pytest.mark.parametrize("hardware", ["cpu", "cuda_sm90"])
def test_latent_slots_are_read_in_place_everywhere(hardware: str):
    """They are wider than the tiles of kernels, so none is an implementation."""
    assert over_kv("latent", hardware).implementation.impl_id == "slots_in_place"
    write = OperatorKey(op_name="rope_write_kv", kv="latent")
    chosen = built_in_table().choose(write, Hardware.named(hardware), torch.bfloat16)
    assert chosen.implementation.impl_id == "indexed"
    with pytest.raises(ConfigError, match="no implementation 'triton' for latent KV; known: reference"):
        built_in_table().overlaid(TableEntry(OperatorKey(op_name="packed_attention", kv="latent"), "triton"))


@pytest.mark.parametrize("kv", ["dense", "int8", "fp8", "int4"])
def test_on_a_gpu_passes_over_a_format_can_be_replayed(kv: str):
    table, hardware = built_in_table(), Hardware.named("cuda_sm90")
    assert not table.reads_places("llama", kv, hardware, torch.bfloat16)
    write = table.choose(OperatorKey(op_name="rope_write_kv", kv=kv), hardware, torch.bfloat16).implementation
    assert write.replayable and write.impl_id == ("on_device" if kv == "int4" else "triton")


def test_an_implementation_that_a_format_lacks_does_not_serve_it():
    everywhere = TableEntry(OperatorKey(op_name="packed_attention"), "flashinfer", {"apart": 1})
    assert over_kv("int8", "cpu", everywhere).implementation.impl_id == "widened"
    with pytest.raises(ConfigError, match="no implementation 'flashinfer' for int8 KV; known: reference"):
        built_in_table().overlaid(TableEntry(OperatorKey(op_name="packed_attention", kv="int8"), "flashinfer"))
