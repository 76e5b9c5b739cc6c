"""The operator table: the most specific entry that may run wins, and something always serves."""

from __future__ import annotations

import pytest
import torch

from edgeflow.errors import ConfigError
from edgeflow.kernels.table import Entry, Implementation, OperatorKey, OperatorTable, built_in_table

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def named(name: str, **constraints) -> Implementation:
    return Implementation("op", name, lambda: name, **constraints)


@pytest.fixture
def table() -> OperatorTable:
    implementations = [
        named("reference"),
        named("plain"),
        named("gpu", devices=frozenset({"cuda"})),
        named("half", dtypes=frozenset({torch.bfloat16})),
    ]
    return OperatorTable(implementations, [Entry(OperatorKey("op"), "plain")])


def serving(table: OperatorTable, context: OperatorKey, device=CPU, dtype=torch.float32) -> str:
    return table.resolve(context, device, dtype)()


def test_the_default_serves_any_context(table):
    assert serving(table, OperatorKey("op", model_name="llama", stage="decode", shape_sig="m=1")) == "plain"


def test_a_more_specific_entry_wins_wherever_it_stands(table):
    specific = Entry(OperatorKey("op", model_name="llama", stage="decode"), "reference")
    table = OperatorTable([named("reference"), named("plain")], [specific, Entry(OperatorKey("op"), "plain")])
    assert serving(table, OperatorKey("op", model_name="llama", stage="decode")) == "reference"
    assert serving(table, OperatorKey("op", model_name="llama", stage="prefill")) == "plain"
    assert serving(table, OperatorKey("op", model_name="llama")) == "plain"


def test_an_overlay_wins_over_an_equal_entry_and_leaves_the_table(table):
    changed = table.overlaid(Entry(OperatorKey("op"), "reference"))
    assert (serving(changed, OperatorKey("op")), serving(table, OperatorKey("op"))) == ("reference", "plain")


def test_hardware_is_the_device_unless_named(table):
    changed = table.overlaid(Entry(OperatorKey("op", hw_profile="cuda"), "gpu"))
    assert serving(changed, OperatorKey("op"), CUDA) == "gpu"
    assert serving(changed, OperatorKey("op"), CPU) == "plain"
    assert serving(changed, OperatorKey("op", hw_profile="cuda_sm87"), CUDA) == "plain"


def test_a_candidate_that_cannot_run_is_passed_over(table):
    changed = table.overlaid(Entry(OperatorKey("op", model_name="llama"), "half"))
    assert serving(changed, OperatorKey("op", model_name="llama"), dtype=torch.bfloat16) == "half"
    assert serving(changed, OperatorKey("op", model_name="llama")) == "plain"


def test_the_reference_serves_where_no_entry_does(table):
    assert serving(table.forcing(op="gpu"), OperatorKey("op")) == "reference"


def test_forcing_beats_specific_entries(table):
    changed = table.overlaid(Entry(OperatorKey("op", model_name="llama"), "reference")).forcing(op="plain")
    assert serving(changed, OperatorKey("op", model_name="llama")) == "plain"


def test_unknown_names_are_told(table):
    with pytest.raises(ConfigError, match="no implementation 'fast'; known: reference, plain, gpu, half"):
        table.overlaid(Entry(OperatorKey("op"), "fast"))
    with pytest.raises(ConfigError, match="no operator of this name"):
        table.forcing(other="plain")


def test_every_built_in_operator_has_a_reference_and_a_default():
    table = built_in_table()
    for name in ("rms_norm", "rope_write_kv", "packed_attention", "swiglu", "shift_kv"):
        assert len(table.candidates(name)) >= 2
        reference = table.implementation(name, "reference").function
        assert table.resolve(OperatorKey(name), CPU, torch.float32) is not reference
