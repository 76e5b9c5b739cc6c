"""Calibration text: blocks as AutoAWQ cuts them, held-out samples, and what is too little."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from edgeflow.lab.demo.chat.dialogs import DialogSource
from edgeflow.lab.quantize.calibration.samples import (
    BUILT_IN_TEXT,
    Writer,
    dialog_calibration,
    of_samples,
    of_text,
    written_calibration,
)
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import ConfigError
from tests.lab.quantize.checkpoints import write_source
from tests.oracles import ORACLES

NEEDED = 16 * 512


def test_samples_are_joined_and_long_ones_dropped():
    samples = [[1] * 512, [7] * 513, *([number % 5] * 300 for number in range(40))]
    found = of_samples("samples", samples, [[1, 2, 3], [4] * 600, [5]])
    expected = [1] * 512 + [number % 5 for number in range(40) for _ in range(300)]
    assert found.blocks.flatten().tolist() == expected[:NEEDED]
    assert [text.tolist() for text in found.held_out] == [[1, 2, 3]]


def test_too_little_text_is_rejected_with_what_is_needed():
    message = r"notes has 900 tokens in 3 samples .* 8192 tokens \(16 blocks of 512\)"
    with pytest.raises(ConfigError, match=message):
        of_samples("notes", [[1] * 300] * 3, [[1, 2]])


def test_text_without_a_held_out_sample_is_rejected():
    with pytest.raises(ConfigError, match="0 held-out samples"):
        of_samples("notes", [[1] * 512] * 16, [])


def letters(tmp_path: Path) -> TextTokenizer:
    return TextTokenizer(write_source(tmp_path / "floats"), 1024)


def test_paragraphs_of_a_file_are_samples(tmp_path: Path):
    tokenizer = letters(tmp_path)
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"{number:03} " + "x" * 300 for number in range(40)))
    found = of_text(file, tokenizer, seed=0)
    assert [tokenizer.decode(text.tolist())[:3] for text in found.held_out] == ["007", "015", "023", "031", "039"]
    assert "007" not in tokenizer.decode(found.blocks.flatten().tolist())
    assert of_text(file, tokenizer, seed=0).digest == found.digest != of_text(file, tokenizer, seed=1).digest


def test_a_file_that_is_no_text_is_rejected(tmp_path: Path):
    file = tmp_path / "picture"
    file.write_bytes(b"\xff\xfe\x00\x80")
    tokenizer = letters(tmp_path)
    for path, why in ((file, "is not UTF-8 text"), (tmp_path / "absent", "absent: No such file")):
        with pytest.raises(ConfigError, match=why):
            of_text(path, tokenizer, seed=0)


def shown_paragraphs() -> list[str]:
    """Those of the built-in text that a search is calibrated on, as the description of `of_text` has it."""
    paragraphs = BUILT_IN_TEXT.read_text().strip().split("\n\n")
    return [text for number, text in enumerate(paragraphs) if number % 8 != 7]


@pytest.mark.parametrize("digits", ["", "{1,3}"], ids=["Qwen2", "Llama 3"])
def test_the_built_in_text_is_enough_for_any_vocabulary(digits: str):
    """A token never goes beyond a pre-token, so a tokenizer with this pattern gives at least as many tokens, however
    large its vocabulary is. Llama 3 differs from Qwen2 in up to three digits that it takes together."""
    definition = (EMBEDDED_CHAT_MODEL / "tokenizer.json").read_text()
    assert definition.count(r"|\\p{N}|") == 1
    pre = Tokenizer.from_str(definition.replace(r"|\\p{N}|", rf"|\\p{{N}}{digits}|")).pre_tokenizer
    fewest = sum(len(pre.pre_tokenize_str(text)) for text in shown_paragraphs())
    assert fewest >= 1.25 * NEEDED


@pytest.mark.oracle("openvla-tiny")
def test_the_built_in_text_is_enough_for_llama_2():
    """The tokenizer of OpenVLA is that of Llama 2, with all of its vocabulary."""
    tokenizer = TextTokenizer(ORACLES / "openvla-tiny", 32064)
    assert sum(len(tokenizer.encode(text, special=False)) for text in shown_paragraphs()) >= 1.25 * NEEDED


def test_no_paragraph_of_the_built_in_text_is_dropped():
    """A tokenizer of bytes, which gives the most tokens, puts one more before a text."""
    assert max(len(text.encode()) for text in shown_paragraphs()) < 512


def test_dialogs_of_the_training_side_and_of_the_held_out_side():
    tokenizer, template = TextTokenizer(EMBEDDED_CHAT_MODEL, 1024), ChatTemplate.load(EMBEDDED_CHAT_MODEL)
    assert template is not None
    found = dialog_calibration(tokenizer, template, seed=0)
    first = DialogSource("awq calibration 0").draw(1)
    text = template(first.messages(1), answer=False)
    assert found.blocks[0][: len(tokenizer.encode(text, special=False))].tolist() == tokenizer.encode(
        text, special=False
    )
    assert len(found.held_out) == 40


@pytest.mark.oracle("awq-search")
def test_dialogs_are_the_recorded_ones():
    tokenizer, template = TextTokenizer(EMBEDDED_CHAT_MODEL, 1024), ChatTemplate.load(EMBEDDED_CHAT_MODEL)
    assert template is not None
    recorded = load_file(ORACLES / "awq-search" / "chat_calibration.safetensors")
    for seed in range(3):
        assert torch.equal(dialog_calibration(tokenizer, template, seed).blocks.int(), recorded[f"seed{seed}"])


def test_a_tokenizer_without_a_first_token_cannot_write(tmp_path: Path):
    with pytest.raises(ConfigError, match="no first token"):
        written_calibration(write_source(tmp_path / "floats"), 0, lambda done, needed: None)


@pytest.mark.oracle("stories260K-hf")
def test_a_model_writes_texts_by_seed():
    writer = Writer(ORACLES / "stories260K-hf", 30)
    first, again, other = writer.text(0), writer.text(0), writer.text(-1000)
    assert first == again != other and first[0] == other[0] == 1
    assert 1 < len(first) <= 30 and 1 < len(other) <= 30
