"""Whole checkpoints: the variants that are published, every stage against the original, and damaged directories."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.openvla_policy import embed_prefill, load_openvla
from edgeflow.models.checkpoint import read_tensors
from edgeflow.models.llama import LlamaConfig
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.text.weight_files import INDEX_FILE, SINGLE_FILE
from edgeflow_client.errors import CheckpointError
from tests.oracles import ORACLES
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")
ORACLE = ORACLES / "openvla-tiny"
IMAGE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


def load(directory: Path, **options) -> OpenVLAPolicy:
    return load_openvla(directory, torch.float32, CPU, **options)


def change(path: Path, **entries: object) -> None:
    """Entries of a JSON file; None takes an entry away."""
    values = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def rename_tensors(directory: Path, old: str, new: str) -> None:
    tensors = load_file(directory / SINGLE_FILE)
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, directory / SINGLE_FILE)


@torch.inference_mode()
def greedy(policy: OpenVLAPolicy, instruction: str = "pick up the cup") -> tuple[list[int], torch.Tensor]:
    """K tokens of one frame, a pass each, and the first pass's logits [V]."""
    (hidden,) = embed_prefill(policy, policy.preprocess(IMAGE)[None], [policy.prompt_ids(instruction)])
    kv = policy.decoder.kv_slots(1, len(hidden) + policy.K)
    tokens, first, start = [], None, 0
    while len(tokens) < policy.K:
        out = policy.decoder.forward(hidden, PackedLayout.of([Span(0, start, len(hidden))], CPU), kv)
        logits = policy.decoder.logits(out[-1:], "prefill")[0]
        first = logits if first is None else first
        tokens.append(int(logits.argmax()))
        start += len(hidden)
        hidden = policy.decoder.embed(torch.tensor(tokens[-1:]))
    return tokens, first


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def test_properties_of_a_policy(directory: Path):
    policy = load(directory)
    assert (policy.K, policy.fixed_rows, policy.unnorm_keys) == (7, 4, ("tiny",))
    ids = policy.prompt_ids("go")
    pixels = policy.preprocess(IMAGE)
    assert pixels.shape == (6, 28, 28) and pixels.dtype == torch.float32
    first, second = embed_prefill(policy, torch.stack([pixels, 1 - pixels]), [ids, ids[:3]])
    assert first.shape == (4 + len(ids), 32) and second.shape == (4 + 3, 32)
    text = policy.decoder.embed(torch.tensor(ids))
    assert torch.equal(first[0], text[0]) and torch.equal(first[5:], text[1:])
    image = policy.vision.project(policy.vision.features(pixels[None]))[0]
    torch.testing.assert_close(first[1:5], image, atol=1e-6, rtol=1e-5)
    assert policy.decode_actions([383] * 7).shape == (7,)


def test_the_projector_is_three_layers_with_exact_gelu_between(directory: Path):
    tensors = load_file(directory / SINGLE_FILE)
    features = torch.randn(1, 4, 48)
    linears = [(tensors[f"projector.fc{index}.weight"], tensors[f"projector.fc{index}.bias"]) for index in (1, 2, 3)]
    x = features
    for index, (weight, bias) in enumerate(linears):
        x = x if index == 0 else 0.5 * x * (1 + torch.erf(x / 2**0.5))
        x = x @ weight.T + bias
    torch.testing.assert_close(
        load(directory).vision.project([features[..., :24], features[..., 24:]]), x, atol=1e-5, rtol=1e-5
    )


def test_the_language_model_of_a_configuration_that_stores_only_what_differs(directory: Path):
    """The base configuration's defaults, not Llama-2's: eps 1e-6."""
    from transformers import LlamaConfig as TheirConfig

    theirs = TheirConfig()
    for name in ("rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "hidden_size", "num_hidden_layers"):
        assert getattr(LlamaConfig(), name) == getattr(theirs, name)
    assert LlamaConfig().intermediate_size == theirs.intermediate_size and LlamaConfig().rope_theta == 10000.0
    text = load_config(directory).text
    assert (text.rms_norm_eps, text.rope_theta, text.hidden_size) == (1e-6, 10000.0, 32)


@pytest.mark.parametrize(
    "entry", [{"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}]
)
def test_rope_theta_under_both_names(directory: Path, entry: dict[str, object]):
    change(directory / "config.json", **text_config(**entry))
    assert load_config(directory).text.rope_theta == 5e5


def test_key_value_heads_are_the_heads_unless_stated(directory: Path):
    change(directory / "config.json", **text_config())
    assert load_config(directory).text.num_key_value_heads == 4


def test_the_first_release_has_one_tower_and_a_chat_prompt(tmp_path: Path):
    directory = write_checkpoint(tmp_path / "model", TinySize(v01=True), llm_backbone_id="vicuna-v15-7b")
    policy = load(directory)
    assert policy.preprocess(IMAGE).shape == (3, 28, 28)
    assert len(policy.prompt_ids("go")) > 200
    assert len(greedy(policy)[0]) == 7
    change(directory / "config.json", llm_backbone_id="llama2-7b-pure")
    assert len(load(directory).prompt_ids("go")) < 80
    assert load(directory.rename(tmp_path / "openvla-v01-7b")).prompt_ids("go") == policy.prompt_ids("go")


@pytest.mark.parametrize(
    "size", [TinySize(actions=3), TinySize(kv_heads=1), TinySize(side=42, actions=1), TinySize(depth=2)]
)
def test_other_sizes(tmp_path: Path, size: TinySize):
    policy = load(write_checkpoint(tmp_path, size))
    assert size.actions == policy.K and policy.fixed_rows == (size.side // size.patch) ** 2
    assert len(greedy(policy)[0]) == size.actions == len(policy.action_schema().names)


def test_layer_scale_under_timms_own_name(directory: Path):
    expected = greedy(load(directory))
    rename_tensors(directory, "scale_factor", "gamma")
    found = greedy(load(directory))
    assert found[0] == expected[0] and torch.equal(found[1], expected[1])


def test_shards_equal_one_file(directory: Path):
    expected = greedy(load(directory))
    tensors = load_file(directory / SINGLE_FILE)
    (directory / SINGLE_FILE).unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, directory / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    found = greedy(load(directory))
    assert found[0] == expected[0] and torch.equal(found[1], expected[1])


def test_dead_weights_are_not_needed(directory: Path):
    """The last block of each tower is never run; its name alone says how deep the tower is."""
    expected = greedy(load(directory))[1]
    tensors = load_file(directory / SINGLE_FILE)
    kept = {name: tensor for name, tensor in tensors.items() if ".blocks.2." not in name or name.endswith("norm1.bias")}
    assert len(kept) < len(tensors)
    save_file(kept, directory / SINGLE_FILE)
    assert torch.equal(greedy(load(directory))[1], expected)


def test_a_tied_head_is_the_embedding(directory: Path):
    tensors = load_file(directory / SINGLE_FILE)
    tensors["language_model.lm_head.weight"] = tensors["language_model.model.embed_tokens.weight"]
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, directory / SINGLE_FILE)
    expected = greedy(load(directory))[1]
    del tensors["language_model.lm_head.weight"]
    save_file(tensors, directory / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=r"language_model\.lm_head\.weight is missing"):
        load(directory)
    text = json.loads((directory / "config.json").read_text())["text_config"]
    change(directory / "config.json", text_config={**text, "tie_word_embeddings": True})
    assert torch.equal(greedy(load(directory))[1], expected)


def test_dataset_statistics_replace_those_of_the_config(directory: Path):
    statistics = {"fine": {"action": {"q01": [0.0] * 3, "q99": [2.0] * 3}}}
    (directory / "dataset_statistics.json").write_text(json.dumps(statistics))
    policy = load(directory)
    assert (policy.K, policy.unnorm_keys) == (3, ("fine",))
    assert policy.decode_actions([383] * 3).tolist() == pytest.approx([1 - 0.99607843] * 3)


def test_datasets_of_different_widths(directory: Path):
    entry = {"q01": [0.0] * 2, "q99": [2.0] * 2}
    old = json.loads((directory / "config.json").read_text())["norm_stats"]
    change(directory / "config.json", norm_stats={**old, "narrow": {"action": entry}})
    policy = load(directory)
    assert policy.K == 7 and policy.decode_actions([383] * 7, "narrow").shape == (2,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_gives_nearly_the_same_logits(directory: Path, dtype: torch.dtype):
    narrow = load_openvla(directory, dtype, CPU)
    expected, found = greedy(load(directory))[1], greedy(narrow)[1]
    assert found.dtype == dtype
    assert torch.nn.functional.cosine_similarity(found.float(), expected, dim=0) > 0.999


def test_center_crop_is_an_option(directory: Path):
    plain, cropped = load(directory).preprocess(IMAGE), load(directory, center_crop=True).preprocess(IMAGE)
    assert plain.shape == cropped.shape and not torch.equal(plain, cropped)


@pytest.mark.oracle("openvla-tiny")
@pytest.mark.parametrize("case", range(3))
@torch.inference_mode()
def test_every_stage_equals_the_original(case: int):
    recorded = json.loads((ORACLE / "cases.json").read_text())["cases"][case]
    prefix = recorded["name"] + "."
    expected = {
        name.removeprefix(prefix): tensor for name, tensor in read_tensors(ORACLE / "expected.safetensors").items()
        if name.startswith(prefix)
    }  # fmt: skip
    policy = load(ORACLE)
    with Image.open(ORACLE / recorded["image"]) as picture:
        pixels = policy.preprocess(np.asarray(picture.convert("RGB")))[None]
    assert (pixels - expected["pixel_values"]).abs().max() <= 1e-6
    ids = policy.prompt_ids(recorded["instruction"])
    assert list(ids) == recorded["input_ids_after_29871"]
    features = policy.vision.features(pixels)
    for found, name in zip(features, ("dino_patches", "siglip_patches"), strict=True):
        assert (found - expected[name]).abs().max() <= 1e-4
    assert (policy.vision.project(features) - expected["projected"]).abs().max() <= 1e-4
    (hidden,) = embed_prefill(policy, pixels, [ids])
    kv = policy.decoder.kv_slots(1, len(hidden))
    out = policy.decoder.forward(hidden, PackedLayout.of([Span(0, 0, len(hidden))], CPU), kv)
    assert (policy.decoder.logits(out[-1:], "prefill")[0] - expected["prefill_last_logits"]).abs().max() <= 1e-4
    tokens = recorded["action_token_ids"]
    assert policy.action_decoder.normalized(tokens).tolist() == recorded["normalized_actions"]
    assert policy.decode_actions(tokens, recorded["unnorm_key"]).tolist() == recorded["actions"]


@pytest.mark.parametrize(
    ("entries", "heads"),
    [
        ({"timm_model_kwargs": None, "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m"] * 2}, (16, 16)),
        (
            {"timm_model_kwargs": [{"num_heads": 3}, {}], "timm_model_ids": ["x", "vit_base_patch16_siglip_224"]},
            (3, 12),
        ),
        ({"timm_model_ids": None}, (2, 2)),
    ],
)
def test_heads_of_towers_come_from_their_sizes_or_their_names(directory: Path, entries: dict[str, object], heads):
    change(directory / "config.json", **entries)
    assert load_config(directory).tower_heads == heads


def text_config(**entries: object) -> dict[str, object]:
    size = TinySize()
    text = {"hidden_size": size.hidden, "intermediate_size": size.mlp, "num_hidden_layers": size.layers}
    return {"text_config": {**text, "num_attention_heads": size.heads, "vocab_size": 448, **entries}}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "llava"}, "policy.family: openvla, but config.json has model_type 'llava'"),
        ({"model_type": None}, "config.json has no model_type"),
        ({"text_config": None}, "lacks text_config"),
        ({"norm_stats": None}, "lacks norm_stats"),
        ({"norm_stats": {}}, "names no dataset"),
        ({"norm_stats": {"a": {"action": {"q01": [0.0], "q99": [1.0, 2.0]}}}}, r"norm_stats\.a\.action: q01, q99"),
        ({"norm_stats": {"a": {"action": {"q01": ["x"], "q99": [1.0]}}}}, "wrong type"),
        ({"norm_stats": {"a": {"action": {"q01": [0.0], "q99": [float("nan")]}}}}, "must be finite"),
        ({"norm_stats": {"a": {}}}, "lacks action"),
        ({"norm_stats": [1]}, "wrong type"),
        ({"pad_to_multiple_of": None}, "lacks pad_to_multiple_of"),
        ({"timm_model_kwargs": None}, "vision tower tiny is not known"),
        ({"timm_model_kwargs": [{"num_heads": 2}]}, "1 vision towers named, expected 2"),
        ({"timm_model_kwargs": [{"num_heads": 2}, {"num_heads": 5}]}, "5 heads do not divide a vision tower"),
        ({"timm_override_act_layers": ["quick_gelu", None]}, "timm_override_act_layers"),
        ({"edgeflow_action": {"names": ["x"]}}, "edgeflow_action"),
        (text_config(hidden_act="gelu"), "hidden_act silu"),
        (text_config(rope_scaling={"type": "linear", "factor": 2.0}), "rotary embedding of type 'linear'"),
        (text_config(model_type="mistral"), "'mistral' is not supported; supported: llama"),
        (text_config(num_attention_heads=7), "7 heads do not divide"),
        (text_config(num_hidden_layers=3), r"language_model\.model\.layers\.2\..*is missing"),
        (text_config(vocab_size=512), r"embed_tokens\.weight has shape \[448, 32\], expected \[512, 32\]"),
        (text_config(hidden_size=64), r"has shape \[448, 32\], expected \[448, 64\]"),
        (text_config(hidden_size="wide"), "hidden_size must be an integer"),
        (text_config(rope_theta=[]), "rope_theta must be a number"),
        ({"n_action_bins": 1}, "1 n_action_bins and padding 64 do not fit a vocabulary of 448"),
        ({"pad_to_multiple_of": 448}, "padding 448 do not fit"),
        (text_config(head_dim=16), "head_dim 16, expected"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_reported(directory: Path, entries: dict[str, object], message: str):
    change(directory / "config.json", **entries)
    started = time.thread_time()
    with pytest.raises(CheckpointError, match=message) as caught:
        load(directory)
    assert "\n" not in str(caught.value) and time.thread_time() - started < 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {"image_resize_strategy": "stretch"},
            "'stretch' is not supported; supported: resize-naive, letterbox, resize-crop",
        ),
        ({"input_sizes": [[3, 28, 28], [3, 42, 42]]}, "one square size"),
        ({"input_sizes": [[3, 13, 13], [3, 13, 13]]}, "13 is less than the patch of 14"),
        ({"interpolations": ["nearest", "bicubic"]}, "'nearest' is not supported"),
        ({"tvf_normalize_params": [{"mean": [0.5] * 3, "std": [0.5] * 3}]}, "2 vision towers, but normalisation for 1"),
        ({"tvf_normalize_params": [{"mean": [0.5] * 3, "std": [0.0] * 3}] * 2}, "no std of 0"),
        ({"tvf_normalize_params": None}, "lacks tvf_normalize_params"),
    ],
)
def test_a_processor_that_does_not_fit_is_reported(directory: Path, entries: dict[str, object], message: str):
    change(directory / "preprocessor_config.json", **entries)
    with pytest.raises(CheckpointError, match=message):
        load(directory)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json", SINGLE_FILE])
def test_an_absent_file_is_named(directory: Path, name: str):
    (directory / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(directory)


def test_no_directory(tmp_path: Path):
    with pytest.raises(CheckpointError, match="not a directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name",
    ["vision_backbone.featurizer.blocks.1.attn.qkv.weight", "vision_backbone.fused_featurizer.pos_embed",
     "projector.fc3.bias", "language_model.model.layers.1.mlp.down_proj.weight"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "wrong shape"])
def test_a_damaged_tensor_is_named(directory: Path, name: str, damage: str):
    tensors = load_file(directory / SINGLE_FILE)
    tensor = tensors.pop(name)
    if damage == "wrong shape":
        tensors[name] = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)
    save_file(tensors, directory / SINGLE_FILE)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(directory)
