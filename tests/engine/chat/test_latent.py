"""A model with latent slots in the chat engine: what it is told to take, and what it cannot have."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.chat import build as chat_build
from edgeflow.engine.chat.build import build_chat, chat_bytes, load_chat
from edgeflow.engine.chat.memory import memory_need, weight_bytes
from edgeflow.kernels.kv.formats import CONFIGURED, LATENT, configured_format
from edgeflow.kernels.native.linear import missing
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import YARN, write_chat_checkpoint
from tests.engine.test_memory import allocated
from tests.quantised import quantised_copies

CPU = torch.device("cpu")
POSITION = 3 * 28 * 4  # layers, a latent of 20 numbers and a key of 8, float32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("latent")
    write_chat_checkpoint(directory, "deepseek_v3", q_lora_rank=24, rope_parameters=YARN)
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> ChatModel:
    return load_chat_model(directory, torch.float32, CPU)


def chat(**changes: object) -> ChatConfig:
    return ChatConfig.model_validate({"alias": "small", "capacity": 96, **changes})


def test_the_slots_are_reported_at_start(model: ChatModel):
    built = build_chat(chat(slots=[{"id": "rest", "text": "the arm is at rest"}]), model, "f", lambda *_: None)
    ready = built.ready()
    assert ready.kv_bytes == 2 * 96 * POSITION
    assert ready.numbers == "float32, float weights, latent KV in float32"
    assert ready.family == "deepseek_v3" and ready.capacity == 96


def test_the_headers_predict_what_it_takes(directory: Path):
    configured = ChatConfig(model=str(directory), dtype="float32", weights="float", capacity=64)
    config = ServiceConfig(device="cpu", chat=configured)
    built = load_chat(config, lambda *_: None)
    need = memory_need(configured, built.engine.model.config, None, torch.float32, CPU, replays=False)
    weights = 4 * sum(math.prod(shape) for shape in tensor_shapes(directory).values())
    assert built.engine.kv.nbytes == 64 * POSITION
    assert need.slot_bytes == 64 * POSITION
    assert chat_bytes(config) == weights + need.total_bytes


@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.skipif(bool(missing()), reason="torch's products hold larger scales and zero points")
def test_predicted_memory_equals_allocated_memory(tmp_path: Path, bits: int):
    """Of 4 bits too, where the projection of keys and values becomes floats."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 1040}
    sizes |= {"kv_lora_rank": 64, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    write_chat_checkpoint(tmp_path / "source", "deepseek_v3", **sizes)
    path = tmp_path / "source" if bits == 16 else quantised_copies(tmp_path / "source", tmp_path, "model.", [])[0]
    model = load_chat_model(path, torch.bfloat16, CPU)
    foretold = weight_bytes("float", path, torch.bfloat16, CPU)
    assert allocated(vars(model.decoder)) == pytest.approx(foretold, rel=0.02)


def test_formats_of_heads_are_rejected(directory: Path, model: ChatModel):
    refusal = r"chat\.kv: int8 is for keys and values of heads, .* latent row per position for both: set it to model"
    with pytest.raises(ConfigError, match=refusal):
        build_chat(chat(kv="int8"), model, "f", lambda *_: None)
    with pytest.raises(ConfigError, match=refusal):
        chat_bytes(ServiceConfig(device="cpu", chat=ChatConfig(model=str(directory), kv="int8")))
    for name in CONFIGURED.keys() - {"model"}:
        with pytest.raises(ConfigError, match=f"kv: {name} is for keys and values of heads"):
            configured_format("kv", name, LATENT)
    assert configured_format("kv", "model", LATENT) is LATENT


def test_no_other_format_is_recommended_where_memory_is_short(model: ChatModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_build, "free_bytes", lambda device: 10)
    with pytest.raises(ConfigError, match=r"chat\.capacity: no memory for 1 slots of 96 positions") as refused:
        build_chat(chat(), model, "f", lambda *_: None)
    assert "chat.kv" not in str(refused.value)


def test_a_gate_reads_heads(directory: Path, tmp_path: Path):
    gate = tmp_path / "gate.json"
    gate.write_text("{}")
    config = chat(model=str(directory), long={"gate": str(gate)})
    with pytest.raises(
        ConfigError, match="deepseek_v3: its slots are latent, a gate reads the keys and values of heads"
    ):
        chat_build.read_long(config, directory, CPU, torch.float32)


def test_a_decode_model_must_have_the_same_latents(directory: Path, tmp_path: Path):
    other = tmp_path / "other"
    write_chat_checkpoint(other, "deepseek_v3", q_lora_rank=24, rope_parameters=YARN, v_head_dim=12)
    configured = ChatConfig(
        model=str(directory), decode_model=str(other), dtype="float32", weights="float", capacity=64
    )
    with pytest.raises(ConfigError, match=r"chat\.decode_model: latent is LatentSizes\(.*value=12"):
        load_chat(ServiceConfig(device="cpu", chat=configured), lambda *_: None)
