"""Loading chat models and making prompts: what is wrong is told, what is right is what transformers makes of it."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt
from edgeflow.text.checkpoint_json import MAX_JSON_BYTES
from edgeflow_client.errors import CheckpointError, InvalidArgument
from tests.chat_checkpoint import END, IMAGE_TOKEN, VOCAB, tokenizer, write_chat_checkpoint

CPU = torch.device("cpu")
WRONG_VALUES = [None, -1, 0, 1 << 40, "x", [], {}, 1.5, True, float("nan"), [[1]]]


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("vl")
    write_chat_checkpoint(directory, "qwen2_5_vl")
    return directory


@pytest.fixture(scope="module")
def model(published: Path) -> ChatModel:
    return load_chat_model(published, torch.float32, CPU)


@pytest.fixture
def directory(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "checkpoint"))


def change(path: Path, **entries: Any) -> None:
    """Entries of a JSON file; a key with a dot is inside another."""
    values = json.loads(path.read_text())
    for name, value in entries.items():
        *outer, last = name.split("__")
        place = values
        for key in outer:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(values))


def load(directory: Path) -> ChatModel:
    return load_chat_model(directory, torch.float32, CPU)


def test_a_model_has_its_tokenizer_and_stop_tokens(model: ChatModel):
    assert model.stop_ids == {END} and model.name == "qwen2_5_vl"
    assert model.config.tie_word_embeddings is False and model.config.rope.sections == (1, 1, 2)
    assert model.tokenizer.decode(model.tokenizer.encode("Grüße 👋", special=True)) == "Grüße 👋"
    assert model.tokenizer.decode([END, 300]) == "" and model.tokenizer.decode([END], special=True) == "<|im_end|>"


@pytest.mark.parametrize(
    ("generation", "outer", "inner", "own", "ends"),
    [
        (257, 1, 2, "<|im_end|>", {257, END}),
        ([257, 3], 1, 2, None, {257, 3}),
        (None, 1, 2, None, {1}),
        (None, [1, 4], 2, "<|im_end|>", {1, 4, END}),
        (None, None, 2, None, {2}),
        (None, None, None, "<|im_end|>", {END}),
        ([], 1, 2, "<|im_end|>", {END}),
        (VOCAB, None, None, "<|im_end|>", {END}),
        (None, None, None, None, set()),
        (VOCAB, None, None, "<|nothing|>", set()),
    ],
)
@pytest.mark.parametrize("stated", [True, False], ids=["null", "absent"])
def test_stop_tokens_of_an_answer(
    directory: Path, generation: Any, outer: Any, inner: Any, own: str | None, ends: set[int], stated: bool
):
    absent = None if stated else ...
    change(directory / "generation_config.json", eos_token_id=absent if generation is None else generation)
    change(directory / "config.json", eos_token_id=outer, text_config__eos_token_id=inner)
    change(directory / "tokenizer_config.json", eos_token=own)
    found = load(directory)
    assert found.stop_ids == ends
    assert [remark.split(":")[1] for remark in found.remarks] == ([] if ends else [" no token ends an answer"])


def test_a_whole_file_beside_an_index_is_remarked_on(directory: Path):
    (directory / "model.safetensors.index.json").write_text("{}")
    (remark,) = load(directory).remarks
    assert remark.startswith(f"{directory / 'model.safetensors'} is read, and model.safetensors.index.json beside it")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'; supported: llama, qwen2"),
        ({"model_type": "qwen2"}, "qwen2 has no vision_config"),
        ({"vision_config": ...}, "qwen2_5_vl needs a vision_config"),
        ({"text_config__hidden_size": ...}, "lacks hidden_size"),
        ({"text_config__intermediate_size": 60}, "mlp.gate_proj.weight has shape"),
        ({"text_config__num_hidden_layers": 1 << 30}, "num_hidden_layers must be an integer"),
        ({"text_config__num_hidden_layers": 4}, "layers.3.self_attn.q_proj.weight is missing"),
        ({"text_config__vocab_size": 100}, "tokenizer.json has ids up to 255, but the model's vocab_size is 100"),
        ({"text_config__hidden_act": "gelu"}, "the configuration is not supported: hidden_act 'gelu'"),
        ({"text_config__use_sliding_window": True}, "configuration is not supported: use_sliding_window True"),
        ({"text_config__rope_parameters": 5}, "the configuration has a value of the wrong type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.quant_method 'gptq' is not supported"),
        (
            {"text_config__rope_parameters": {"rope_type": "longrope", "factor": 2.0}},
            "type 'longrope' is not supported; supported: default, linear",
        ),
        ({"text_config__rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "lacks low_freq_factor"),
        ({"text_config__rope_parameters__mrope_section": [1, 2]}, r"mrope_section \[1, 2\] must add up to"),
        ({"text_config__rope_parameters__partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"vision_config__num_heads": 3}, "3 heads of a multiple of 4 do not make 32"),
        ({"vision_config__window_size": 20}, "window_size 20 is smaller than a merged patch of 28"),
        ({"vision_config__depth": 4}, "blocks.3.* is missing"),
        ({"vision_config__out_hidden_size": 32}, "out_hidden_size 32 or image_token_id 261 does not fit"),
        ({"vision_config__fullatt_block_indexes": ["1"]}, "fullatt_block_indexes"),
        ({"image_token_id": VOCAB}, "image_token_id 272 does not fit"),
        ({"image_token_id": ...}, "lacks image_token_id"),
    ],
)
def test_a_configuration_that_is_not_served_is_reported(directory: Path, entries: dict[str, Any], message: str):
    change(directory / "config.json", **entries)
    with pytest.raises(CheckpointError, match=message):
        load(directory)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b"[]", "must hold a JSON object"),
        ("config.json", b"[" * 100_000, "is not readable JSON"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("model.safetensors", None, "has neither model.safetensors"),
        ("model.safetensors", b"\x00" * 100, "truncated or not safetensors"),
        ("chat_template.jinja", b"{% if %}", "chat_template is not a template"),
        ("chat_template.jinja", b"x" * (1 << 20) + b"x", "more than 1048576 characters"),
        ("chat_template.jinja", b"\xff", "is not readable text"),
        ("preprocessor_config.json", None, "processor_config.json"),
        ("preprocessor_config.json", b'{"image_mean": [0, 0], "image_std": [1, 1, 1]}', "need three numbers"),
        ("preprocessor_config.json", b'{"min_pixels": 9, "max_pixels": 4}', "min_pixels 9 and max_pixels 4"),
        ("preprocessor_config.json", b'{"resample": 2}', "resample 2 is not supported"),
        ("preprocessor_config.json", b'{"do_resize": false}', "do_resize"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "eos_token_id must be a token id or a list"),
        ("generation_config.json", b'{"do_sample": true, "temperature": -1}', "temperature must be 0.0 to 2.0"),
        ("generation_config.json", b'{"do_sample": true, "top_k": 1.5}', "top_k must be an integer"),
        ("generation_config.json", b'{"do_sample": true, "top_k": -2}', "top_k must be an integer, at least -1"),
    ],
)
def test_a_file_that_is_wrong_is_named(directory: Path, name: str, content: bytes | None, message: str):
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(directory)


def test_a_truncated_weight_file_is_reported(directory: Path):
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="truncated"):
        load(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_beyond_all_measure_is_not_read(directory: Path, name: str):
    with (directory / name).open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"{name} has more than {MAX_JSON_BYTES} bytes"):
        load(directory)


def test_no_value_of_a_configuration_escapes(directory: Path):
    """Any entry replaced by anything: told as a CheckpointError, or served. A third of the pairs, all by night.

    Their eleven values are no multiple of three: every name meets several values, and every value several names.
    """
    text = (directory / "config.json").read_text()
    values = json.loads(text)
    names = [*values, *(f"text_config__{name}" for name in values["text_config"])]
    names += [f"vision_config__{name}" for name in values["vision_config"]]
    every = 1 if settings().max_examples > 1000 else 3
    pairs = list(itertools.product(names, WRONG_VALUES))[::every]
    served = 0
    for name, value in pairs:
        change(directory / "config.json", **{name: value})
        try:
            load(directory)
            served += 1
        except CheckpointError:
            pass
        finally:
            (directory / "config.json").write_text(text)
    assert {name for name, _ in pairs} == set(names) and 0 < served < len(pairs) // 2


def test_nothing_in_a_checkpoint_is_executed(directory: Path, tmp_path: Path):
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w')\n"
    for name in ("modeling.py", "tokenization.py", "configuration.py"):
        (directory / name).write_text(code)
    change(directory / "config.json", auto_map={"AutoConfig": "configuration.C", "AutoModel": "modeling.M"})
    change(directory / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization.T", None]})
    load(directory)
    assert not marker.exists()


def test_where_the_generation_defaults_come_from(directory: Path):
    (directory / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": [1, END]})
    )
    found = load(directory).generation
    assert (found.temperature, found.top_p, found.top_k, found.repetition_penalty) == (1.0, 0.8, 20, 1.05)
    assert found.stop_ids == {1, END}
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": -1}))
    assert load(directory).generation.top_k == 0, "off"
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 50}))
    change(directory / "config.json", eos_token_id=7)
    found = load(directory).generation
    assert (found.temperature, found.top_k, found.stop_ids) == (0.0, 0, {7})


def test_each_image_takes_its_rows(model: ChatModel):
    images = [np.zeros((64, 64, 3), np.uint8), np.zeros((112, 56, 3), np.uint8)]
    content = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    prompt = model.chat_prompt(model.render([{"role": "user", "content": content}]), images)
    assert [(image.rows, image.patches.merged_grid) for image in prompt.images] == [(4, (2, 2)), (8, (4, 2))]
    assert prompt.ids.count(IMAGE_TOKEN) == 12
    assert all(prompt.ids[image.start - 1] != IMAGE_TOKEN == prompt.ids[image.start] for image in prompt.images)
    assert prompt.positions.shape == (3, len(prompt)) and prompt.shift == (2 + 4) - 12
    assert int(prompt.positions.max()) == len(prompt) - 1 + prompt.shift


@pytest.mark.parametrize(
    ("text", "images", "message"),
    [("<|image_pad|>", 0, "0 images for 1 places"), ("hello", 1, "1 images for 0 places"), ("", 0, "is empty")],
)
def test_prompts_that_do_not_fit_their_images(model: ChatModel, text: str, images: int, message: str):
    with pytest.raises(InvalidArgument, match=message):
        model.chat_prompt(text, [np.zeros((28, 28, 3), np.uint8)] * images)


def test_prompts_a_model_cannot_take(model: ChatModel, tmp_path: Path):
    for ids in ([VOCAB], [-1]):
        with pytest.raises(InvalidArgument, match="token ids must be 0 to 271"):
            model.prompt(ids)
    write_chat_checkpoint(tmp_path, "llama")
    (tmp_path / "chat_template.jinja").unlink()
    plain = load(tmp_path)
    with pytest.raises(InvalidArgument, match="does not support images"):
        plain.chat_prompt("x", [np.zeros((28, 28, 3), np.uint8)])
    with pytest.raises(InvalidArgument, match="no chat template"):
        plain.render([{"role": "user", "content": "hi"}])


def test_half_a_character_is_reported(model: ChatModel):
    with pytest.raises(InvalidArgument, match="unpaired surrogate"):
        model.chat_prompt(model.render([{"role": "user", "content": json.loads('"\\ud83d"')}]))


def test_embedded_rows_may_be_taken_from_anywhere(model: ChatModel):
    image = np.random.default_rng(0).integers(0, 256, (100, 60, 3), np.uint8)
    prompt = model.chat_prompt("ab<|image_pad|>cd<|image_pad|>", [image, image[:56]])
    with torch.inference_mode():
        whole = model.prompt_rows(prompt)
        for start in range(len(prompt)):
            assert torch.equal(model.prompt_rows(prompt, start), whole[start:])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=st.text("abc", max_size=6), other=st.text("abc", max_size=6), share=st.text("abc", min_size=1, max_size=6))
def test_the_shared_beginning_of_prompts(model: ChatModel, one: str, other: str, share: str):
    first, second = model.text_prompt(share + one), model.text_prompt(share + other)
    same = next((i for i, (a, b) in enumerate(zip(first.ids, second.ids, strict=False)) if a != b), None)
    assert first.common(second) == (min(len(first), len(second)) if same is None else same)
    assert first.common(second) >= len(share) and first.head(len(share)).common(second) == len(share)


def test_other_pixels_are_not_shared(model: ChatModel):
    def asked(*shades: int) -> Prompt:
        images = [np.full((56, 56, 3), shade, np.uint8) for shade in shades]
        return model.chat_prompt("x" + "<|image_pad|>." * len(shades), images)

    assert asked(1, 2).common(asked(1, 2)) == 11
    assert asked(1, 2).common(asked(1, 3)) == asked(1, 2).images[1].start == 6
    assert asked(1, 2).common(asked(2, 2)) == 1
    assert asked(1).common(asked(1, 9)) == 6


def test_a_tokenizer_neither_cuts_nor_pads(directory: Path):
    made = tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=9)
    made.save(str(directory / "tokenizer.json"))
    assert len(load(directory).text_prompt("a longer text").ids) == 13
