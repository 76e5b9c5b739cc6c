"""The special tokens that a checkpoint names: bos_token, eos_token and the like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeflow.text.checkpoint_json import read_json


def special_tokens(directory: Path) -> dict[str, str]:
    """Their texts by name, of tokenizer_config.json and special_tokens_map.json.

    As in transformers, the second file wins and is only read beside a tokenizer_config.json of older versions, which
    does not list the added tokens. A token is given as text or as an object with its content; null is none.
    """
    given = read_json(directory / "tokenizer_config.json", required=False)
    if "added_tokens_decoder" not in given:
        given = given | read_json(directory / "special_tokens_map.json", required=False)
    texts = {name: _text(value) for name, value in given.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None
