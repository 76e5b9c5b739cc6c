"""A small bundle of an EAGLE-3 head: random weights, and runs by naive twins in float64.

The base computes whole texts, without slots; trees are grown row by row (tests/models/eagle3/naive_head.py), and a
verification asks the base for one token after the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.verify.eagle_bundle import BASE, FEATURES, HEAD, MASK
from edgeflow.models.checkpoint import CONFIG_FILE
from edgeflow.models.eagle3.config import read_eagle3
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.llama import LlamaDecoder
from edgeflow.models.network import Taps
from edgeflow.text.weight_files import SINGLE_FILE
from tests.models.eagle3 import random_head
from tests.models.eagle3.naive_head import NaiveHead, Path, naive_tree
from tests.models.eagle3.random_head import CPU, ENTRIES, base_tensors, random_base, random_tensors, write_head

VOCABULARY, DRAFTS = 12, 9  # few tokens, so that a random head is often right
SIZES = TreeSizes(rows=14, depth=2, width=4)
TEXTS = replace(random_head.BASE, vocab_size=VOCABULARY, max_position_embeddings=64)
HEADS = {**ENTRIES, "vocab_size": VOCABULARY, "draft_vocab_size": DRAFTS}
PROMPTS = ([3, 7, 1, 1, 10, 4], [5], [2, 8])
VERIFICATIONS = 6


@dataclass(frozen=True)
class _Twin:
    base: LlamaDecoder
    head: NaiveHead

    def features(self, text: Sequence[int]) -> Tensor:
        """[L, taps * E]"""
        return self._forward(text)[1]

    def next(self, text: Sequence[int]) -> int:
        """The greedy token behind a text."""
        return int(self.base.logits(self._forward(text)[0][-1:], "prefill").argmax())

    def _forward(self, text: Sequence[int]) -> tuple[Tensor, Tensor]:
        kept, layout = Taps(self.head.config.taps), PackedLayout.of([Span(0, 0, len(text))], CPU)
        hidden = self.base.forward(self.base.embed(torch.tensor(text)), layout, self.base.kv_slots(1, len(text)), kept)
        return hidden, kept.features

    def tree(self, text: Sequence[int], features: Tensor) -> _Tree:
        """The tree behind a text, whose last token is the root. features: of all rows before it."""
        rows = tuple(features @ self.head.tensors["fc.weight"].T)
        known = Path(rows, tuple(text[1:]), tuple((at,) for at in range(len(rows))))
        tokens, parents = naive_tree(self.head, known, self.head.hidden(known)[-1], (len(rows),), SIZES)
        return _Tree([text[-1], *tokens], [-1, *parents])


@dataclass(frozen=True)
class _Tree:
    tokens: list[int]
    parents: list[int]

    def path(self, row: int) -> list[int]:
        return [] if row < 0 else [*self.path(self.parents[row]), row]

    def child(self, row: int, token: int) -> int | None:
        rows = zip(self.parents, self.tokens, strict=True)
        return next((index for index, each in enumerate(rows) if each == (row, token)), None)

    def paths(self) -> list[list[int]]:
        return [self.path(row) for row in range(len(self.tokens)) if row not in self.parents]

    def entry(self) -> dict[str, Any]:
        longest = max(map(len, self.paths()))
        return {
            "draft_tokens": self.tokens,
            "retrieve_indices": [path + [-1] * (longest - len(path)) for path in self.paths()],
            "tree_position_ids": [len(self.path(row)) - 1 for row in range(len(self.tokens))],
        }

    def mask(self) -> Tensor:
        rows = range(len(self.tokens))
        return torch.tensor([[float(seen in self.path(row)) for seen in rows] for row in rows])


def write_bundle(folder: FilePath) -> FilePath:
    """A run after each prompt, in a new folder."""
    tensors = random_tensors(HEADS)
    (folder / BASE).mkdir(parents=True)
    entries = {**{name: value for name, value in asdict(TEXTS).items() if name != "rope"}, "model_type": "llama"}
    (folder / BASE / CONFIG_FILE).write_text(json.dumps(entries))
    save_file(base_tensors(TEXTS), folder / BASE / SINGLE_FILE)
    config = read_eagle3(write_head(folder / HEAD, HEADS, tensors), TEXTS)
    wide = {name: each.double() if each.is_floating_point() else each for name, each in tensors.items()}
    base = random_base(TEXTS)
    twin = _Twin(base, NaiveHead(config, wide, base.embed(torch.arange(VOCABULARY))))
    expected: dict[str, Tensor] = {}
    with torch.inference_mode():
        cases = [_record(twin, prompt, f"case{index}", expected) for index, prompt in enumerate(PROMPTS)]
    values = {
        "params": {"total_token": SIZES.rows, "depth": SIZES.depth, "top_k": SIZES.width},
        "vocab": VOCABULARY,
        "draft_vocab": DRAFTS,
        "cases": cases,
    }
    (folder / "cases.json").write_text(json.dumps(values))
    save_file(expected, folder / "expected.safetensors")
    return folder


def _record(twin: _Twin, prompt: Sequence[int], name: str, expected: dict[str, Tensor]) -> dict[str, Any]:
    """The entry of a run; its tensors are added to `expected`."""
    text, known = [*prompt, twin.next(prompt)], 0
    trees: list[_Tree] = []
    accepted: list[int] = []
    best: list[int] = []
    for step in range(VERIFICATIONS + 1):
        features = twin.features(text[:-1])
        trees.append(twin.tree(text, features))
        expected[f"{name}.step{step}.{FEATURES}"] = features[known:][None].float().clone()
        expected[f"{name}.step{step}.{MASK}"] = trees[-1].mask()
        if step == VERIFICATIONS:
            break
        known, row = len(text) - 1, 0
        token = twin.next(text)
        text.append(token)
        while (child := trees[-1].child(row, token)) is not None:
            row, token = child, twin.next(text)
            text.append(token)
        path = trees[-1].path(row)
        accepted.append(len(path) - 1)
        best.append(next(index for index, each in enumerate(trees[-1].paths()) if each[: len(path)] == path))
    return {
        "prompt_ids": list(prompt),
        "output_ids": text[:-1],
        "accept_lengths": accepted,
        "best_candidates": best,
        "trees": [tree.entry() for tree in trees],
    }
