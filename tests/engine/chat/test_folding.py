"""Requests in slots with memory: however they are cut, shared and replayed, they give what the naive twin gives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.chat.warmup import run_each_kind
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.verify import gate_streaming as streaming
from edgeflow.lab.verify.gate_streaming import StreamingTwin
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate import CHOICES, GateRules, MemoryGate
from edgeflow.scheduler.plan import Before
from edgeflow.scheduler.requests import Finish
from edgeflow_client.errors import Internal
from edgeflow_client.reasons import Reason
from tests.chat_checkpoint import VOCAB, write_chat_checkpoint
from tests.engine.chat.test_launch_ahead import ahead
from tests.engine.recorded_graphs import record
from tests.random_gates import random_gate

CPU = torch.device("cpu")
LONGEST = 160
LOGITS, MEMORY = 5e-5, 1e-5  # absolute; of the largest entry
SMALL = GateRules(sink=3, window=4, segment=6)
ON_THE_DEVICE = built_in_table().forcing(packed_attention="masked", linear="gemm")


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("qwen2")
    write_chat_checkpoint(directory, "qwen2")
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> ChatModel:
    return load_chat_model(directory, torch.float32, CPU)


@pytest.fixture(scope="module")
def models(directory: Path) -> dict[torch.dtype, ChatModel]:
    return {dtype: load_chat_model(directory, dtype, CPU) for dtype in (torch.float32, torch.bfloat16)}


@pytest.fixture(scope="module")
def base(directory: Path) -> PlainBase:
    return PlainBase.read(directory, torch.float32, CPU)


def rules() -> st.SearchStrategy[GateRules]:
    sizes = {"sink": st.integers(0, 5), "window": st.integers(1, 6), "segment": st.integers(1, 9)}
    choices = {name: st.sampled_from(values) for name, values in CHOICES.items()}
    given = st.fixed_dictionaries({**sizes, **choices})
    return given.filter(lambda each: (each["positions"], each["fold"]) != ("local", "cached")).map(
        lambda each: GateRules(**each)
    )


def gate_of(model: ChatModel, rules: GateRules, *, by_head: bool = False) -> MemoryGate:
    return random_gate(model.config, rules, per_head=by_head)


def engine_of(model: ChatModel, gate: MemoryGate, slots: int = 1, **options: Any) -> ChatEngine:
    """Slots with just the places that are needed, which hold NaN."""
    kv = model.decoder.kv_slots(slots, gate.rules.threshold, memory_format(gate, LONGEST))
    kv.data.fill_(torch.nan)
    return ChatEngine(model, kv, folding=folding_of(gate.rules), keep_logits=True, **options)


def greedy(base: PlainBase, gate: MemoryGate, ids: list[int], tokens: int) -> list[int]:
    return streaming.greedy(StreamingTwin(base, gate), ids, tokens)[0]


def request(engine: ChatEngine, ids: list[int], tokens: int, slot: int = 0, **options: Any) -> Generation:
    params = options.pop("params", None) or SamplingParams(max_tokens=tokens)
    return Generation(engine, engine.model.prompt(ids), params, slot, ignore_stop=True, **options)


def logits_of(engine: ChatEngine, asked: Generation, chunk: int) -> list[Tensor]:
    found = []
    while asked.finish is None:
        (step,) = run_pass(engine, [asked], chunk)
        found += [] if step.logits is None else [step.logits[-1]]
    return found


@cache
def ids_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def same_memory(engine: ChatEngine, slot: int, twin: StreamingTwin) -> None:
    layers = range(engine.model.config.num_hidden_layers)
    for name, wanted in (("matrices", "sums"), ("norms", "norms")):
        found = torch.stack([getattr(engine.kv.layer(index), name)[slot] for index in layers])
        expected = getattr(twin.memories[-1], wanted) if twin.memories else torch.zeros_like(found)
        torch.testing.assert_close(found, expected, rtol=0, atol=MEMORY * max(1.0, float(expected.abs().max())))


@settings(max_examples=25)
@given(rules(), st.integers(1, 60), st.integers(1, 22), st.integers(1, 40), st.booleans())
def test_any_division_into_passes_equals_the_twin(
    model: ChatModel, base: PlainBase, rules: GateRules, rows: int, tokens: int, chunk: int, by_head: bool
):
    gate, ids = gate_of(model, rules, by_head=by_head), ids_of(rows)
    engine, twin = engine_of(model, gate), StreamingTwin(base, gate)
    asked = request(engine, ids, tokens)
    expected = [twin.prefill(ids).logits]
    for found, token in zip(logits_of(engine, asked, chunk), [*asked.tokens, None], strict=False):
        torch.testing.assert_close(found, expected[-1], rtol=0, atol=LOGITS)
        if token is not None and len(expected) < tokens:
            expected.append(twin.step(asked.tokens[len(expected) - 1]).logits)
    assert len(expected) == tokens == len(asked.tokens)
    same_memory(engine, 0, twin)


@settings(max_examples=15)
@given(rules(), st.integers(1, 40), st.integers(1, 30), st.integers(1, 40))
def test_a_decode_step_equals_a_fresh_prefill(model: ChatModel, rules: GateRules, rows: int, tokens: int, chunk: int):
    """With `fold: recompute` the state depends on the known tokens alone; with `first_segment: zero` likewise."""
    gate = gate_of(model, replace(rules, fold="recompute"))
    engine = engine_of(model, gate, slots=2)
    asked = request(engine, ids_of(rows), tokens)
    *_, last = logits_of(engine, asked, chunk)
    fresh = request(engine, [*ids_of(rows), *asked.tokens[:-1]], 1, slot=1)
    (again,) = logits_of(engine, fresh, LONGEST)
    torch.testing.assert_close(last, again, rtol=0, atol=LOGITS)


@settings(max_examples=15)
@given(st.integers(1, SMALL.threshold - 1), st.integers(1, 20))
def test_short_prompts_are_bit_equal_to_those_of_the_base(models: dict[torch.dtype, ChatModel], rows: int, chunk: int):
    for model in models.values():
        ids, tokens = ids_of(rows), SMALL.threshold - rows
        plain = ChatEngine(model, model.decoder.kv_slots(1, SMALL.threshold), keep_logits=True)
        wanted = logits_of(plain, request(plain, ids, tokens), chunk)
        gate = random_gate(model.config, SMALL, dtype=model.decoder.dtype)
        engine = engine_of(model, gate)
        assert all(map(torch.equal, logits_of(engine, request(engine, ids, tokens), chunk), wanted))


@settings(max_examples=15)
@given(st.integers(1, SMALL.threshold - 1), st.integers(1, 20), st.integers(1, 20))
def test_a_short_prompt_beside_a_long_one_is_that_of_the_base(model: ChatModel, rows: int, chunk: int, other: int):
    """In the same passes, in which the rows of the long one run before its own."""
    ids, tokens = ids_of(rows), SMALL.threshold - rows
    plain = ChatEngine(model, model.decoder.kv_slots(2, SMALL.threshold), keep_logits=True)
    wanted = logits_of(plain, request(plain, ids, tokens), chunk)
    engine = engine_of(model, gate_of(model, SMALL), slots=3)
    short, long = request(engine, ids, tokens, slot=2), request(engine, ids_of(20 + other, seed=1), 40, slot=1)
    beside = []
    while short.finish is None:
        _, step = run_pass(engine, [long, short], chunk)
        beside += [] if step.logits is None else [step.logits[-1]]
    assert short.tokens == [int(each.argmax()) for each in wanted]
    assert all(torch.allclose(found, want, atol=LOGITS) for found, want in zip(beside, wanted, strict=True))


def test_rows_that_share_passes_change_no_token(model: ChatModel, base: PlainBase):
    gate = gate_of(model, SMALL)
    engine, lengths = engine_of(model, gate, slots=4), (5, 13, 31, 50)
    asked = [request(engine, ids_of(rows, seed=rows), 25, slot) for slot, rows in enumerate(lengths)]
    while any(each.finish is None for each in asked):
        run_pass(engine, [each for each in asked if each.finish is None], 7)
    for rows, each in zip(lengths, asked, strict=True):
        assert each.tokens == greedy(base, gate, ids_of(rows, seed=rows), 25)


@settings(max_examples=20)
@given(rules(), st.integers(1, 45), st.integers(0, 45), st.integers(1, 30), st.integers(1, 20))
def test_a_prefix_is_lent_to_several_requests(
    model: ChatModel, base: PlainBase, rules: GateRules, prefix: int, shared: int, own: int, chunk: int
):
    """The whole prefix or a part of it; what the borrower folds does not touch the lender."""
    gate = gate_of(model, replace(rules, fold="recompute"))
    engine = engine_of(model, gate, slots=2)
    fixed = FixedPrefix(model.prompt(ids_of(prefix)), 1)
    for _ in range(2):  # the slot of a prefix may have held another one
        list(fixed.compute(engine, chunk))
    ids = [*ids_of(prefix)[: prefix if shared > prefix else shared], *ids_of(own, seed=2)]
    for _ in range(2):
        known = lend(fixed, engine, model.prompt(ids), 0)
        asked = request(engine, ids, 9, known=known, prefix=len(fixed.prompt) if known else 0)
        list(generate(engine, asked, chunk))
        assert asked.tokens == greedy(base, gate, ids, 9)
    with pytest.raises(ValueError, match="prefix's slot"):
        lend(fixed, engine, model.prompt(ids), 1)


@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_replayed_passes_give_the_tokens_of_eager_ones(directory: Path, base: PlainBase, positions: str):
    """Gated and plain passes are recorded apart; passes that run the window again are not recorded."""
    model = load_chat_model(directory, torch.float32, CPU, table=ON_THE_DEVICE)
    gate = gate_of(model, replace(SMALL, positions=positions))
    engine = engine_of(model, gate, slots=2, chunk=4, graphs=True, record=record)
    engine.record_all(lambda *_: None)
    engine.seal()
    engine.kv.data.fill_(0)
    lengths = 40, 5, 13, LONGEST - 1, LONGEST
    for rows in lengths:
        tokens = min(20, LONGEST - rows + 1)
        asked = request(engine, ids_of(rows), tokens)
        list(generate(engine, asked, 4))
        assert asked.tokens == greedy(base, gate, ids_of(rows), tokens)
    graphs = engine._prompts.graphs
    assert graphs is not None and 0 < graphs.eager_passes <= len(lengths) * (20 // SMALL.segment + 1)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("changes", [{}, {"fold": "cached"}, {"first_segment": "zero"}, {"positions": "local"}])
def test_passes_that_are_launched_ahead_give_the_tokens_of_the_twin(
    directory: Path, base: PlainBase, changes: dict[str, str], graphs: bool
):
    """A fold is enqueued while the pass before it is under way; no fold after the end of an answer is counted."""
    model = load_chat_model(directory, torch.float32, CPU, table=ON_THE_DEVICE)
    gate = gate_of(model, replace(SMALL, **changes))
    engine = engine_of(model, gate, slots=2, chunk=4, graphs=graphs, record=record)
    engine.record_all(lambda *_: None)
    engine.kv.data.fill_(0)
    for rows, tokens in ((5, 9), (40, 15), (13, 1)):
        asked = request(ahead(engine), ids_of(rows), tokens)
        launched = 0
        for _ in generate(engine, asked, 4):
            launched = max(launched, asked.plan.passes)
        assert launched > 0 or tokens == 1, "a pass is under way while another is collected"
        assert asked.tokens == greedy(base, gate, ids_of(rows), tokens)
        assert asked.plan.folds == gate.rules.segments(rows + tokens - 1)


def test_a_stop_token_in_front_of_a_fold_leaves_it_out_of_the_count(model: ChatModel):
    """The pass that folds is launched before the stop token is known."""
    engine = ahead(engine_of(model, gate_of(model, SMALL)))
    asked = request(engine, ids_of(SMALL.threshold - 2), 20)
    for _ in generate(engine, asked, 50):
        if len(asked.tokens) == 2:
            asked.plan.finish = Finish.STOP
    assert (asked.plan.route.folded, asked.plan.folds) == (1, 0)


def test_rows_that_only_pad_a_pass_stay_within_the_rotations(directory: Path, base: PlainBase):
    """The last chunk of the longest prompt is replayed in a recording of more rows."""
    model = load_chat_model(directory, torch.float32, CPU, table=ON_THE_DEVICE)
    gate = gate_of(model, SMALL)
    engine = engine_of(model, gate, slots=2, chunk=8, graphs=True, record=record)
    engine.kv.data.fill_(0)
    for rows in range(LONGEST - 8, LONGEST + 1):
        asked = request(engine, ids_of(rows), 1)
        list(generate(engine, asked, 8))
        assert asked.tokens == greedy(base, gate, ids_of(rows), 1)


def test_a_draw_depends_on_the_position_not_on_the_place(model: ChatModel):
    """An answer that is sent again as part of the prompt goes on with the same tokens."""
    engine, params = engine_of(model, gate_of(model, SMALL)), SamplingParams(max_tokens=30, temperature=1.3, seed=5)
    whole = request(engine, ids_of(9), 30, params=params)
    list(generate(engine, whole, 50))
    for told in range(1, 30, 4):
        ids = [*ids_of(9), *whole.tokens[:told]]
        rest = request(engine, ids, 30, params=replace(params, max_tokens=30 - told))
        list(generate(engine, rest, 50))
        assert rest.tokens == whole.tokens[told:]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_memory_that_is_not_finite_ends_only_its_request(model: ChatModel, base: PlainBase, bad: float):
    gate = gate_of(model, SMALL)
    engine = engine_of(model, gate, slots=2)
    broken, sound = request(engine, ids_of(30), 9), request(engine, ids_of(30), 9, slot=1)
    run_pass(engine, [broken], 30)
    run_pass(engine, [broken], 30)
    run_pass(engine, [broken], 30)
    engine.kv.layer(0).matrices[0, 0, 0, 0] = bad
    with pytest.raises(Internal, match="not finite") as failed:
        list(generate(engine, broken, 30))
    assert failed.value.reason == Reason.MEMORY_NOT_FINITE
    again = request(engine, ids_of(30), 9)
    for each in (sound, again):
        list(generate(engine, each, 30))
        assert each.tokens == greedy(base, gate, ids_of(30), 9)


def test_a_prefix_with_a_memory_that_is_not_finite_is_rejected(model: ChatModel, base: PlainBase):
    gate = gate_of(model, SMALL)
    engine = engine_of(model, gate, slots=2)
    fixed = FixedPrefix(model.prompt(ids_of(30)), 1)
    passes = fixed.compute(engine, 8)
    for _ in range(3):
        next(passes)
    engine.kv.layer(1).norms[1, 0, 0] = torch.nan
    with pytest.raises(Internal, match="memory of the prefix") as failed:
        list(passes)
    assert failed.value.reason == Reason.MEMORY_NOT_FINITE
    list(fixed.compute(engine, 8))
    ids = [*ids_of(30), *ids_of(5, seed=2)]
    asked = request(engine, ids, 9, known=lend(fixed, engine, model.prompt(ids), 0), prefix=30)
    list(generate(engine, asked, 8))
    assert asked.tokens == greedy(base, gate, ids, 9)


def test_the_warm_up_folds_once_and_leaves_nothing(model: ChatModel, base: PlainBase):
    gate = gate_of(model, SMALL)
    engine = engine_of(model, gate)
    engine.kv.data.fill_(0)
    folds = []
    change = engine._prompts.contract._memory.change
    engine._prompts.contract._memory.change = lambda slot, before: (folds.append(before), change(slot, before))
    run_each_kind(engine, 8)
    assert [each for each in folds if each is not Before.NOTHING] == [Before.FOLD]
    asked = request(engine, ids_of(30), 9)
    list(generate(engine, asked, 8))
    assert asked.tokens == greedy(base, gate, ids_of(30), 9)
