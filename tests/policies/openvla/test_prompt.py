"""Prompts and their ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from edgeflow.policies.openvla.tokens import Prompter, prompt_text
from edgeflow_client.errors import CheckpointError
from tests.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


def decoded(directory: Path, ids: tuple[int, ...]) -> list[str]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [tokenizer.id_to_token(index) for index in ids]


def test_text_of_both_generations():
    assert prompt_text("Pick up the CUP", vicuna=False) == (
        "In: What action should the robot take to pick up the cup?\nOut:"
    )
    chat = prompt_text("go {home}", vicuna=True)
    assert chat.startswith("A chat between a curious user and an artificial intelligence assistant. The assistant")
    assert chat.endswith("USER: What action should the robot take to go {home}? ASSISTANT:")


def test_ids_start_with_bos_and_end_with_one_space_piece(directory: Path):
    pieces = decoded(directory, Prompter(directory, vicuna=False).ids("Go"))
    assert pieces[0] == "<s>" and pieces[-2:] == [":", "▁"]
    assert "".join(pieces[1:-1]) == "▁In:▁What▁action▁should▁the▁robot▁take▁to▁go?\nOut:"


def test_bos_and_space_are_not_doubled(directory: Path, tmp_path: Path):
    """A tokenizer that adds BOS by itself, and one whose last piece is the space already."""
    values = json.loads((directory / "tokenizer.json").read_text())
    space = values["model"]["vocab"]["▁"]
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "▁", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                           "▁": {"id": "▁", "ids": [space], "tokens": ["▁"]}},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert Prompter(tmp_path, vicuna=False).ids("go") == Prompter(directory, vicuna=False).ids("go")


def test_stored_truncation_and_padding_are_ignored(directory: Path, tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=200)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Prompter(tmp_path, vicuna=False).ids("go") == Prompter(directory, vicuna=False).ids("go")


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": 3}'])
def test_a_missing_or_foreign_tokenizer_is_reported(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing or not a tokenizer"):
        Prompter(tmp_path, vicuna=False)


@pytest.mark.parametrize("piece", ["<s>", "▁"])
def test_a_tokenizer_of_another_family_is_reported(directory: Path, tmp_path: Path, piece: str):
    values = json.loads((directory / "tokenizer.json").read_text())
    values["model"]["vocab"]["other"] = values["model"]["vocab"].pop(piece)
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="lacks the piece"):
        Prompter(tmp_path, vicuna=False)
