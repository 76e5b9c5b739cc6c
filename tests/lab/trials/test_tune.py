"""The tuner keeps what is right and faster, and says why it took nothing else; regression checks complain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from edgeflow.kernels import linear
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.row_operators import swiglu_fused, swiglu_reference
from edgeflow.kernels.table.implementations import Implementation
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow.kernels.timing import last_level_cache, median_us, ring_size
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Heads
from edgeflow.lab.trials.model_cases import PRESETS, model_cases, passes, preset, staged_cases
from edgeflow.lab.trials.tune import Tuner
from edgeflow_client.errors import ConfigError

CPU = torch.device("cpu")
CASE = cases.swiglu(4, 8)


@dataclass
class WorkClock:
    """A clock that goes on when a candidate works."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def slow(self, x, steps: int = 20):
        self.now += steps * 1e-4
        return swiglu_reference(x)

    def quick(self, x):
        self.now += 1e-4
        return swiglu_fused(x)


@pytest.fixture
def work() -> WorkClock:
    return WorkClock()


def wrong(x):
    return swiglu_reference(x) * 1.01


def broken(x):
    raise RuntimeError("no such instruction")


def tuner(work: WorkClock, *candidates: Implementation, default: str = "slow") -> Tuner:
    implementations = [
        Implementation(op_name="swiglu", impl_id="reference", function=swiglu_reference),
        Implementation(op_name="swiglu", impl_id="slow", function=work.slow, choices={"steps": (20, 2)}),
        *candidates,
    ]
    table = OperatorTable(implementations, [TableEntry(OperatorKey(op_name="swiglu"), default)])
    return Tuner(table=table, model_name="llama", device=CPU, dtype=torch.float32, samples=3, clock=work)


def test_the_fastest_right_candidate_is_taken(work):
    found = tuner(
        work,
        Implementation(op_name="swiglu", impl_id="quick", function=work.quick),
        Implementation(op_name="swiglu", impl_id="wrong", function=wrong),
        Implementation(op_name="swiglu", impl_id="broken", function=broken),
    ).tune_together([CASE])[0]
    assert (found.impl_id, found.params) == ("quick", {})
    assert found.us < found.default_us
    wrong_one, broken_one = found.rejected
    assert wrong_one.startswith("wrong: deviates by 0.01") and broken_one == "broken: does not run (RuntimeError)"


def test_parameters_are_searched(work):
    found = tuner(work).tune_together([CASE])[0]
    assert (found.impl_id, found.params) == ("slow", {"steps": 2})


@pytest.mark.parametrize(
    ("of_few", "of_many", "taken"),
    [(2, 10, "rival"), (12, 11, "slow"), (2, 12, "slow"), (13, 2, "slow"), (10.5, 2, "rival")],
)
def test_cases_that_one_implementation_must_serve_get_one(work, of_few, of_many, taken):
    """By the mean of its shares of the default's 10 steps, if no case takes more than a tenth longer."""

    def rival(x):
        work.now += (of_few if len(x) == 4 else of_many) * 1e-4
        return swiglu_fused(x)

    def slow(x):
        return work.slow(x, 10)

    implementations = [
        Implementation(op_name="swiglu", impl_id="reference", function=swiglu_reference),
        Implementation(op_name="swiglu", impl_id="slow", function=slow),
        Implementation(op_name="swiglu", impl_id="rival", function=rival),
    ]
    table = OperatorTable(implementations, [TableEntry(OperatorKey(op_name="swiglu"), "slow")])
    made = Tuner(table=table, model_name="llama", device=CPU, dtype=torch.float32, samples=3, clock=work)
    found = made.tune_together([CASE, cases.swiglu(64, 8)])
    assert [each.impl_id for each in found] == [taken] * 2
    assert [each.key.shape_sig for each in found] == ["m=4|f=8", "m=64|f=8"]


def test_the_current_choice_stays_if_nothing_is_faster(work):
    quick = Implementation(op_name="swiglu", impl_id="quick", function=work.quick)
    (found,) = tuner(work, quick, default="quick").tune_together([CASE])
    assert (found.impl_id, found.params, found.us) == ("quick", {}, found.default_us)


def test_a_key_holds_all_that_is_known(work):
    key = tuner(work).key(CASE)
    assert key == OperatorKey(
        op_name="swiglu",
        model_name="llama",
        hw_profile="cpu",
        op_kind="activation",
        layer_role="mlp",
        stage="",
        shape_sig="m=4|f=8",
    )


def test_check_reports_wrong_and_slower_choices(work):
    quick = Implementation(op_name="swiglu", impl_id="quick", function=work.quick)
    checked = tuner(work, quick, Implementation(op_name="swiglu", impl_id="wrong", function=wrong), default="quick")
    assert checked.check(CASE, "quick", {}).complaint == ""
    assert checked.check(CASE, "slow", {}).complaint.startswith("slower than the default by")
    verdict = checked.check(CASE, "wrong", {})
    assert verdict.complaint.startswith("deviates") and math.isnan(verdict.us)


def test_an_entry_of_the_tuner_serves_its_shape():
    """A lookup of a shape finds the choice that was tuned for it."""
    case = cases.packed_attention([Span(0, 0, 5), Span(1, 7, 1)], Heads(2, 2, 8))
    tuned = Tuner(table=built_in_table(), model_name="llama", device=CPU, dtype=torch.float32, samples=1)
    table = built_in_table().overlaid(TableEntry(tuned.key(case), "naive_gather"))
    function = table.resolve(OperatorKey(op_name="packed_attention", model_name="llama"), CPU, torch.float32)
    problem = case.problem(CPU, torch.float32)
    assert function(*problem.arguments).__qualname__.startswith("naive_gather")
    other = cases.packed_attention([Span(0, 0, 50), Span(1, 7, 1)], Heads(2, 2, 8)).problem(CPU, torch.float32)
    assert function(*other.arguments).__qualname__.startswith("slots_in_place")


def test_problems_of_a_model_cover_its_passes():
    shape = ModelShape(
        family="llama", hidden=64, inner=96, heads=4, kv_heads=2, head_dim=16, vocabulary=100, rows=20, stages=3
    )
    assert passes(shape) == [
        [Span(0, 20, 1)],
        [Span(0, 0, 20)],
        [Span(0, 0, 20), Span(1, 20, 1), Span(2, 21, 1)],
        [Span(1, 20, 1), Span(2, 21, 1)],
    ]
    signed = {(case.op_name, case.kv, *case.signed()) for case in model_cases(shape)}
    assert {
        ("packed_attention", "dense", "packed", "m=32|t=32|kv=2|d=16"),
        ("packed_attention", "int8", "packed", "m=32|t=32|kv=2|d=16"),
        ("greedy", "", "", "m=4|v=100"),
    } < signed
    assert len(signed) == len(model_cases(shape))


def test_shapes_come_from_a_configuration():
    config = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 1000}
    shape = ModelShape.of_config(config, rows=9)
    assert (shape.head_dim, shape.kv_heads, shape.inner, shape.rows) == (64, 2, 11008, 9)
    assert ModelShape.of_config({}, rows=280) == PRESETS["openvla-7b"]
    with pytest.raises(ConfigError, match="hidden must be an integer"):
        ModelShape.of_config({"hidden_size": "big", "head_dim": 8}, rows=9)
    with pytest.raises(ConfigError, match="not a directory or one of openvla-7b"):
        preset("gpt")


@pytest.mark.parametrize(("cache_bytes", "copies"), [(1, 1), (4096, 8), (1 << 30, 64)])
def test_weights_are_timed_in_as_many_copies_as_leave_the_cache(cache_bytes, copies):
    """32 x 32 weights count as 1 KiB, in 8 bits; each copy is made once per candidate and called in turn."""
    made: list[int] = []
    called: list[int] = []

    def make(weight, bias):
        number = len(made)
        made.append(number)
        bound = linear.Reference(weight, bias)
        return lambda x: (called.append(number), bound(x))[1]

    reference = Implementation(op_name="linear", impl_id="reference", function=linear.Reference)
    table = OperatorTable(
        [reference, Implementation(op_name="linear", impl_id="noting", function=make)],
        [TableEntry(OperatorKey(op_name="linear"), "noting")],
    )
    options = {"table": table, "model_name": "llama", "device": CPU, "dtype": torch.float32, "cache_bytes": cache_bytes}
    Tuner(**options, samples=9).tune_together([cases.linear(1, 32, 32)])
    timed = called[: 2 * copies]
    assert len(set(timed)) == copies and timed[:copies] == timed[copies:] == made[:copies]


def test_a_ring_is_twice_the_cache_within_bounds():
    assert [ring_size(size, 32 << 20) for size in (0, 1, 1 << 20, 5 << 20, 1 << 30)] == [1, 64, 64, 13, 1]
    assert ring_size(16 << 20, 1 << 40) == ring_size(16 << 20, 128 << 20) == 16
    assert last_level_cache(CPU) >= 1 << 16


def test_the_reference_runs_once_per_problem(work):
    runs: list[int] = []

    def reference(x):
        runs.append(1)
        return swiglu_reference(x)

    implementations = [
        Implementation(op_name="swiglu", impl_id="reference", function=reference),
        Implementation(op_name="swiglu", impl_id="slow", function=work.slow, choices={"steps": (20, 2, 3)}),
        Implementation(op_name="swiglu", impl_id="quick", function=work.quick),
    ]
    table = OperatorTable(implementations, [TableEntry(OperatorKey(op_name="swiglu"), "slow")])
    found = Tuner(
        table=table, model_name="llama", device=CPU, dtype=torch.float32, samples=3, clock=work
    ).tune_together([CASE])[0]
    assert found.impl_id == "quick" and len(runs) == 1


def test_problems_are_in_the_order_of_priority():
    """EdgeFM section 3.4: attention, KV writes and RoPE of prefills; projections; decoding; norms and the rest."""
    shape = ModelShape(
        family="qwen3", hidden=64, inner=96, heads=4, kv_heads=2, head_dim=16, vocabulary=100, rows=20, stages=3
    )
    groups: list[set[str]] = [set() for _ in range(5)]
    bounds = iter(groups)
    group, seen = next(bounds), ""
    for stage, case in staged_cases(shape):
        kind = priority_of(stage, case.op_name, case.layer_role, case.kv)
        if kind != seen:
            group, seen = next(bounds) if seen else group, kind
        group.add(" ".join(filter(None, (case.op_name, case.layer_role, case.kv.replace("dense", "")))))
    memory = {"packed_attention", "rope_write_kv"}
    layer = {f"linear {role}" for role in ("qkv", "output", "gate_up", "down")}
    assert groups[0] == {*memory, "shift_kv", "shift_kv_chain"}
    assert groups[1] == layer
    assert groups[2] == {*memory, *layer, "linear head"}
    norms = {f"rms_norm {role}" for role in ("input", "query", "key", "final")}
    norms |= {"add_rms_norm input", "add_rms_norm post_attention"}
    assert groups[3] == {*norms, "swiglu", "greedy"}
    assert groups[4] == {f"{name} {kv}" for name in memory for kv in ("int8", "fp8", "int4")}


def priority_of(stage: str, op_name: str, role: str, kv: str) -> str:
    """The words of the paper."""
    if kv in ("int8", "fp8", "int4"):
        return "only where slots hold fewer bits"
    if op_name.endswith("rms_norm") or op_name in ("swiglu", "greedy"):
        return "normalization, activation, sampling"
    if stage == "decode" or role == "head":
        return "decoding modules"
    return "primary projections" if op_name == "linear" else "prefill attention, KV write paths, RoPE"


def test_times_order_calls_and_count_one_call(work):
    calls = {"short": lambda: work.slow(torch.ones(1, 2), 1), "long": lambda: work.slow(torch.ones(1, 2), 50)}
    times = median_us(calls, CPU, samples=3, clock=work)
    assert times == {"short": pytest.approx(100), "long": pytest.approx(5000)}


def test_a_clock_of_a_trial_advances():
    assert median_us({"any": lambda: torch.ones(1000).exp()}, CPU, samples=3)["any"] > 0
