"""In which numbers chat computes: chosen by configuration or measurement, told at start, and what 8 bits cost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.config.service import load_config
from edgeflow.engine.chat import build as chat_build
from edgeflow.engine.chat import precision as chat_numbers
from edgeflow.engine.chat.build import build_chat, chat_bytes, load_chat
from edgeflow.engine.chat.memory import SlotSize
from edgeflow.engine.chat.precision import choose_chat_dtype, choose_weights, row_error
from edgeflow.kernels.kv.formats import CONFIGURED, KVShape, slot_bytes
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.dimensions import STAGES
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.weights import Int8Weight
from edgeflow.lab.tuning.subject import model_shape
from edgeflow.lab.verify.chat_modes import ChatModes, PromptCase
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.vocabulary import HEADS
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import write_chat_checkpoint

CPU = torch.device("cpu")
LONG = "the arm is at rest, the cup is red, and the door to the left of it is closed. where is the cup?"
TEXTS = ["the arm is at rest", "the cup is red. what is red?", "a"]


@pytest.fixture(scope="module")
def model(chat_directory) -> ChatModel:
    return load_chat_model(chat_directory, torch.float32, CPU)


def chat(**changes: object) -> ChatConfig:
    return ChatConfig.model_validate({"alias": "small", "capacity": 96, **changes})


def build(model: ChatModel, **changes: object) -> chat_build.BuiltChat:
    return build_chat(chat(**changes), model, "f", lambda *_: None)


def test_int8_kv_is_served_and_its_memory_is_reported(model):
    """A head of one position: D numbers and a scale in place of D numbers of 4 bytes."""
    both = {kv: build(model, kv=kv, slots=[{"id": "rest", "text": TEXTS[0]}]) for kv in ("model", "int8")}
    heads = model.config.num_hidden_layers * 2 * 2 * 96 * model.config.num_key_value_heads
    width, size = model.config.head_dim, SlotSize.of(chat(), model.config, None)
    taken = {kv: 2 * size.slot_bytes(model.config, torch.float32, CONFIGURED[kv]) for kv in both}
    assert both["int8"].ready().kv_bytes == heads * (width + 4) == taken["int8"]
    assert both["model"].ready().kv_bytes == heads * 4 * width == taken["model"]
    assert both["int8"].ready().numbers == "float32, float weights, KV in int8"
    assert both["model"].ready().numbers == "float32, float weights, KV in float32"


def test_int8_slots_that_do_not_fit_are_rejected_with_the_sum(model, monkeypatch):
    monkeypatch.setattr(chat_build, "free_bytes", lambda device: 10)
    with pytest.raises(
        ConfigError,
        match=r"1 slots of 96 positions: 1 x 13824 bytes in 3 layers, and .* are 1 MiB, 0 MiB are free",
    ):
        build(model, kv="int8")


@pytest.mark.parametrize(("layers", "capacity", "advised"), [(3, 96, "int8"), (24, 96, "int8"), (24, 2048, "int4")])
def test_the_format_is_advised_whose_slot_takes_least(model, monkeypatch, layers: int, capacity: int, advised: str):
    """Short slots keep most of their keys as they are, and few layers share those of a pass."""
    shape = KVShape(layers=layers, capacity=capacity, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    taken = {kv: slot_bytes(CONFIGURED[kv], shape) for kv in ("model", "int8", "int4")}
    assert taken[advised] == min(taken.values())
    monkeypatch.setattr(chat_build, "free_bytes", lambda device: 10)
    monkeypatch.setattr(LlamaConfig, "kv_shape", lambda *_: shape)
    with pytest.raises(ConfigError, match=rf"or choose chat\.kv {advised}$"):
        build(model)


def test_a_format_that_the_device_lacks_is_rejected_by_the_forecast_which_comes_first(chat_directory):
    changes = {"device": "cpu", "chat.model": str(chat_directory), "chat.kv": "fp8"}
    with pytest.raises(ConfigError, match=r"^chat\.kv: fp8 needs a CUDA device"):
        chat_bytes(load_config(None, changes))


@pytest.mark.parametrize("way", ["chunks of 1", "chunks of 5", "chunks of 64", "prefix", "prefix, copied", "packed"])
@pytest.mark.parametrize("kv", ["int8", "fp8", "int4"])
def test_kv_of_fewer_bits_gives_one_answer_in_every_mode(model, kv, way):
    ways = ChatModes(model, CONFIGURED[kv]).all()
    asked = [PromptCase(model.text_prompt(text), 12) for text in (*TEXTS, LONG)]
    assert [tokens for tokens, _ in ways[way](asked)] == [tokens for tokens, _ in ways["alone"](asked)]


@pytest.mark.parametrize(("kv", "most"), [("int8", 0.05), ("fp8", 0.1), ("int4", 0.3)])
def test_kv_of_fewer_bits_is_close_to_the_models_own(model, kv, most):
    asked = [PromptCase(model.text_prompt(text), 1) for text in (LONG, LONG[3:])]
    exact, found = (ChatModes(model, CONFIGURED[each]).all()["alone"](asked) for each in ("model", kv))
    for (_, (wanted,)), (_, (other,)) in zip(exact, found, strict=True):
        assert most / 100 < (other - wanted).abs().mean() / wanted.std() < most


def test_weights_that_are_named_serve(chat_directory):
    exact, eight = (
        choose_weights(chat(weights=name), chat_directory, torch.float32, CPU) for name in ("float", "int8")
    )
    assert (exact.line, eight.line) == ("float weights", "int8 weights")
    models = [load_chat_model(chat_directory, torch.float32, CPU, table=each.table) for each in (exact, eight)]
    errors = [row_error(each, each.decoder.kv_slots(1, 32), each.text_prompt(TEXTS[0])) for each in models]
    assert errors[0] < 1e-5 < 1e-3 < errors[1] < 0.05


def test_a_prompt_meets_the_checkpoints_own_weights(chat_directory):
    exact, eight = (
        load_chat_model(chat_directory, torch.float32, CPU, table=table)
        for table in (built_in_table(), built_in_table().converting("int8"))
    )
    wanted, found = (
        ChatModes(each).all()["alone"]([PromptCase(each.text_prompt(TEXTS[1]), 2)])[0][1] for each in (exact, eight)
    )
    assert torch.equal(found[0], wanted[0]), "the prompt's last row"
    assert not torch.equal(found[1], wanted[1]), "a decode row"


@pytest.mark.parametrize(("gain", "weights"), [(1.1, "float"), (3.0, "int8")])
def test_auto_takes_eight_bits_where_they_are_clearly_faster(chat_directory, monkeypatch, gain, weights):
    shapes: list[int] = []

    def times(calls, device, samples):
        shapes.append(len(calls))
        return {"exact": gain * 100.0, "other": 100.0}

    monkeypatch.setattr(chat_numbers, "median_us", times)
    chosen = choose_weights(chat(weights="auto"), chat_directory, torch.float32, CPU)
    assert chosen.line == f"{weights} weights (auto: a row meets int8 ones {gain} times as fast)"
    assert shapes == [2]
    fewer = built_in_table().converting("int8") if weights == "int8" else built_in_table()
    model, other = (load_chat_model(chat_directory, torch.float32, CPU, table=each) for each in (chosen.table, fewer))
    row = torch.randn(1, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.decoder.logits(row, "decode"), other.decoder.logits(row, "decode"))


def test_auto_takes_no_fp8(chat_directory):
    cuda = torch.device("cuda")
    assert choose_weights(chat(weights="auto"), chat_directory, torch.bfloat16, cuda).line == "float weights"


def test_operators_are_looked_up_as_the_tuner_names_them(chat_directory):
    names: set[str] = set()

    class Spying(OperatorTable):
        def choose(self, context, hardware, dtype):
            names.add(context.model_name)
            return super().choose(context, hardware, dtype)

    load_chat_model(chat_directory, torch.float32, CPU, table=Spying(BUILT_IN, []))
    assert names == {model_shape(str(chat_directory), 16).family}


def test_the_start_reports_weights_and_their_error(chat_directory):
    steps: list[str] = []
    config = load_config(None, {"chat.model": str(chat_directory), "chat.weights": "int8", "chat.capacity": 64})
    built = load_chat(config, lambda step, done, total: steps.append(step))
    assert built is not None and steps == ["int8 weights"]
    told = r"float32, int8 weights, \d+\.\d% of the logits' spread off, KV in float32"
    assert re.fullmatch(told, built.ready().numbers)


@pytest.mark.parametrize(
    ("published", "able", "expected"),
    [
        ("bfloat16", True, torch.bfloat16),
        ("float16", True, torch.bfloat16),
        ("bfloat16", False, torch.float32),
        ("float32", True, torch.float32),
        (None, True, torch.float32),
    ],
)
def test_the_dtype_on_a_cpu_follows_the_checkpoint_where_the_cpu_can(tmp_path, monkeypatch, published, able, expected):
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": published} if published else {}))
    monkeypatch.setattr(chat_numbers, "_multiplies_bfloat16", lambda: able)
    assert choose_chat_dtype("auto", tmp_path, CPU) == expected
    assert choose_chat_dtype("float32", tmp_path, CPU) == torch.float32
    assert choose_chat_dtype("auto", tmp_path, torch.device("cuda")) == torch.bfloat16


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tied")
    write_chat_checkpoint(directory, "qwen2", tie_word_embeddings=True)
    return directory


def test_a_tied_head_in_8_bits_is_the_embedding(tied):
    chosen = choose_weights(chat(head="int8"), tied, torch.float32, CPU)
    assert chosen.line == "float weights, head in int8"
    exact, eight = (load_chat_model(tied, torch.float32, CPU, table=chosen.table, head=name).decoder for name in HEADS)
    ids = torch.arange(exact.config.vocab_size)
    rows, found = exact.embed(ids), eight.embed(ids)
    assert torch.equal(found, Int8Weight.of(rows).floats()) and found.dtype == torch.float32
    hidden = torch.randn(5, exact.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for stage in STAGES:  # a matrix in 7 bits is off by 0.013, rows in 7 bits by as much
        wanted, given = (each.logits(hidden, stage) for each in (exact, eight))
        assert 1e-3 < (given - wanted).norm() / wanted.norm() < 0.012
    held = {each.data_ptr() for each in (eight.embedding.weight.values, eight._stages["decode"].head._values)}
    assert len(held) == 1


def test_a_head_apart_leaves_the_embedding_as_it_is(chat_directory):
    exact, eight = (load_chat_model(chat_directory, torch.float32, CPU, head=name).decoder for name in HEADS)
    ids = torch.arange(9)
    assert not exact.config.tie_word_embeddings and torch.equal(eight.embed(ids), exact.embed(ids))
    hidden = torch.randn(2, exact.config.hidden_size)
    assert not torch.equal(eight.logits(hidden, "decode"), exact.logits(hidden, "decode"))


def test_a_head_in_8_bits_is_rejected_where_nothing_serves_it(tied):
    with pytest.raises(ConfigError, match=r"chat\.head: int8: no operator serves such a head on cuda; use float"):
        choose_weights(chat(head="int8"), tied, torch.bfloat16, torch.device("cuda"))


def test_the_start_reports_the_format_of_the_head(tied):
    changes = {"chat.model": str(tied), "chat.head": "int8", "chat.capacity": 64}
    built = load_chat(load_config(None, changes), lambda *_: None)
    assert built.ready().numbers.startswith("float32, float weights, head in int8, ")
