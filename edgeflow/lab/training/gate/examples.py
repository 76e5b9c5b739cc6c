"""Texts that a gate learns from, and batches of texts that are cut alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.lab.training.gate.whole_texts import SegmentCut
from edgeflow.models.memory_gate import GateRules


@dataclass(frozen=True, slots=True)
class Example:
    """A text."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]
    """For each token, true if it is to be predicted from the tokens before it."""
    known: int
    """Number of tokens known when the answer starts; they determine how the text is cut. All tokens for a
    plain text.
    """

    @classmethod
    def plain(cls, ids: Sequence[int]) -> Example:
        """A text of which every token is learned."""
        return cls(tuple(ids), (True,) * len(ids), len(ids))

    def teaches(self, rules: GateRules) -> bool:
        """True if a gate influences a learned token."""
        return any(self.learned[_cut(self, rules).plain + 1 :])


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Texts with the same number of folded segments."""

    ids: Tensor
    """[B, L], padded at the end."""
    segments: int
    texts: Tensor
    places: Tensor
    targets: Tensor
    """`texts`, `places`, `targets` [n]: for each learned token its text, the gated row before it, counted from the
    cut's `plain`, and the token itself.
    """

    @property
    def first(self) -> int:
        """The first of the places."""
        return int(self.places.min())


def grouped(examples: Iterable[Example], rules: GateRules, device: torch.device) -> list[Group]:
    """The groups of a batch, by number of segments; examples without influence of a gate are left out."""
    found: dict[int, list[Example]] = {}
    for example in examples:
        if example.teaches(rules):
            found.setdefault(rules.segments(example.known), []).append(example)
    return [_group(found[segments], segments, rules, device) for segments in sorted(found)]


def _group(examples: Sequence[Example], segments: int, rules: GateRules, device: torch.device) -> Group:
    length = max(len(each.ids) for each in examples)
    plain = SegmentCut(rules, length, segments).plain
    ids = torch.zeros(len(examples), length, dtype=torch.long)
    learned = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, each in enumerate(examples):
        ids[row, : len(each.ids)] = torch.tensor(each.ids)
        learned[row, : len(each.ids)] = torch.tensor(each.learned)
    texts, places = learned[:, plain + 1 :].nonzero(as_tuple=True)
    targets = ids[texts, plain + 1 + places]
    return Group(ids.to(device), segments, texts.to(device), places.to(device), targets.to(device))


def _cut(example: Example, rules: GateRules) -> SegmentCut:
    return SegmentCut(rules, len(example.ids), rules.segments(example.known))
