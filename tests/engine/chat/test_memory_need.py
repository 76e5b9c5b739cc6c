"""What a chat model needs beside its weights: as many bytes as the tensors take that are made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.chat.build import build_chat
from edgeflow.engine.chat.memory import MemoryNeed, memory_need
from edgeflow.engine.drafts.kinds import Eagle, Lookup, draft_sizes
from edgeflow.engine.memory import widened_bytes, written_bytes
from edgeflow.kernels.kv.formats import CONFIGURED, DENSE, INT4, INT8, KVShape
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.memory import MemoryLayer, MemoryRules, fold_batched, read_batched
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.narrow_kv import int4_attention, scaled
from edgeflow.kernels.rope_write_kv import RotaryTable
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.models.chat import load_chat_model
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules, MemoryGate
from tests.cases import pairs_by_day
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.chat.tiny_drafts import KINDS, kind_of, tiny_head
from tests.random_gates import random_gate

CPU = torch.device("cpu")
RULES = GateRules(sink=4, window=6, segment=10)
PREFIX = {"id": "rest", "text": "the arm is at rest"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("need")
    write_chat_checkpoint(found, "qwen2")
    return found


def need_of(config: ChatConfig, text: LlamaConfig, gate: MemoryGate | None = None, dtype=torch.float32) -> MemoryNeed:
    return memory_need(config, text, gate, dtype, CPU, replays=False)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("decode_model", ["", "another"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_needed_memory_equals_reserved_memory(path: Path, gated: bool, decode_model: str, dtype: torch.dtype):
    long = {"gate": "gate.json", "length": 3_000} if gated and not decode_model else {}
    config = ChatConfig.model_validate({"capacity": 96, "long": long, "slots": [PREFIX], "decode_model": decode_model})
    models = [load_chat_model(path, dtype, CPU) for _ in range(1 + bool(decode_model))]
    gate = random_gate(models[0].config, RULES) if long else None
    if gate is not None:
        layers = [
            replace(each, **{name: part.to(dtype) for name, part in each.tensors().items()}) for each in gate.layers
        ]
        gate = replace(gate, layers=tuple(layers))
    engine = build_chat(config, models[0], "f", lambda *_: None, decode=models[-1], gate=gate).engine
    need = need_of(config, models[0].config, gate, dtype)
    sampling = engine._sampling
    trees = engine._state.tree
    state = [engine._state.ids, sampling._shares, sampling._counts, sampling._prompted]
    state += [trees.parent, trees.depth, trees.bits]
    rotations = [part for model in models for each in model.decoder._rotary.values() for part in (each.cos, each.sin)]
    assert need.slots == engine.kv.slots == 2
    assert need.slots * need.slot_bytes == engine.kv.nbytes
    assert need.slots * need.state_bytes == nbytes(state)
    assert need.rotation_bytes == nbytes(rotations)
    assert need.total_bytes == engine.kv.nbytes + nbytes(state) + nbytes(rotations) + need.pass_bytes


@pytest.mark.parametrize("positions", ["", "absolute", "local"], ids=["plain", "absolute", "local"])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_drafts_need_what_is_reserved_for_them(path: Path, kind: str, positions: Any):
    """And no more in a pass than is counted: logits of all rows, features of a chunk, the head's log probabilities."""
    long = {"gate": "gate.json", "length": 500} if positions else {}
    config = ChatConfig.model_validate({"capacity": 96, "long": long, "prefill_chunk": 32})
    model = load_chat_model(path, torch.float32, CPU)
    fold = "recompute" if positions == "local" else "cached"
    gate = random_gate(model.config, replace(RULES, positions=positions, fold=fold)) if positions else None
    drafts = kind_of(kind, model, range(30))
    engine = build_chat(config, model, "f", lambda *_: None, gate=gate, drafts=drafts).engine
    need = memory_need(config, model.config, gate, torch.float32, CPU, replays=False, draft=drafts.sizes)
    plain, sampling, trees = need_of(config, model.config, gate), engine._sampling, engine._state.tree
    state = [engine._state.ids, sampling._shares, sampling._counts, sampling._prompted]
    state += [trees.parent, trees.depth, trees.bits]
    assert need.state_bytes == nbytes(state) > plain.state_bytes
    held, made = [], drafts.sizes.most_rows * model.config.vocab_size * 4
    if isinstance(drafts, Eagle):
        store, config_of = engine._verifier.store, drafts.head.config
        held = [store.data, *(getattr(drafts.head._rotary_of(store), name) for name in ("cos", "sin"))]
        held.append(drafts.head.targets)
        features = torch.empty(config.prefill_chunk, config_of.feature_width)
        scores = drafts.head.log_probabilities(torch.zeros(drafts.sizes.width, config_of.text.hidden_size))
        made += nbytes([features, scores])
    assert need.draft_bytes == nbytes(held)
    assert need.pass_bytes - plain.pass_bytes >= made
    drafted, undrafted = need.total_bytes, plain.total_bytes
    assert drafted - undrafted >= nbytes(held) + made


@pytest.mark.parametrize("eagle3", [{}, {"chain": True, "depth": 3}, {"rows": 20, "depth": 2, "width": 5}], ids=str)
def test_sizes_are_those_of_what_is_loaded(path: Path, eagle3: dict[str, Any]):
    config = ChatConfig.model_validate({"draft": "eagle3", "eagle3": {"model": "head", **eagle3}})
    model = load_chat_model(path, torch.float32, CPU)
    settings, head = config.eagle3, tiny_head(model, range(30))
    tree = TreeSizes(rows=settings.pass_rows, depth=settings.depth, width=settings.top) if settings.top > 1 else None
    loaded = Eagle(head=head, tree=tree, depth=settings.depth)
    assert draft_sizes(config, head.config) == loaded.sizes
    assert loaded.rows == loaded.sizes.most_rows == max(settings.pass_rows, settings.depth + 2)
    plain = ChatConfig.model_validate({"draft": "lookup", "lookup": {"drafts": 5}})
    assert draft_sizes(plain, None) == Lookup(drafts=5).sizes and draft_sizes(ChatConfig(), None) is None


def nbytes(tensors: list[Tensor]) -> int:
    return sum(each.nbytes for each in tensors)


def test_local_positions_turn_no_further_than_a_slot(path: Path):
    text = load_chat_model(path, torch.float32, CPU).config
    config = ChatConfig.model_validate({"long": {"gate": "gate.json", "length": 3_000}})
    far, near = (
        need_of(config, text, random_gate(text, replace(RULES, positions=each))) for each in ("absolute", "local")
    )
    assert far.rotation_bytes * 32 == near.rotation_bytes * 3_000
    assert far.state_bytes == near.state_bytes


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_read_and_a_fold_take_no_more_than_is_counted(path: Path, dtype: torch.dtype, per_head: bool):
    text = load_chat_model(path, torch.float32, CPU).config
    config = ChatConfig.model_validate({"long": {"gate": "gate.json"}, "prefill_chunk": 128})
    gate = random_gate(text, replace(RULES, segment=300), hidden=64, per_head=per_head)
    own = {name: part.to(dtype) for name, part in gate.layers[0].tensors().items()}
    heads, width, rows = text.num_key_value_heads, text.head_dim, config.prefill_chunk
    layer = MemoryLayer(
        keys=torch.randn(1, 320, heads, width, dtype=dtype),
        values=torch.randn(1, 320, heads, width, dtype=dtype),
        matrices=torch.rand(1, heads, width, width),
        norms=torch.rand(1, heads, width),
        gate=replace(gate.layers[0], **own),
        rules=MemoryRules(sink=4, segment=300),
    )
    q, attended = torch.randn(2, rows, text.num_attention_heads, width, dtype=dtype)
    layout = PackedLayout.of([Span(0, 0, rows)], CPU)
    read = peak_bytes(lambda: read_batched(q, attended, layer, replace(layout, gated=(True,))))
    fold = peak_bytes(lambda: fold_batched(layer, 0, 4, 304))
    counted = need_of(config, text, gate, dtype).pass_bytes - need_of(config, text, None, dtype).pass_bytes
    assert 0.75 * counted < read + fold <= 1.01 * counted


HEADS, CAPACITY = {"as many keys as queries": (8, 8, 128), "few keys": (14, 2, 64)}, 400
SPANS = {
    "prompt": [Span(0, 5, 300)],
    "prompt and decode rows": [Span(0, 0, 280), *(Span(slot, 280 + slot, 1) for slot in range(1, 7))],
    "drafts": [Span(slot, 280 + slot, 7) for slot in range(7)],
}


@pytest.mark.parametrize(
    ("write", "spans", "heads", "dtype"),
    pairs_by_day(["indexed", "on_device"], SPANS, HEADS, [torch.float32, torch.bfloat16]),
)
@torch.inference_mode()
def test_a_write_in_four_bits_takes_no_more_than_is_counted(write: str, spans: str, heads: str, dtype: torch.dtype):
    count, kv_heads, width = HEADS[heads]
    kv = KVSlots(
        layers=1, slots=7, capacity=CAPACITY, kv_heads=kv_heads, head_dim=width, dtype=dtype, device=CPU, format=INT4
    )
    rows = RotaryTable.of(CAPACITY, width, 1e4, torch.ones(1, dtype=dtype)).places(
        PackedLayout.of(SPANS[spans], CPU), CAPACITY
    )
    qkv = torch.randn(len(rows.flat), (count + 2 * kv_heads) * width).to(dtype)
    function = built_in_table().implementation("rope_write_kv", write, "int4").load()
    peak = peak_bytes(lambda: function(qkv, count, kv_heads, rows, kv.layer(0)))
    shape = KVShape(layers=1, capacity=CAPACITY, kv_heads=kv_heads, head_dim=width, dtype=dtype)
    queries = len(qkv) * count * width * dtype.itemsize
    counted = queries + written_bytes(INT4, shape, rows=len(qkv), spans=len(SPANS[spans]))
    assert peak <= counted
    assert write == "indexed" or peak >= 0.65 * counted


def test_a_prompts_row_takes_a_place_of_a_group_and_not_a_group():
    shape = KVShape(layers=1, capacity=CAPACITY, kv_heads=32, head_dim=128, dtype=torch.bfloat16)
    assert written_bytes(INT4, shape, rows=300, spans=1) / 300 < 16 * 32 * 128
    assert written_bytes(INT8, shape, rows=300, spans=1) == 0


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of tensors that exist at once of those that are made."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    del result
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = most = 0
    for each in sorted(events, key=lambda event: event.start_ns()):
        held += each.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["model", "int8", "fp8", "int4"])
@torch.inference_mode()
def test_slots_of_fewer_bits_are_widened_twice_in_a_pass(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, dtype: torch.dtype
):
    made: list[Tensor] = []

    class Room(KVSlots):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.extend(self.tensors)

    class Widening(int4_attention._Widening):
        def __init__(self, numbers: int, room: KVSlots) -> None:
            super().__init__(numbers, room)
            made.extend([self._codes, self._floats])

    for module in (scaled, int4_attention):
        monkeypatch.setattr(module, "KVSlots", Room)
    monkeypatch.setattr(int4_attention, "_Widening", Widening)
    model = load_chat_model(path, dtype, CPU)
    kv = model.decoder.kv_slots(2, 96, CONFIGURED[name])
    spans = [Span(slot, 0, 96) for slot in range(2)]
    layout = PackedLayout.of(spans, CPU)
    model.decoder.forward_sampled(model.embed([each % 256 for each in range(192)]), layout, kv)
    text = model.config
    shape = KVShape(layers=3, capacity=96, kv_heads=text.num_key_value_heads, head_dim=text.head_dim, dtype=dtype)
    assert nbytes(made) == 2 * widened_bytes(CONFIGURED[name], shape, CPU)
    assert (not made) == (CONFIGURED[name] is DENSE)


def test_a_pass_over_fewer_bits_needs_its_slot_widened(path: Path):
    text = load_chat_model(path, torch.float32, CPU).config
    plain, eight = (need_of(ChatConfig.model_validate({"capacity": 96, "kv": kv}), text) for kv in ("model", "int8"))
    assert eight.pass_bytes - plain.pass_bytes == 2 * 2 * 96 * text.kv_width * 4
