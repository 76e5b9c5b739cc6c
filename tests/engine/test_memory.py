"""KV memory: sized from what is free, refused with the sum, told at start."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edgeflow.commands.serving import ServicePrinter
from edgeflow.config.chat import ChatConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.chat import build as chat_build
from edgeflow.engine.chat.build import chat_bytes, load_chat
from edgeflow.engine.chat.memory import memory_need, weight_bytes
from edgeflow.engine.chat.precision import choose_weights
from edgeflow.engine.memory import (
    FIXED_BYTES,
    MOST_SESSIONS,
    KVNeed,
    activation_bytes,
    choose_sessions,
    describe,
    sessions_that_fit,
)
from edgeflow.kernels.kv.formats import DENSE, KVShape, slot_bytes
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.native.linear import missing
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.models.chat import load_chat_model
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.models.llama import LlamaConfig
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy, PublishedOpenVLA, count_weights
from edgeflow.service.observe.health import HealthState
from edgeflow.service.status import ServiceStatus
from edgeflow.worker import build
from edgeflow.worker.build import build_engine
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.quantised import quantised_copies
from tests.tiny_checkpoint import TinySize, write_checkpoint

GIB = 1 << 30
CPU = torch.device("cpu")
OPENVLA_7B = LlamaConfig(vocab_size=32064)
WEIGHTS_7B = 15_100_000_000  # bytes of OpenVLA-7B in bfloat16
CONTEXT = GIB // 2  # of CUDA itself
SLOT_7B = KVShape(layers=32, capacity=400, kv_heads=32, head_dim=128, dtype=torch.bfloat16)


def need_of_7b(**changes) -> KVNeed:
    """As `build_engine` makes it on CUDA: 256 image rows, 128 of text, 7 action tokens."""
    values = {
        "ring": 7,
        "spare": 1,
        "capacity": rounded_capacity(256 + 128 + 7),
        "slot_bytes": slot_bytes(DENSE, SLOT_7B),
        "reserve_bytes": FIXED_BYTES["cuda"] + activation_bytes(OPENVLA_7B, 1024, torch.bfloat16),
    }
    return KVNeed(**{**values, **changes})


amounts = st.integers(1, 1 << 20)
needs = st.builds(
    KVNeed,
    ring=st.integers(0, 64),
    spare=st.integers(0, 1),
    capacity=amounts,
    slot_bytes=amounts,
    reserve_bytes=st.integers(0, 1 << 40),
    chat_bytes=st.integers(0, 1 << 40),
    frame_bytes=st.integers(0, 1 << 30),
)


@given(needs, st.integers(-(1 << 40), 1 << 50), st.integers(1, 64))
def test_as_many_fit_as_the_sum_says_and_no_more(need: KVNeed, free: int, most: int):
    fitting = sessions_that_fit(need, free, most)
    assert 0 <= fitting <= most
    assert fitting == 0 or need.total_bytes(fitting) <= free
    assert fitting == most or need.total_bytes(fitting + 1) > free


@given(needs, st.integers(-(1 << 40), 1 << 50), st.none() | st.integers(1, 64))
def test_a_choice_fits_or_is_rejected_with_the_sum(need: KVNeed, free: int, wanted: int | None):
    try:
        sessions = choose_sessions(wanted, need, free)
    except ConfigError as error:
        assert need.total_bytes(wanted or 1) > free and error.text.startswith("max_sessions: ")
    else:
        assert sessions == wanted if wanted else 1 <= sessions <= MOST_SESSIONS
        assert need.kv_bytes(sessions) <= free
        assert need.total_bytes(sessions) <= free or (wanted is None and sessions == 1)


def test_the_24_gb_card_serves_openvla_7b_pipelined():
    """8 sessions, which were reserved whatever was free, never fitted."""
    need = need_of_7b()
    assert need.capacity == 400 and need.slot_bytes == 400 * GIB // 2048
    assert need.reserve_bytes == 7 * GIB // 4 + 1024 * (4 * 4096 + 4 * 4096 + 3 * 11008) * 2
    assert need.total_bytes(8) > 24 * GIB - WEIGHTS_7B
    for card, sessions in ((24_000_000_000, 4), (24 * GIB, 5), (32 * GIB, 8)):
        free = card - CONTEXT - WEIGHTS_7B
        assert choose_sessions(None, need, free) == sessions
        assert choose_sessions(sessions, need, free) == sessions
    assert describe(3, need, int(6.8 * GIB)) == (
        "KV: 3 sessions x 7 slots x 400 positions + 1 spare slot = 4.3 GiB of 6.8 GiB free"
    )


def test_memory_for_chat_is_kept_free():
    free = 24 * GIB - CONTEXT - WEIGHTS_7B
    assert choose_sessions(None, need_of_7b(chat_bytes=3 * GIB), free) == 3
    assert choose_sessions(None, need_of_7b(chat_bytes=3 * GIB), free, 2) == 2
    assert choose_sessions(None, need_of_7b(chat_bytes=30 * GIB), free) == 1, "a robot comes first"
    with pytest.raises(ConfigError, match=r"30.0 GiB for chat; .* lower max_prompt_tokens, or choose a smaller chat"):
        choose_sessions(1, need_of_7b(chat_bytes=30 * GIB), free)


def test_a_rejection_says_what_would_fit():
    free = 24 * GIB - CONTEXT - WEIGHTS_7B
    with pytest.raises(ConfigError) as refused:
        choose_sessions(8, need_of_7b(), free)
    assert refused.value.text == (
        "max_sessions: 8 sessions need 13.0 GiB: 57 slots x 209715200 bytes for 400 positions = 11.1 GiB, 1.9 GiB for "
        "activations and graphs; 9.4 GiB are free beside the weights: lower max_sessions (5 fit) or max_prompt_tokens"
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(write_checkpoint(tmp_path / "tiny"))


def test_slots_are_sized_from_what_is_free(checkpoint: str, monkeypatch: pytest.MonkeyPatch):
    config = ServiceConfig(model=checkpoint, device="cpu")
    plenty = build_engine(config)
    assert plenty.limits.max_sessions == MOST_SESSIONS
    assert plenty.engine.capacity == 4 + 128 + 7, "an instruction has no more tokens than it may"
    assert plenty.engine.kv.capacity == rounded_capacity(4 + 128 + 7) > plenty.engine.capacity
    assert plenty.memory.startswith("KV: 8 sessions x 7 slots x 144 positions = ")
    footprint = PublishedOpenVLA(Path(checkpoint), center_crop=False, kv_format=DENSE, control_rate_hz=0.0).footprint(
        torch.float32
    )
    need = build.kv_need(config, footprint, CPU)
    monkeypatch.setattr(build, "free_bytes", lambda device: need.total_bytes(4) - 1)
    assert build_engine(config).limits.max_sessions == 3
    assert build_engine(config, chat_bytes=need.kv_bytes(2)).limits.max_sessions == 1


def test_too_many_are_rejected_before_anything_is_loaded(checkpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OpenVLAPolicy, "__init__", lambda *_, **__: pytest.fail("the weights were loaded"))
    monkeypatch.setattr(build, "free_bytes", lambda device: FIXED_BYTES["cpu"])
    with pytest.raises(ConfigError, match=r"max_sessions: 4 sessions need .* are free beside the weights: lower"):
        build_engine(ServiceConfig(model=checkpoint, device="cpu", max_sessions=4))
    monkeypatch.setattr(build, "free_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"max_sessions: 1 sessions need"):
        build_engine(ServiceConfig(model=checkpoint, device="cpu"))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Numbers of every tensor that a model takes from its checkpoint, by name."""
    numbers: dict[str, int] = {}
    read = Weights.__getitem__

    def counting(weights: Weights, name: str) -> torch.Tensor:
        tensor = read(weights, name)
        numbers[weights._where + name] = tensor.numel()
        return tensor

    monkeypatch.setattr(Weights, "__getitem__", counting)
    return numbers


def test_the_headers_predict_what_a_policy_takes(checkpoint: str, taken: dict[str, int]):
    weights, image_tokens = count_weights(Path(checkpoint), load_config(Path(checkpoint)))
    policy = load_openvla(Path(checkpoint), torch.float32, CPU)
    assert image_tokens == policy.fixed_rows
    assert weights.decoder + weights.others == sum(taken.values())


def test_the_headers_predict_what_a_policy_in_4_bits_takes(tmp_path: Path):
    size = TinySize(hidden=64, mlp=96)
    source = write_checkpoint(tmp_path / "source", size)
    four, floats = quantised_copies(source, tmp_path, "language_model.", ["vision_backbone", "projector"])
    small, plain = (count_weights(each, load_config(each))[0] for each in (four, floats))
    weights = Weights(four, torch.float32, CPU).under("language_model.")
    layers = [name.removesuffix(".qweight") for name in weights if name.endswith(".qweight")]
    shapes = [tensor_shapes(floats)[f"language_model.{name}.weight"] for name in layers]
    held = [weights.linear(name, *shape).nbytes for name, shape in zip(layers, shapes, strict=True)]
    assert small.quantised == sum(held) > 0 == plain.quantised
    assert plain.decoder - small.decoder == sum(map(math.prod, shapes)) and plain.others == small.others


def test_the_headers_predict_what_chat_takes(chat_directory: Path, taken: dict[str, int]):
    chat = ChatConfig(model=str(chat_directory), dtype="float32", capacity=64)
    config = ServiceConfig(device="cpu", chat=chat)
    built = load_chat(config, lambda *_: None)
    need = memory_need(chat, built.engine.model.config, None, torch.float32, CPU, replays=False)
    assert need.slots * need.slot_bytes == built.engine.kv.nbytes
    assert chat_bytes(config) == 4 * sum(taken.values()) + need.total_bytes
    assert chat_bytes(ServiceConfig(chat=ChatConfig(enabled=False))) == 0


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied head"])
def test_fp8_weights_on_cuda_replace_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool):
    """One byte per weight of a projection or the head; `auto` takes none of them."""
    write_chat_checkpoint(tmp_path, "qwen2", tie_word_embeddings=tied)
    numbers = {name: math.prod(shape) for name, shape in tensor_shapes(tmp_path).items()}
    assert ("lm_head.weight" in numbers) != tied
    small = [name for name in numbers if name.endswith(("_proj.weight", "lm_head.weight"))]
    saved = sum(numbers[name] for name in small) - (numbers["model.embed_tokens.weight"] if tied else 0)
    monkeypatch.setattr(chat_build, "choose_device", lambda _: torch.device("cuda"))
    taken = {weights: bytes_of_chat(tmp_path, weights) for weights in ("float", "fp8", "auto")}
    assert taken["float"] - taken["fp8"] == saved > 0
    assert taken["auto"] == taken["float"]


def test_int8_weights_are_stored_beside_the_others(chat_directory: Path):
    numbers = sum(math.prod(shape) for shape in tensor_shapes(chat_directory).values())
    plain = bytes_of_chat(chat_directory, "float")
    assert [bytes_of_chat(chat_directory, weights) - plain for weights in ("int8", "auto")] == [numbers, numbers]


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied head"])
def test_emulated_fp8_weights_take_as_much_as_float_ones(tmp_path: Path, tied: bool):
    """A tied head is stored apart from the embedding by both, packed or rounded."""
    write_chat_checkpoint(tmp_path, "qwen2", tie_word_embeddings=tied)
    assert bytes_of_chat(tmp_path, "fp8") == bytes_of_chat(tmp_path, "float")


def allocated(*roots: object) -> int:
    """Bytes of all tensors that can be reached from some objects, each memory once."""
    seen: set[int] = set()
    memory: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(each))
        if not isinstance(each, torch.Tensor):
            waiting += gc.get_referents(each)
        elif each.is_mkldnn:
            memory[id(each)] = each.numel() * each.element_size()
        else:
            memory[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
    return sum(memory.values())


@pytest.mark.parametrize("head", ["float", "int8"])
@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied head"])
@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.skipif(bool(missing()), reason="torch's products hold larger scales and zero points")
def test_predicted_memory_equals_allocated_memory(tmp_path: Path, bits: int, tied: bool, head: str):
    """Within 2 %, for biases are widened; a second copy of the embedding would be 20 %, of the projections 15 %."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 1040}
    write_chat_checkpoint(tmp_path / "source", "qwen2", tie_word_embeddings=tied, **sizes)
    path = tmp_path / "source" if bits == 16 else quantised_copies(tmp_path / "source", tmp_path, "model.", [])[0]
    chosen = choose_weights(ChatConfig(head=head), path, torch.bfloat16, CPU)
    model = load_chat_model(path, torch.bfloat16, CPU, table=chosen.table, head=head)
    foretold = weight_bytes("float", path, torch.bfloat16, CPU, head)
    assert allocated(vars(model.decoder)) == pytest.approx(foretold, rel=0.02)


def bytes_of_chat(directory: Path, weights: str) -> int:
    return chat_bytes(ServiceConfig(chat=ChatConfig(model=str(directory), weights=weights)))


def test_the_line_is_printed_at_start(capsys: pytest.CaptureFixture[str]):
    told = "KV: 3 sessions x 7 slots x 400 positions = 4.1 GiB of 6.8 GiB free"
    ServicePrinter(Console(width=200))(ServiceStatus(phase=HealthState.READY, memory=told))
    assert told in capsys.readouterr().out
