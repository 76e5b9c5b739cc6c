"""The packed decoder against transformers' Llama, and packed against one span at a time."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from edgeflow.kernels.kv.formats import CONFIGURED, KVFormat
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.kv.visibility import before
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.dimensions import ROLES, SIGNATURES, STAGES, kv_formats, only_role, stage_of
from edgeflow.kernels.table.implementations import Hardware, Implementation
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry, built_in_table
from edgeflow.lab.trials.model_cases import passes, staged_cases
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from edgeflow_client.errors import CheckpointError
from tests.cases import pairs_by_day

CPU = torch.device("cpu")
LOGITS_TOLERANCE = 1e-4
SIZE = {"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 90}
VARIANTS = {
    "mha": LlamaConfig(**SIZE, num_key_value_heads=4),
    "gqa": LlamaConfig(**SIZE, num_key_value_heads=2, rope_theta=500.0, rms_norm_eps=1e-5),
    "mqa, tied": LlamaConfig(**SIZE, num_key_value_heads=1, tie_word_embeddings=True),
}


def random_weights(config: LlamaConfig) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    e, f, kv = config.hidden_size, config.intermediate_size, config.kv_width
    shapes = {"model.embed_tokens.weight": (config.vocab_size, e), "model.norm.weight": (e,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, e)
    of_layer = {
        "self_attn.q_proj": (e, e),
        "self_attn.k_proj": (kv, e),
        "self_attn.v_proj": (kv, e),
        "self_attn.o_proj": (e, e),
        "mlp.gate_proj": (f, e),
        "mlp.up_proj": (f, e),
        "mlp.down_proj": (e, f),
        "input_layernorm": (e,),
        "post_attention_layernorm": (e,),
    }
    for layer in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return {
        name: torch.randn(shape, generator=generator) * (2 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2)
        + (len(shape) == 1)
        for name, shape in shapes.items()
    }


def decoder(config: LlamaConfig, **options) -> LlamaDecoder:
    return LlamaDecoder(config, Weights.of(random_weights(config), torch.float32, CPU), **options)


def poisoned(model: LlamaDecoder, slots: int, capacity: int = 40) -> KVSlots:
    kv = model.kv_slots(slots, capacity)
    kv.data.fill_(torch.nan)
    return kv


@torch.inference_mode()
def run(model: LlamaDecoder, kv: KVSlots, spans: list[Span], ids: list[int]) -> torch.Tensor:
    """One pass; the logits of every row [L_Q, V]."""
    hidden = model.embed(torch.tensor(ids))
    return model.logits(model.forward(hidden, PackedLayout.of(spans, CPU), kv), "packed")


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_transformers(name: str):
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    config = VARIANTS[name]
    theirs = LlamaForCausalLM(TheirConfig(**asdict(config), attn_implementation="eager")).eval()
    theirs.load_state_dict(random_weights(config), strict=not config.tie_word_embeddings)
    theirs.tie_weights()
    ids = torch.randint(0, config.vocab_size, (11,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    model = decoder(config)
    kv = poisoned(model, 3)
    whole = run(model, kv, [Span(1, 0, 11)], ids)
    assert (whole - expected).abs().max() <= LOGITS_TOLERANCE
    chunk, row = [Span(2, 0, 4)], [Span(2, 4, 6)]
    parts = [run(model, kv, chunk, ids[:4]), run(model, kv, row, ids[4:10]), run(model, kv, [Span(2, 10, 1)], ids[10:])]
    assert (torch.cat(parts) - expected).abs().max() <= LOGITS_TOLERANCE


@st.composite
def histories(draw) -> list[tuple[int, list[int]]]:
    """For each of a few slots: where in its text a pass finds it, and the text."""
    texts = draw(
        st.lists(st.lists(st.integers(0, SIZE["vocab_size"] - 1), min_size=1, max_size=14), min_size=1, max_size=5)
    )
    return [(draw(st.integers(0, len(text) - 1)), text) for text in texts]


@pytest.mark.parametrize("name", ["mha", "gqa"])
@settings(max_examples=25, deadline=None)
@given(history=histories(), order=st.randoms(use_true_random=False))
def test_a_packed_pass_equals_one_span_at_a_time(name: str, history, order):
    model = decoder(VARIANTS[name])
    alone, packed = (poisoned(model, len(history) + 2) for _ in range(2))
    spans, ids, expected = [], [], []
    slots = order.sample(range(len(history) + 2), len(history))
    for slot, (known, text) in zip(slots, history, strict=True):
        for kv in (alone, packed):
            if known:
                run(model, kv, [Span(slot, 0, known)], text[:known])
        span = Span(slot, known, len(text) - known)
        expected.append(run(model, alone, [span], text[known:]))
        spans.append(span)
        ids += text[known:]
    found = run(model, packed, spans, ids)
    assert (found - torch.cat(expected)).abs().max() <= LOGITS_TOLERANCE
    assert torch.equal(found.argmax(-1), torch.cat(expected).argmax(-1))


@pytest.mark.parametrize(
    ("name", "kv_format", "samples"),
    pairs_by_day(
        VARIANTS,
        CONFIGURED.values(),
        [None, (0, 1, 5, 0), (2, 1, 1, 1), (0, 0, 3, 1), (9, 1, 5, 1), (0, 0, 0, 0)],
    ),
)
@torch.inference_mode()
def test_sampled_rows_are_rows_of_the_whole_pass_and_the_slots_the_same(name: str, kv_format: KVFormat, samples):
    model = decoder(VARIANTS[name])
    spans = [Span(3, 0, 9), Span(0, 4, 1), Span(2, 3, 5), Span(1, 7, 1)]
    layout = PackedLayout.of(spans, CPU, samples=samples)
    hidden = torch.randn(16, SIZE["hidden_size"], generator=torch.Generator().manual_seed(5))
    stores = [model.kv_slots(4, 40, kv_format) for _ in range(2)]
    for kv in stores:
        model.forward(hidden, PackedLayout.of([Span(slot, 0, 4) for slot in (3, 2, 1, 0)], CPU), kv)
    every, sampled = model.forward(hidden, layout, stores[0]), model.forward_sampled(hidden, layout, stores[1])
    assert sampled.shape == (4 if samples is None else sum(samples), SIZE["hidden_size"])
    off = (sampled - every[layout.sampled_rows]).abs()
    assert not off.numel() or off.max() <= 1e-5 * every.abs().max()
    assert torch.equal(stores[0].data, stores[1].data)


@pytest.mark.parametrize("op_name", ["rms_norm", "rope_write_kv", "packed_attention", "swiglu"])
def test_any_operator_can_be_forced(op_name: str):
    spans, ids = [Span(0, 0, 6), Span(2, 0, 3), Span(1, 0, 1)], list(range(10))
    model = decoder(VARIANTS["gqa"])
    expected = run(model, poisoned(model, 3), spans, ids)
    for impl_id in built_in_table().candidates(op_name):
        forced = decoder(VARIANTS["gqa"], table=built_in_table().forcing(**{op_name: impl_id}))
        assert (run(forced, poisoned(forced, 3), spans, ids) - expected).abs().max() <= LOGITS_TOLERANCE


@torch.inference_mode()
def test_layers_of_a_kind_see_what_the_pass_says_for_it():
    """Odd layers see the prefix alone, the others all: as two decoders of one layer each would compute it."""
    config = VARIANTS["gqa"]
    kinds = [("", "prefix")[index % 2] for index in range(config.num_hidden_layers)]
    model, plain = decoder(config, layer_kinds=kinds), decoder(config)
    spans = [Span(0, 0, 6), Span(1, 0, 5)]
    hidden = torch.randn(11, SIZE["hidden_size"], generator=torch.Generator().manual_seed(3))
    layout = PackedLayout.of(spans, CPU, samples=(3, 1))
    seen = [before(span, 2) for span in spans]
    exact = model.forward(hidden, layout, model.kv_slots(2, 16))
    assert torch.equal(exact, plain.forward(hidden, layout, plain.kv_slots(2, 16)))
    both = layout.seen_by_kind({"prefix": seen})
    found = model.forward(hidden, both, model.kv_slots(2, 16))
    everywhere = plain.forward(hidden, PackedLayout.of(spans, CPU, visibility=seen), plain.kv_slots(2, 16))
    assert (found - exact).abs().amax(1).min() > 1e-3 and (found - everywhere).abs().amax(1).min() > 1e-3
    table = built_in_table().forcing(packed_attention="masked")
    other = decoder(config, layer_kinds=kinds, table=table)
    assert (found - other.forward(hidden, both, other.kv_slots(2, 16))).abs().max() <= LOGITS_TOLERANCE
    sampled = model.forward_sampled(hidden, both, model.kv_slots(2, 16))
    assert (sampled - found[both.sampled_rows]).abs().max() <= 1e-5 * found.abs().max()


def test_every_layer_has_a_kind():
    with pytest.raises(ValueError, match=f"layer_kinds: 1 of {VARIANTS['gqa'].num_hidden_layers} layers"):
        decoder(VARIANTS["gqa"], layer_kinds=[""])


class CalledOperators(TorchDispatchMode):
    """Notes the operators of torch that a pass calls, and the rows of their first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.rows: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.names.append(name)
        if args and isinstance(args[0], torch.Tensor) and args[0].dim():
            self.rows.append((name, len(args[0])))
        return function(*args, **(kwargs or {}))


@torch.inference_mode()
def test_the_last_layer_computes_only_the_rows_that_are_sampled():
    model = decoder(VARIANTS["gqa"])
    kv, layout = model.kv_slots(2, 40), PackedLayout.of([Span(0, 0, 9), Span(1, 0, 1)], CPU)
    with CalledOperators() as called:
        model.forward_sampled(torch.randn(10, SIZE["hidden_size"]), layout, kv)
    assert [rows for name, rows in called.rows if name == "silu"] == [10, 10, 2]


@torch.inference_mode()
def test_a_chunk_that_samples_nothing_computes_only_keys_and_values_in_the_last_layer():
    model = decoder(VARIANTS["gqa"])
    kv, layout = model.kv_slots(2, 40), PackedLayout.of([Span(0, 0, 9)], CPU, samples=[0])
    with CalledOperators() as called:
        model.forward_sampled(torch.randn(9, SIZE["hidden_size"]), layout, kv)
    assert [rows for name, rows in called.rows if name == "silu"] == [9, 9]


Call = tuple[str, str, str, str, str]
"""(stage, op_name, layer_role, KV format, shape signature)"""


def noting(calls: set[Call]) -> OperatorTable:
    """A table whose operators, in each stage and role, note their calls."""
    table, implementations, entries = built_in_table(), list(BUILT_IN), []
    names = [name for name in ROLES if name in SIGNATURES and name != "varlen_attention"]
    operators = [(name, role, kv) for name in names for role in ROLES[name] for kv in kv_formats(name)]
    for (op_name, role, kv), stage in product(operators, STAGES):
        key = OperatorKey(op_name=op_name, layer_role=role, stage=stage, kv=kv)
        serves = table.choose(key, Hardware("cpu"), torch.float32).load()
        function = noted(serves, calls, op_name, role, stage, kv)
        implementations.append(Implementation(op_name=op_name, impl_id=f"{role} {stage}", kv=kv, function=function))
        entries.append(TableEntry(key, f"{role} {stage}"))
    return OperatorTable(implementations, entries)


def noted(serves, calls: set[Call], op_name: str, role: str, stage: str, kv: str):
    def note(*arguments):
        calls.add((stage, op_name, role, kv, SIGNATURES[op_name](*arguments)[1]))

    def call(*arguments):
        made = serves(*arguments)
        if op_name == "linear":
            return lambda x: note(*arguments, len(x)) or made(x)
        if op_name.startswith("packed_attention"):
            return lambda *of_layer: note(*arguments) or made(*of_layer)
        note(*arguments)
        return made

    return call


@pytest.mark.parametrize("kv_format", CONFIGURED.values(), ids=lambda each: each.name)
@torch.inference_mode()
def test_the_calls_of_a_model_are_those_that_are_listed(kv_format: KVFormat):
    """What `edgeflow ops` lists and the tuner times is what passes call, no more and no less."""
    calls: set[Call] = set()
    config = VARIANTS["gqa"]
    shape = ModelShape(
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        rows=16,
        stages=3,
    )
    model = decoder(config, table=noting(calls))
    for spans in passes(shape):
        layout, kv = PackedLayout.of(spans, CPU), model.kv_slots(3, 40, kv_format)
        hidden = model.forward_sampled(torch.randn(len(layout.row_slot), config.hidden_size), layout, kv)
        model.logits(hidden, stage_of(layout.lengths))
    listed = [
        (stage, each)
        for stage, each in staged_cases(shape)
        if each.kv in ("", kv_format.name) and each.op_name not in ("greedy", "shift_kv", "shift_kv_chain")
    ]
    assert calls == {
        (stage, each.op_name, each.layer_role or only_role(each.op_name), each.kv, each.signed()[1])
        for stage, each in listed
    }
    assert ("decode", "packed_attention", "self_attention", kv_format.name, "m=1|t=16|kv=2|d=8") in calls


@torch.inference_mode()
def test_no_gemm_copies_the_residual_and_the_callers_rows_stay():
    """A GEMM that adds to the residual would copy it first; the norms add it, over memory of the pass itself."""
    model = decoder(VARIANTS["gqa"], table=built_in_table().forcing(linear="gemm"))
    hidden, spans = model.embed(torch.arange(7)), [Span(0, 0, 6), Span(1, 0, 1)]
    before, kv = hidden.clone(), model.kv_slots(2, 40)
    with CalledOperators() as called:
        model.forward(hidden, PackedLayout.of(spans, CPU), kv)
    layers = VARIANTS["gqa"].num_hidden_layers
    assert called.names.count("linear") == 4 * layers and "addmm" not in called.names
    assert called.names.count("clone") == 1 and called.names.count("add_") == 2 * layers
    assert torch.equal(hidden, before)


def test_slots_may_be_longer_than_the_trained_positions():
    config = LlamaConfig(**SIZE, num_key_value_heads=4, max_position_embeddings=4)
    ids = list(range(12))
    model, plain = decoder(config), decoder(VARIANTS["mha"])
    found = run(model, poisoned(model, 1), [Span(0, 0, 12)], ids)
    assert torch.equal(found, run(plain, poisoned(plain, 1), [Span(0, 0, 12)], ids))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 5}, "heads do not divide hidden_size"),
        ({"num_key_value_heads": 3}, "KV heads do not divide"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be an integer, at least 1"),
        ({"vocab_size": 2.5}, "vocab_size must be an integer"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings must be an integer, at least 1, up to"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a number"),
        ({"rope_theta": float("nan")}, "rope_theta must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer, at least 1"),
    ],
)
def test_impossible_sizes_are_reported(change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        LlamaConfig(**{**SIZE, "num_key_value_heads": 4, **change})


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(name: str):
    weights = random_weights(VARIANTS["mha"])
    del weights[name]
    with pytest.raises(CheckpointError, match=name):
        LlamaDecoder(VARIANTS["mha"], Weights.of(weights, torch.float32, CPU))
