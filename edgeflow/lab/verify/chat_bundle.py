"""Bundles of chat models: a checkpoint directory with outputs recorded from the original implementation.

`cases.json` lists prompts or messages with expected ids (and, apart, a rendered `chat`), `expected.safetensors` holds
their tensors as `case<index>.<quantity>`; or `oracle.json` is a list of prompts with expected ids, text and the
largest logits. Bundles of quantised models have their tensors in `expected_logits.safetensors`; where a case lists
`generated_ids`, its logits are those of every position but the last, as `<index>.logits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.lab.verify.bundle import CASES_FILE, TENSORS_FILE, BundleEntry, read_image
from edgeflow.models.checkpoint import read_tensors
from edgeflow.text.checkpoint_json import read_json, read_json_value
from edgeflow_client.errors import CheckpointError

ORACLE_FILE = "oracle.json"
LOGITS_FILE = "expected_logits.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCase:
    """A recorded case: a plain prompt, messages with images and the text they render to, or only token ids."""

    name: str
    input_ids: list[int]
    greedy_ids: list[int]
    """Empty if only the prompt was recorded."""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    images: list[NDArray[np.uint8]] = field(default_factory=list)
    rendered: str | None = None
    text: str | None = None
    """The text of the greedy ids, including special tokens."""
    whole_text: str | None = None
    """The text of prompt and greedy ids, without special tokens."""
    rope_delta: int | None = None
    tensors: Mapping[str, Tensor]


def read_chat_bundle(directory: Path) -> list[ChatCase]:
    """Read all cases; CheckpointError names the case and the wrong entry."""
    if (directory / CASES_FILE).is_file():
        return _cases(directory)
    path = directory / ORACLE_FILE
    if not path.is_file():
        raise CheckpointError(f"{directory} has neither {CASES_FILE} nor {ORACLE_FILE}: name the directory of a bundle")
    entries = read_json_value(path)
    if not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{path} lists no cases")
    return [_oracle(index, BundleEntry(f"{ORACLE_FILE}[{index}]", each)) for index, each in enumerate(entries)]


def _cases(directory: Path) -> list[ChatCase]:
    values = read_json(directory / CASES_FILE)
    entries = values.get("cases")
    if not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{directory / CASES_FILE} lists no cases")
    quantised = (directory / LOGITS_FILE).is_file()
    tensors = read_tensors(directory / (LOGITS_FILE if quantised else TENSORS_FILE))
    if quantised and isinstance(entries[0], dict) and "generated_ids" in entries[0]:
        return [
            _generated(index, BundleEntry(f"{CASES_FILE} case{index}", each), tensors)
            for index, each in enumerate(entries)
        ]
    named = {f"case{index}": each for index, each in enumerate(entries)}
    if "chat" in values:
        named["chat"] = values["chat"]
    return [_case(directory, name, BundleEntry(f"{CASES_FILE} {name}", each), tensors) for name, each in named.items()]


def _case(directory: Path, name: str, entry: BundleEntry, tensors: Mapping[str, Tensor]) -> ChatCase:
    prefix = name + "."
    messages = entry.optional_objects("messages")
    delta = entry.optional_numbers("rope_delta")
    return ChatCase(
        name=name,
        prompt=entry.text("prompt") if messages is None else None,
        messages=messages,
        images=[read_image(directory / image) for image in entry.texts("images")],
        rendered=entry.optional_text("rendered"),
        input_ids=entry.ids("input_ids"),
        greedy_ids=entry.optional_ids("greedy_ids") or [],
        text=entry.optional_text("greedy_text"),
        rope_delta=int(delta[0]) if delta else None,
        tensors={key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)},
    )


def _generated(index: int, entry: BundleEntry, tensors: Mapping[str, Tensor]) -> ChatCase:
    name = f"{index}.logits"
    return ChatCase(
        name=f"case{index}",
        input_ids=entry.ids("input_ids"),
        greedy_ids=entry.ids("generated_ids"),
        tensors={"all_logits": tensors[name]} if name in tensors else {},
    )


def _oracle(index: int, entry: BundleEntry) -> ChatCase:
    top = entry.optional_pairs("last_logits_top5") or []
    tensors = {
        "top_ids": torch.tensor([int(token) for token, _ in top]),
        "top_logits": torch.tensor([logit for _, logit in top]),
    }
    return ChatCase(
        name=f"case{index}",
        prompt=entry.text("prompt"),
        input_ids=entry.ids("input_ids"),
        greedy_ids=entry.ids("generated_ids"),
        whole_text=entry.optional_text("text"),
        tensors=tensors if top else {},
    )
