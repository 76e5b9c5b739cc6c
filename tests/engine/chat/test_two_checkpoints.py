"""A second checkpoint decodes what the first one has read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgeflow.config.service import load_config
from edgeflow.engine.chat.build import load_chat
from edgeflow.ipc.chat_messages import ChatDone
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.models.chat import ChatModel
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.chat.test_loop import CAPACITY, CPU, PROMPT, ChatBench, alone, start, tokens


@pytest.fixture(scope="module")
def twins(tmp_path_factory) -> tuple[Path, Path, Path]:
    """Two checkpoints of one shape, and a third of another."""
    paths = [tmp_path_factory.mktemp(name) for name in ("first", "second", "third")]
    write_chat_checkpoint(paths[0], "qwen2")
    write_chat_checkpoint(paths[1], "qwen2", intermediate_size=64)
    write_chat_checkpoint(paths[2], "qwen2", num_key_value_heads=3)
    return paths[0], paths[1], paths[2]


def test_another_checkpoint_may_decode_what_the_first_has_read(twins, policy):
    config = load_config(None, {"chat.model": str(twins[0]), "chat.decode_model": str(twins[1]), "chat.alias": "small"})
    both = load_chat(config, lambda *_: None)
    bench = ChatBench(policy, both)
    bench.tell(start(both.engine.model))
    bench.run(ChatDone)
    model, decode = both.engine.model, both.engine.decode
    kv, prompt = model.decoder.kv_slots(1, CAPACITY), model.text_prompt(PROMPT)
    expected = [next_token(model, model.embed(prompt.ids), 0, kv)]
    for place in range(len(prompt), len(prompt) + 7):
        expected.append(next_token(decode, decode.embed(expected[-1:]), place, kv))
    assert tokens(bench) == expected != alone(model)


@torch.inference_mode()
def next_token(model: ChatModel, rows: torch.Tensor, start: int, kv: KVSlots) -> int:
    """The token after rows that enter slot 0."""
    layout = PackedLayout.of([Span(0, start, len(rows))], CPU)
    hidden = model.decoder.forward(rows, layout, kv)
    return int(model.decoder.logits(hidden[-1:], "decode")[0].argmax())


def test_a_checkpoint_that_cannot_read_the_first_one_s_keys_is_rejected(twins):
    config = load_config(None, {"chat.model": str(twins[0]), "chat.decode_model": str(twins[2])})
    with pytest.raises(ConfigError, match=r"chat.decode_model: num_key_value_heads is 3, that of chat.model is 2"):
        load_chat(config, lambda *_: None)
