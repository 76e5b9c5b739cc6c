"""The chat model's small tokenizer in Qwen2's form: byte-level BPE, one token per digit, ChatML markers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from edgeflow.lab.demo.chat.dialogs import DialogSource
from edgeflow.lab.demo.chat.small_talk import corpus
from edgeflow.lab.outputs import write_json

VOCAB: Final = 1024
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL: Final = (END_OF_TEXT, START, END)
CORPUS_DIALOGS: Final = 3000
MAX_LENGTH: Final = 2048
# A contraction; a word with the sign before it; one digit; signs; line ends; other space.
PIECES: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_text(messages: list[dict[str, str]]) -> str:
    """The text that TEMPLATE renders from messages, written out because training renders many."""
    return "".join(f"{START}{message['role']}\n{message['content']}{END}\n" for message in messages)


def train_tokenizer(seed: int) -> Tokenizer:
    """Train a tokenizer of VOCAB ids on generated conversations; it can encode any text, byte by byte if necessary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    source = DialogSource(f"tokenizer {seed}")
    yield from corpus()
    for _ in range(CORPUS_DIALOGS):
        dialog = source.draw(6)
        yield from (text for message in dialog.messages(len(dialog.turns)) for text in message.values())


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json with the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": MAX_LENGTH,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    write_json(folder / "tokenizer_config.json", config)
