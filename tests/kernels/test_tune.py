"""The tuner keeps what is right and faster, and says why it took nothing else; regression checks complain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from edgeflow.errors import ConfigError
from edgeflow.kernels import cases, swiglu
from edgeflow.kernels.cases import Heads
from edgeflow.kernels.implementations import Implementation
from edgeflow.kernels.layout import Span
from edgeflow.kernels.model_cases import PRESETS, ModelShape, model_cases, passes, preset
from edgeflow.kernels.table import Entry, OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.timing import median_us
from edgeflow.kernels.tune import Tuner

CPU = torch.device("cpu")
CASE = cases.swiglu(4, 8)


@dataclass
class Work:
    """A clock that goes on when a candidate works."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def slow(self, x, steps: int = 20):
        self.now += steps * 1e-4
        return swiglu.reference(x)

    def quick(self, x):
        self.now += 1e-4
        return swiglu.fused(x)


@pytest.fixture
def work() -> Work:
    return Work()


def wrong(x):
    return swiglu.reference(x) * 1.01


def broken(x):
    raise RuntimeError("no such instruction")


def tuner(work: Work, *candidates: Implementation, default: str = "slow") -> Tuner:
    implementations = [
        Implementation("swiglu", "reference", swiglu.reference),
        Implementation("swiglu", "slow", work.slow, choices={"steps": (20, 2)}),
        *candidates,
    ]
    table = OperatorTable(implementations, [Entry(OperatorKey("swiglu"), default)])
    return Tuner(table, "llama", CPU, torch.float32, samples=3, clock=work)


def test_the_fastest_right_candidate_is_taken(work):
    found = tuner(
        work,
        Implementation("swiglu", "quick", work.quick),
        Implementation("swiglu", "wrong", wrong),
        Implementation("swiglu", "broken", broken),
    ).tune(CASE)
    assert (found.impl_id, found.params) == ("quick", {})
    assert found.us < found.default_us
    wrong_one, broken_one = found.rejected
    assert wrong_one.startswith("wrong: deviates by 0.01") and broken_one == "broken: does not run (RuntimeError)"


def test_parameters_are_searched(work):
    found = tuner(work).tune(CASE)
    assert (found.impl_id, found.params) == ("slow", {"steps": 2})


def test_what_served_stays_where_nothing_is_faster(work):
    found = tuner(work, Implementation("swiglu", "quick", work.quick), default="quick").tune(CASE)
    assert (found.impl_id, found.params, found.us) == ("quick", {}, found.default_us)


def test_a_key_holds_all_that_is_known(work):
    key = tuner(work).key(CASE)
    assert key == OperatorKey("swiglu", "llama", "cpu", "activation", "", "", "m=4|f=8")


def test_check_complains_of_what_is_wrong_or_slower(work):
    quick = Implementation("swiglu", "quick", work.quick)
    checked = tuner(work, quick, Implementation("swiglu", "wrong", wrong), default="quick")
    assert checked.check(CASE, "quick", {}).complaint == ""
    assert checked.check(CASE, "slow", {}).complaint.startswith("slower than the default by")
    verdict = checked.check(CASE, "wrong", {})
    assert verdict.complaint.startswith("deviates") and math.isnan(verdict.us)


def test_an_entry_of_the_tuner_serves_its_shape():
    """What was tuned for a shape is what a lookup of that shape finds."""
    case = cases.packed_attention([Span(0, 0, 5), Span(1, 7, 1)], Heads(2, 2, 8))
    tuned = Tuner(built_in_table(), "llama", CPU, torch.float32, samples=1)
    table = built_in_table().overlaid(Entry(tuned.key(case), "naive_gather"))
    function = table.resolve(OperatorKey("packed_attention", "llama"), CPU, torch.float32)
    problem = case.problem(CPU, torch.float32)
    assert function(*problem.arguments).__qualname__.startswith("naive_gather")
    other = cases.packed_attention([Span(0, 0, 50), Span(1, 7, 1)], Heads(2, 2, 8)).problem(CPU, torch.float32)
    assert function(*other.arguments).__qualname__.startswith("slots_in_place")


def test_problems_of_a_model_cover_its_passes():
    shape = ModelShape("llama", 64, 96, 4, 2, 16, 100, rows=20, stages=3)
    assert passes(shape) == [
        [Span(0, 20, 1)],
        [Span(0, 0, 20)],
        [Span(0, 0, 20), Span(1, 20, 1), Span(2, 21, 1)],
        [Span(1, 20, 1), Span(2, 21, 1)],
    ]
    signed = {(case.op_name, *case.signed()) for case in model_cases(shape)}
    assert ("packed_attention", "packed", "m=32|t=32|kv=2|d=16") in signed and ("greedy", "", "m=4|v=100") in signed
    assert len(signed) == len(model_cases(shape))


def test_shapes_come_from_a_configuration():
    config = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 1000}
    shape = ModelShape.of_config(config, rows=9)
    assert (shape.head_dim, shape.kv_heads, shape.inner, shape.rows) == (64, 2, 11008, 9)
    assert ModelShape.of_config({}, rows=280) == PRESETS["openvla-7b"]
    with pytest.raises(ConfigError, match="hidden must be a whole number"):
        ModelShape.of_config({"hidden_size": "big", "head_dim": 8}, rows=9)
    with pytest.raises(ConfigError, match="none of openvla-7b"):
        preset("gpt")


def test_times_order_calls_and_count_one_call(work):
    calls = {"short": lambda: work.slow(torch.ones(1, 2), 1), "long": lambda: work.slow(torch.ones(1, 2), 50)}
    times = median_us(calls, CPU, samples=3, clock=work)
    assert times == {"short": pytest.approx(100), "long": pytest.approx(5000)}


def test_a_clock_of_its_own_goes_on():
    assert median_us({"any": lambda: torch.ones(1000).exp()}, CPU, samples=3)["any"] > 0
