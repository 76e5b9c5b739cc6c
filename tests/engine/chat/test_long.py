"""The configured memory gate: found, read, and refused with both values where it does not fit its base or a slot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.config.service import load_config
from edgeflow.engine.chat import build
from edgeflow.engine.chat.build import build_chat, chat_bytes
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.memory import SlotSize, memory_bytes, memory_need, read_long, remarks
from edgeflow.ipc.chat_messages import LongSlots
from edgeflow.lab.training.gate.gate_files import write_gate
from edgeflow.models import memory_gate
from edgeflow.models.chat import load_chat_model
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules, MemoryGate, base_fingerprint
from edgeflow.models.published import read_published
from edgeflow.scheduler.plan import Before, Pass, Segment
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.oracles import ORACLES
from tests.random_gates import random_gate

CPU = torch.device("cpu")
RULES = {"sink": 4, "window": 6, "segment": 10}


def gate_for(text: LlamaConfig, fingerprint: str = "", **rules: Any) -> MemoryGate:
    """A random gate of RULES, but for those given."""
    return random_gate(text, GateRules(**{**RULES, **rules}), fingerprint=fingerprint)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with its gate beside it."""
    path = tmp_path_factory.mktemp("long")
    write_chat_checkpoint(path, "qwen2")
    write_gate(path, gate_for(read_published(path).text, base_fingerprint(path)))
    return path


def chat(path: Path, **changes: Any) -> ChatConfig:
    long = {"gate": "gate.json", **changes.pop("long", {})}
    return ChatConfig.model_validate({"model": str(path), "long": long, **changes})


def read(path: Path, **changes: Any) -> MemoryGate | None:
    return read_long(chat(path, **changes), path, CPU, torch.float32)


def test_without_a_gate_nothing_is_read(model: Path):
    assert read(model, long={"gate": ""}) is None


def test_the_gate_s_sizes_hold_unless_others_are_configured(model: Path):
    gate = read(model)
    assert gate is not None and (gate.rules.sink, gate.rules.window, gate.rules.segment) == (4, 6, 10)
    changed = read(model, long={"sink": 0, "segment": 7})
    assert changed is not None and (changed.rules.sink, changed.rules.window, changed.rules.segment) == (0, 6, 7)
    assert changed.rules.activation == gate.rules.activation and len(changed.layers) == len(gate.layers)


def test_a_gate_is_sought_in_the_model_s_folder_and_then_in_the_working_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_gate(tmp_path / "elsewhere", gate_for(read_published(model).text, segment=9))
    monkeypatch.chdir(tmp_path)
    names = ["gate.json", "elsewhere", "elsewhere/gate.json", str(tmp_path / "elsewhere"), str(model)]
    found = [read(model, long={"gate": name}) for name in names]
    assert [gate and gate.rules.segment for gate in found] == [10, 9, 9, 9, 10]
    write_gate(tmp_path, gate_for(read_published(model).text, segment=8))
    found = [read(model, long={"gate": name}) for name in ("./gate.json", "gate.json", ".")]
    assert [gate and gate.rules.segment for gate in found] == [8, 10, 10]
    with pytest.raises(ConfigError) as refused:
        read(model, long={"gate": "nowhere"})
    assert str(model / "nowhere") in refused.value.text and str(tmp_path / "nowhere") in refused.value.text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"capacity": 19},
            "chat.long: sink 4 + window 6 + segment 10 = 20 tokens are more than a slot holds: chat.capacity is 19",
        ),
        ({"capacity": 16, "long": {"segment": 16}}, "segment 16 = 26 tokens are more than a slot holds: chat.capacity"),
        (
            {"long": {"segment": 600}},
            "chat.long.segment: 600 is more than a slot holds: max_position_embeddings of the base is 512",
        ),
        ({"long": {"length": 19}}, "chat.long.length: 19 is less than the 20 tokens from which prompts are folded"),
    ],
)
def test_sizes_that_do_not_fit_a_slot_are_rejected_with_both_values(model: Path, changes: dict[str, Any], told: str):
    with pytest.raises(ConfigError) as refused:
        read(model, **changes)
    assert told in refused.value.text


def test_the_gate_s_own_window_may_be_larger_than_the_slot(model: Path, tmp_path: Path):
    write_gate(tmp_path, gate_for(read_published(model).text, window=300))
    with pytest.raises(ConfigError, match=r"chat.long.window: 300 is more than a slot holds: chat.capacity is 256"):
        read(model, capacity=256, long={"gate": str(tmp_path)})


def test_a_gate_without_a_fingerprint_belongs_to_the_folder_it_lies_in(tmp_path: Path):
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    write_chat_checkpoint(base, "qwen2")
    text = read_published(base).text
    write_gate(base, gate_for(text))
    write_gate(elsewhere, gate_for(text))
    write_gate(tmp_path / "own", gate_for(text, base_fingerprint(base)))
    (tmp_path / "link").symlink_to(base)
    model, told = load_chat_model(base, torch.float32, CPU), {}
    for name in ("gate.json", str(base), str(tmp_path / "link"), str(elsewhere), str(tmp_path / "own")):
        configured = chat(base, capacity=32, long={"gate": name, "length": 64})
        gate = read_long(configured, base, CPU, torch.float32)
        told[name] = build_chat(configured, model, "f", lambda *_: None, gate=gate).ready().numbers
    remark = ", gate not compared with its base: gate.json has no base_fingerprint"
    assert [name for name, numbers in told.items() if numbers.endswith(remark)] == [str(elsewhere)]
    assert len(set(told.values())) == 2


def test_a_gate_for_another_base_is_rejected_before_anything_is_loaded(model: Path, tmp_path: Path):
    text = read_published(model).text
    write_gate(tmp_path / "other", gate_for(text, "a" * 64))
    write_gate(tmp_path / "wider", gate_for(replace(text, head_dim=2 * text.head_dim)))
    for name, told in (("other", base_fingerprint(model)), ("wider", f"heads of width {text.head_dim}")):
        with pytest.raises(CheckpointError) as refused:
            read(model, long={"gate": str(tmp_path / name)})
        assert told in refused.value.text
        config = load_config(None, {"device": "cpu", "chat.model": str(model), "chat.long.gate": str(tmp_path / name)})
        with pytest.raises(CheckpointError):
            chat_bytes(config)


def test_sizes_are_checked_and_memory_predicted_from_headers_only(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_gate, "read_tensors", lambda path: pytest.fail("a tensor was read"))
    with pytest.raises(ConfigError, match=r"chat.long.length: 19 is less than the 20 tokens"):
        read(model, long={"length": 19})
    changes = {"device": "cpu", "chat.model": str(model), "chat.long.gate": "gate.json"}
    assert chat_bytes(load_config(None, changes)) > 0


def test_a_model_with_images_has_no_gate(tmp_path: Path):
    write_chat_checkpoint(tmp_path, "qwen2_5_vl")
    write_gate(tmp_path, gate_for(read_published(tmp_path).text))
    with pytest.raises(
        ConfigError, match=r"gate.json cannot serve chat.model .*, a qwen2_5_vl with images: .* 3 parts"
    ):
        read(tmp_path)


def test_a_slot_keeps_its_size_whatever_the_length(model: Path):
    text = read_published(model).text
    gate = read(model)
    sizes = {length: SlotSize.of(chat(model, long={"length": length}), text, gate) for length in (64, 131_072)}
    assert {size.positions for size in sizes.values()} == {32}, "20 positions, in whole pages"
    state = text.num_hidden_layers * text.num_key_value_heads * (text.head_dim**2 + text.head_dim)
    assert {size.memory_bytes for size in sizes.values()} == {4 * state} == {memory_bytes(text)}
    assert [size.length for size in sizes.values()] == [64, 131_072]
    plain = SlotSize.of(chat(model, capacity=1024), text, None)
    assert plain == SlotSize(positions=512, memory_bytes=0, length=512)
    assert plain.long_slots(None) is None
    told = sizes[64].long_slots(gate)
    assert told == LongSlots(sink=4, window=6, segment=10, memory_bytes=4 * state) and told.threshold == 20


def test_the_headers_predict_what_slots_with_a_memory_take(model: Path):
    text, gate = read_published(model).text, read(model)

    def taken(name: str) -> int:
        """Beside what is foretold for slots and passes."""
        changes = {"chat.model": str(model), "chat.long.gate": name, "chat.capacity": 32, "chat.dtype": "float32"}
        config = load_config(None, {"device": "cpu", **changes})
        need = memory_need(config.chat, text, gate if name else None, torch.float32, CPU, replays=False)
        return chat_bytes(config) - need.total_bytes

    assert gate is not None
    assert taken("gate.json") - taken("") == 4 * gate.parameters


def test_slots_with_a_memory_that_do_not_fit_are_rejected_with_the_settings_of_their_size(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(build, "free_bytes", lambda device: 10)
    loaded, gate = load_chat_model(model, torch.float32, CPU), read(model)
    with pytest.raises(ConfigError, match=r"^chat.long: no memory for 1 slots .* lower chat.long.segment or"):
        build_chat(chat(model), loaded, "f", lambda *_: None, gate=gate)
    with pytest.raises(ConfigError, match=r"^chat.capacity: no memory for 1 slots .* lower chat.capacity or"):
        build_chat(chat(model, long={"gate": ""}), loaded, "f", lambda *_: None)


def test_a_prefix_whose_memory_is_not_finite_ends_the_start_with_its_name(model: Path):
    """A memory that overflows; and, of a prefix that fills the slot, kept pairs that were computed with it."""
    loaded, gate = load_chat_model(model, torch.float32, CPU), gate_for(read_published(model).text)
    huge = replace(gate, layers=tuple(replace(each, b2=each.b2 + 3e38) for each in gate.layers))
    for words in (28, 60):
        configured = chat(model, slots=[{"id": "arm", "text": "a" * words}])
        with pytest.raises(ConfigError, match=r"^chat.slots arm: the memory of the prefix is not finite"):
            build_chat(configured, loaded, "f", lambda *_: None, gate=huge)
        build_chat(configured, loaded, "f", lambda *_: None, gate=gate)


@pytest.mark.parametrize("sizes", [(4, 16, 28), (4, 20, 16), (0, 1, 2), (4, 16, 300)])
def test_a_chunk_and_a_decode_row_are_timed_without_a_fold(
    model: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
):
    rules = dict(zip(("sink", "window", "segment"), sizes, strict=True))
    gate = gate_for(read_published(model).text, **rules)
    loaded = load_chat_model(model, torch.float32, CPU)
    built = build_chat(chat(model), loaded, "f", lambda *_: None, gate=gate)
    timed: list[Segment[int]] = []
    launch = ChatEngine.launch

    def recording(engine: ChatEngine, planned: Pass[int], *arguments: Any, **options: Any) -> Any:
        timed.extend(planned.segments)
        return launch(engine, planned, *arguments, **options)

    monkeypatch.setattr(ChatEngine, "launch", recording)
    build.measure_times(built.engine, 256)
    rows = min(gate.rules.threshold - 2, build.PROBE_ROWS)
    assert [each.length for each in timed] == build.REPEATS * [1, rows, 1]
    assert all(each.before is Before.NOTHING and not each.gated for each in timed)


def test_prompts_beyond_the_positions_of_the_base_are_reported(model: Path):
    text = read_published(model).text
    gate, local = gate_for(text, "a" * 64), gate_for(text, "a" * 64, positions="local")
    far = chat(model, long={"length": 513})
    assert remarks(gate, far, text) == ["prompts of up to 513 tokens leave the 512 positions of the base"]
    assert remarks(local, far, text) == remarks(gate, chat(model, long={"length": 512}), text) == []
    assert remarks(None, far, text) == []


@pytest.mark.oracle("edgeinfinite-tiny")
@pytest.mark.parametrize(("name", "threshold"), [("llama", 20), ("qwen2", 21)])
def test_a_recorded_gate_is_read(name: str, threshold: int):
    bundle = ORACLES / "edgeinfinite-tiny" / name
    found = read(bundle / "base", long={"gate": str(bundle)})
    assert found is not None and found.rules.threshold == threshold and len(found.layers) == 4
