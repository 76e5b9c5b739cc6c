"""The flow policy's small tokenizer: SmolVLM's form (byte-level pairs, no BOS), with the task's words whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from edgeflow.lab.demo.training.tokenizer import all_instructions
from edgeflow.lab.outputs import write_json

PAD: Final = "<|endoftext|>"
SPECIAL: Final = (PAD, "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<global-img>", "<image>")
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def prompt_of(instruction: str) -> str:
    """The text that the policy reads."""
    return instruction if instruction.endswith("\n") else instruction + "\n"


def train_tokenizer(vocab: int) -> Tokenizer:
    """Train a byte-level tokenizer of at most `vocab` pieces in which every word of an instruction is one piece."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(prompt_of, all_instructions()), trainer)
    return tokenizer


def prompt_ids(tokenizer: Tokenizer, instruction: str) -> list[int]:
    """The ids of an instruction's prompt."""
    ids: list[int] = tokenizer.encode(prompt_of(instruction)).ids
    return ids


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[2],
        "model_max_length": 2048,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", config)
