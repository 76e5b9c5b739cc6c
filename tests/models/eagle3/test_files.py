"""Heads as they are published: names, files and taps, and one message for each head that does not fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.models.eagle3.config import BIN_FILE, IDS, read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.llama import LlamaDecoder
from edgeflow.text.weight_files import SINGLE_FILE
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.models.eagle3.random_head import (
    BASE,
    CPU,
    DRAFTS,
    ENTRIES,
    VOCABULARY,
    random_base,
    random_tensors,
    write_head,
)

Change = Callable[[dict[str, Any], dict[str, Tensor]], Any]


@pytest.fixture(scope="module")
def base() -> LlamaDecoder:
    return random_base(dtype=torch.float32)


def read(folder: Path, base: LlamaDecoder) -> Eagle3Head:
    return Eagle3Head.read(folder, read_eagle3(folder, base.config), base, torch.float32, CPU)


@torch.inference_mode()
def outputs(head: Eagle3Head) -> Tensor:
    """Log probabilities of some rows [5, Vd]."""
    draw = torch.Generator().manual_seed(1)
    feature = head.project(torch.randn(5, head.config.feature_width, generator=draw))
    embedded = head.embed(torch.arange(3, 8))
    kv = head.kv_slots(1, 16)
    return head.log_probabilities(head.forward(feature, embedded, PackedLayout.of([Span(0, 0, 5)], CPU), kv))


def as_vllm(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {name: name.replace("midlayer.", "layers.0.") for name in tensors} | {"d2t": "draft_id_to_target_id"}
    return {names[name]: tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("bias", [False, True])
def test_all_ways_to_write_a_head_are_one(tmp_path: Path, base: LlamaDecoder, bias: bool):
    tensors = random_tensors(bias=bias)
    written = {
        "plain": write_head(tmp_path / "plain", ENTRIES, tensors),
        "bin": write_head(tmp_path / "bin", ENTRIES, OrderedDict(tensors), as_bin=True),
        "vllm": write_head(tmp_path / "vllm", ENTRIES, as_vllm(tensors)),
        "speculators": write_head(
            tmp_path / "speculators",
            {
                "transformer_layer_config": {k: v for k, v in ENTRIES.items() if k != "draft_vocab_size"},
                "draft_vocab_size": DRAFTS,
                "target_hidden_size": None,
            },
            as_vllm(tensors),
            as_bin=True,
        ),
    }
    heads = {name: read(folder, base) for name, folder in written.items()}
    assert all(each.config == heads["plain"].config for each in heads.values())
    assert heads["plain"].config.text.attention_bias is bias
    expected = outputs(heads["plain"])
    assert all(torch.equal(outputs(each), expected) for each in heads.values())
    targets = tensors["t2d"].nonzero()[:, 0]
    assert all(torch.equal(each.targets, targets) for each in heads.values())


def test_the_embedding_is_the_bases_or_its_own(tmp_path: Path, base: LlamaDecoder):
    ids = torch.tensor([0, 39])
    shared = read(write_head(tmp_path / "shared", ENTRIES, random_tensors()), base)
    assert not shared.config.own_embedding and torch.equal(shared.embed(ids), base.embed(ids))
    assert shared._embedding is base.embedding
    narrow = {**ENTRIES, "hidden_size": 16, "target_hidden_size": BASE.hidden_size}
    table = torch.randn(VOCABULARY, 16)
    tensors = {**random_tensors(narrow), "embed_tokens.weight": table}
    own = read(write_head(tmp_path / "own", narrow, tensors), base)
    assert own.config.own_embedding and torch.equal(own.embed(ids), table[ids])
    assert outputs(own).shape == (5, DRAFTS)


def test_equal_vocabularies_need_no_offsets(tmp_path: Path, base: LlamaDecoder):
    entries = {**ENTRIES, "draft_vocab_size": VOCABULARY}
    head = read(write_head(tmp_path / "without", entries, random_tensors(entries)), base)
    assert torch.equal(head.targets, torch.arange(VOCABULARY))
    tensors = {**random_tensors(entries), "d2t": torch.zeros(VOCABULARY, dtype=torch.long)}
    del entries["draft_vocab_size"]
    other = read(write_head(tmp_path / "silent", entries, tensors), base)
    assert other.config == head.config and torch.equal(outputs(other), outputs(head))


@pytest.mark.parametrize(
    "entries, layers, taps",
    [
        ({}, 7, (2, 3, 4)),
        ({}, 28, (2, 14, 25)),
        ({"eagle_config": {IDS: [1, 13, 24], "use_aux_hidden_state": True}}, 28, (2, 14, 25)),
        ({IDS: [2, 14, 25]}, 28, (2, 14, 25)),
        ({IDS: [2, 14, 25], "eagle_config": {IDS: [1, 13, 24]}}, 28, (2, 14, 25)),
        ({"eagle_config": {IDS: [-1, 0, 2]}}, 4, (0, 1, 3)),
        ({IDS: [0, 6]}, 7, (0, 6)),
    ],
)
def test_taps(tmp_path: Path, entries: dict[str, Any], layers: int, taps: tuple[int, ...]):
    folder = write_head(tmp_path, {**ENTRIES, **entries}, random_tensors(taps=len(taps)))
    config = read_eagle3(folder, replace(BASE, num_hidden_layers=layers))
    assert config.taps == taps and config.feature_width == len(taps) * BASE.hidden_size


def test_the_layer_is_as_config_json_says(tmp_path: Path):
    given = {"norm_before_residual": True, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
    config = read_eagle3(write_head(tmp_path, {**ENTRIES, **given}, random_tensors()), BASE)
    text = config.text
    assert config.norm_before_residual and text.rope.sections == (2, 1, 1)
    assert (text.num_hidden_layers, text.rope_theta, text.rms_norm_eps) == (1, 500.0, 1e-5)
    assert config.attention.linears["q_proj"] == (32, 48) and config.attention.linears["o_proj"] == (24, 32)
    silent = {name: value for name, value in ENTRIES.items() if name != "rope_theta"}
    assert read_eagle3(write_head(tmp_path, silent, random_tensors()), BASE).text.rope_theta == 10_000


def entry(**changes: Any) -> Change:
    return lambda entries, _: entries.update(changes)


def tensor(name: str, value: Tensor | None) -> Change:
    return lambda _, tensors: tensors.pop(name) if value is None else tensors.update({name: value})


REFUSED: list[tuple[Change, type[Exception], str]] = [
    (entry(vocab_size=41), ConfigError, "vocab_size is 41, but the base has vocab_size 40: take a head that"),
    (entry(target_hidden_size=32), ConfigError, "target_hidden_size is 32, but the base has hidden_size 24"),
    (entry(hidden_size=16), ConfigError, "hidden_size is 16, but the base has hidden_size 24: .* needs embed_tokens"),
    (tensor("fc.weight", torch.zeros(24, 96)), ConfigError, "fc.weight has 96 inputs, but 3 taps .* 24 have 72"),
    (entry(num_hidden_layers=2), ConfigError, "num_hidden_layers is 2; a draft head of 1 layer"),
    (tensor("layers.1.hidden_norm.weight", torch.ones(24)), ConfigError, "layers.1.hidden_norm.weight belongs to a"),
    (tensor("midlayer.self_attn.o_proj.bias", torch.ones(24)), ConfigError, "o_proj.bias belongs to a kind"),
    (entry(hidden_act="gelu"), ConfigError, "hidden_act 'gelu' is not supported; supported: silu"),
    (entry(eagle_config={"use_aux_hidden_state": False}), ConfigError, "use_aux_hidden_state is false"),
    (entry(**{IDS: [2, 3, 7]}), ConfigError, r"inputs of layers \[2, 3, 7\] are read, but the base has layers 0 to 6"),
    (entry(eagle_config={IDS: [1, 2, 6]}), ConfigError, r"inputs of layers \[2, 3, 7\] .* layers 0 to 6"),
    (entry(**{IDS: [4, 3, 2]}), ConfigError, r"\[4, 3, 2\] .* they must ascend"),
    (entry(**{IDS: [-1, 3, 4]}), ConfigError, r"\[-1, 3, 4\]"),
    (
        entry(**{IDS: [1, 2, 3], "eagle_config": {IDS: [1, 2, 3]}}),
        ConfigError,
        r"\[1, 2, 3\] are outputs, so inputs \[",
    ),
    (entry(**{IDS: []}), CheckpointError, f"{IDS} must be a list of integers"),
    (entry(**{IDS: [2.0, 3, 4]}), CheckpointError, "must be a list of integers"),
    (entry(eagle_config=3), CheckpointError, "eagle_config must be an object, got 3"),
    (entry(transformer_layer_config=[1]), CheckpointError, "transformer_layer_config must be an object"),
    (entry(draft_vocab_size=41), CheckpointError, "draft_vocab_size must be from 1 to vocab_size 40: 41"),
    (entry(draft_vocab_size=True), CheckpointError, "draft_vocab_size .* True"),
    (
        entry(draft_vocab_size=17),
        CheckpointError,
        r"lm_head.weight has shape \[18, 24\], but config.json says \[17, 24\]",
    ),
    (entry(norm_before_residual=1), CheckpointError, "norm_before_residual must be true or false, got 1"),
    (entry(attention_bias=True), CheckpointError, "attention_bias is true, but midlayer.self_attn.q_proj.bias is"),
    (entry(intermediate_size=None), CheckpointError, "config.json lacks intermediate_size"),
    (entry(num_key_value_heads=3), CheckpointError, "cannot be used: 3 KV heads do not divide 4 heads"),
    (entry(head_dim=6), CheckpointError, r"q_proj.weight has shape \[32, 48\], but config.json says \[24, 48\]"),
    (entry(rope_scaling=7), CheckpointError, "config.json has a value that cannot be used"),
    (tensor("midlayer.hidden_norm.weight", None), CheckpointError, "midlayer.hidden_norm.weight is missing"),
    (tensor("d2t", None), CheckpointError, "d2t is missing"),
    (tensor("draft_id_to_target_id", torch.zeros(18).long()), CheckpointError, "holds a tensor twice"),
    (tensor("d2t", torch.zeros(17).long()), CheckpointError, r"d2t has shape \[17\], but config.json says \[18\]"),
    (tensor("fc.weight", torch.zeros(72)), CheckpointError, r"fc.weight has shape \[72\]"),
]


@pytest.mark.parametrize("change, kind, message", REFUSED, ids=[message for *_, message in REFUSED])
@pytest.mark.parametrize("as_bin", [False, True])
def test_heads_that_are_rejected(tmp_path: Path, change: Change, kind: type[Exception], message: str, as_bin: bool):
    entries, tensors = dict(ENTRIES), random_tensors()
    change(entries, tensors)
    write_head(tmp_path, entries, tensors, as_bin=as_bin)
    with pytest.raises(kind, match=message):
        read_eagle3(tmp_path, BASE)


def test_a_base_of_few_layers_needs_taps_by_name(tmp_path: Path):
    write_head(tmp_path, ENTRIES, random_tensors())
    with pytest.raises(ConfigError, match="at least 7 layers, this one has 6: name others in eagle_aux"):
        read_eagle3(tmp_path, replace(BASE, num_hidden_layers=6))


@pytest.mark.parametrize("token, offset, target", [(17, 30, 47), (0, -1, -1)])
def test_a_target_outside_the_vocabulary_is_rejected(
    tmp_path: Path, base: LlamaDecoder, token: int, offset: int, target: int
):
    tensors = random_tensors()
    tensors["d2t"][token] = offset
    folder = write_head(tmp_path, ENTRIES, tensors)
    with pytest.raises(
        CheckpointError, match=rf"d2t\[{token}\] makes token {token} .* token {target} .* vocab_size is 40"
    ):
        read(folder, base)


def test_offsets_are_whole_numbers(tmp_path: Path, base: LlamaDecoder):
    folder = write_head(tmp_path, ENTRIES, {**random_tensors(), "d2t": torch.zeros(DRAFTS)})
    with pytest.raises(CheckpointError, match=r"d2t must be 18 integers, got \[18\] of torch.float32"):
        read(folder, base)


def test_broken_files_are_rejected(tmp_path: Path):
    folder = write_head(tmp_path / "head", ENTRIES, {})
    (folder / SINGLE_FILE).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors is truncated or not safetensors"):
        read_eagle3(folder, BASE)
    (folder / SINGLE_FILE).unlink()
    with pytest.raises(CheckpointError, match=f"has neither {SINGLE_FILE} nor {BIN_FILE}"):
        read_eagle3(folder, BASE)
    (folder / BIN_FILE).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match=rf"{BIN_FILE} is truncated, or not a file of tensors"):
        read_eagle3(folder, BASE)
    torch.save({"fc.weight": object}, folder / BIN_FILE)
    with pytest.raises(CheckpointError, match=BIN_FILE):
        read_eagle3(folder, BASE)
    save_file(random_tensors(), folder / SINGLE_FILE)
    assert read_eagle3(folder, BASE).draft_vocabulary == DRAFTS
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_eagle3(tmp_path / "absent", BASE)
