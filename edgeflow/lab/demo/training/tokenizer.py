"""The policy's small tokenizer: Llama's form (metaspace, BOS 1), with whole words for the task's vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from edgeflow.lab.demo.world.layout import COLOURS
from edgeflow.lab.demo.world.task import PHRASES
from edgeflow.lab.outputs import write_json

PROMPT: Final = "In: What action should the robot take to {}?\nOut:"
SPACE: Final = "▁"
SPECIAL: Final = ("<unk>", "<s>", "</s>")
PAD: Final = "<PAD>"
TEXT_IDS: Final = 256  # pieces; the action ids follow
PLACES: Final = ("leftmost", "rightmost")


def all_instructions() -> list[str]:
    """All instructions that the policy is trained on, by phrase."""
    return [phrase.format(name) for phrase in PHRASES for name in (*COLOURS, *PLACES)]


def prompt_of(instruction: str) -> str:
    """The prompt text that precedes the actions."""
    return PROMPT.format(instruction.lower())


def train_tokenizer(text_vocab: int) -> Tokenizer:
    """Train a byte-pair tokenizer of TEXT_IDS pieces that covers printable ASCII; the ids up to `text_vocab`
    are filled with names for the action ids; `<PAD>` is `text_vocab`."""
    learner = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation(), pre_tokenizers.Split("\n", "isolated")]
    )
    alphabet = [chr(code) for code in range(33, 127)] + ["\n", SPACE]
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_IDS, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator(map(prompt_of, all_instructions()), trainer)
    return _in_llama_form(json.loads(learner.to_str()), text_vocab)


def _in_llama_form(learned: dict[str, Any], text_vocab: int) -> Tokenizer:
    vocab: dict[str, int] = learned["model"]["vocab"]
    for free in range(len(vocab), TEXT_IDS):
        vocab[f"<unused_{free}>"] = free
    for action in range(TEXT_IDS, text_vocab):
        vocab[f"<action_{action}>"] = action
    learned["added_tokens"] = [
        _added(content, index) for content, index in (*((c, i) for i, c in enumerate(SPECIAL)), (PAD, text_vocab))
    ]
    learned["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ],
    }
    learned["pre_tokenizer"] = None
    bos, sequence = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    learned["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, sequence],
        "pair": [bos, sequence, second],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    learned["decoder"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    return Tokenizer.from_str(json.dumps(learned))


def _added(content: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": True}


def prompt_ids(tokenizer: Tokenizer, instruction: str) -> list[int]:
    """BOS, the prompt, and the piece "▁" that training text has between "Out:" and the first action."""
    ids: list[int] = tokenizer.encode(prompt_of(instruction)).ids
    space: list[int] = tokenizer.encode(SPACE, add_special_tokens=False).ids[-1:]
    return ids if ids[-1:] == space else ids + space


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and added_tokens.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": PAD}
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "padding_side": "right",
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
    }
    pad_id = tokenizer.token_to_id(PAD)
    for name, content in (
        ("tokenizer_config.json", config),
        ("special_tokens_map.json", named),
        ("added_tokens.json", {PAD: pad_id}),
    ):
        write_json(folder / name, content)
