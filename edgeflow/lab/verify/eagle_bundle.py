"""Bundles of EAGLE-3 heads: a base, a head for it, and runs that were recorded from the original implementation.

`base/` and `draft/` are checkpoints. `cases.json` has the sizes of the trees in `params`, and a run in each entry of
`cases`: the tokens, every tree, and what each verification accepted. `expected.safetensors` holds tensors of some trees
as `case<index>.step<tree>.<quantity>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.lab.verify.bundle import CASES_FILE, TENSORS_FILE, BundleEntry
from edgeflow.models.checkpoint import read_tensors, tensor_shapes_of
from edgeflow.models.eagle3.config import Eagle3Config
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.llama import LlamaConfig
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

BASE, HEAD = "base", "draft"
FEATURES, MASK = "draft_input_hidden_3x", "tree_mask"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTree:
    """A tree of n rows, the newest token first."""

    tokens: list[int]
    paths: list[list[int]]
    """The rows from the root to each leaf, padded with -1 to one length."""
    depths: list[int]
    """Both: per row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EagleCase:
    """A recorded run."""

    name: str
    prompt: list[int]
    answer: list[int]
    """Tokens after the prompt, including the newest one."""
    accepted: list[int]
    """Number of drafts that each verification accepted."""
    best: list[int]
    """The path with the accepted drafts, the first if there are several."""
    trees: list[RecordedTree]
    """One for each verification, and one after the last."""
    features: Mapping[int, Tensor]
    """By tree, [rows, taps * E]: the features that the head read before it grew the tree."""
    masks: Mapping[int, Tensor]
    """By tree, [n, n]: 1 if a row of the tree sees another. Both hold as many trees as were recorded."""

    @property
    def roots(self) -> list[int]:
        """The place of each tree's root in the sequence."""
        return _roots(self.prompt, self.accepted)


@dataclass(frozen=True, slots=True)
class EagleBundle:
    """All cases, and the sizes of their trees."""

    sizes: TreeSizes
    cases: list[EagleCase]


def is_eagle_bundle(directory: Path) -> bool:
    """True for a directory with a base and a head for it."""
    return (directory / BASE).is_dir() and (directory / HEAD).is_dir()


def read_eagle_bundle(directory: Path, base: LlamaConfig, head: Eagle3Config) -> EagleBundle:
    """Read sizes and cases; CheckpointError names the case and the wrong entry.

    Numbers are checked before any tensor is read, and tensors by their shapes.
    """
    path = directory / CASES_FILE
    top = BundleEntry(str(path), read_json(path))
    vocabularies = {"vocab": base.vocab_size, "draft_vocab": head.draft_vocabulary}
    for name, own in vocabularies.items():
        stated = top.optional_whole_number(name)
        if stated not in (None, own):
            raise CheckpointError(f"{path}: {name} is {stated}, but the checkpoint beside it has {own}")
    sizes = _sizes(top.entry("params"), head, str(path))
    entries = top.entries("cases")
    if not entries:
        raise CheckpointError(f"{path} lists no cases")
    reader = _CaseReader(sizes, base, str(path))
    cases = [reader.case(f"case{index}", entry) for index, entry in enumerate(entries)]
    return EagleBundle(sizes, _with_tensors(directory, cases, sizes, head.feature_width))


def _sizes(params: BundleEntry, head: Eagle3Config, where: str) -> TreeSizes:
    rows, depth, width = (params.whole_number(name) for name in ("total_token", "depth", "top_k"))
    if width > head.draft_vocabulary:
        raise CheckpointError(f"{where}: params.top_k is {width}, but the head has {head.draft_vocabulary} tokens")
    try:
        return TreeSizes(rows=rows, depth=depth, width=width)
    except ValueError as error:
        raise CheckpointError(f"{where}: params total_token {rows}, depth {depth}, top_k {width}: {error}") from error


@dataclass(frozen=True, slots=True)
class _CaseReader:
    sizes: TreeSizes
    base: LlamaConfig
    where: str

    def case(self, name: str, entry: BundleEntry) -> EagleCase:
        """A case without its tensors."""
        where = f"{self.where} {name}"
        prompt, output = entry.ids("prompt_ids"), entry.ids("output_ids")
        accepted, best = entry.ids("accept_lengths"), entry.ids("best_candidates")
        trees = [self._tree(each, f"{where} trees[{step}]") for step, each in enumerate(entry.entries("trees"))]
        longest = self.base.max_position_embeddings
        if not prompt or output[: len(prompt)] != prompt:
            raise CheckpointError(f"{where}: output_ids must begin with prompt_ids, which must not be empty")
        if len(output) >= longest:
            raise CheckpointError(f"{where}: output_ids has {len(output)} tokens, the base {longest} positions")
        _check_range(where, "output_ids", output, 0, self.base.vocab_size - 1)
        _check_range(where, "accept_lengths", accepted, 0, self.sizes.depth + 1)
        if not len(trees) == len(accepted) + 1 == len(best) + 1:
            raise CheckpointError(
                f"{where}: {len(accepted)} accept_lengths must have as many best_candidates and one tree more, got "
                f"{len(best)} and {len(trees)}"
            )
        last = _roots(prompt, accepted)[-1]
        if last != len(output):
            raise CheckpointError(f"{where}: by accept_lengths output_ids has {last} tokens, but it has {len(output)}")
        for step, (index, tree) in enumerate(zip(best, trees, strict=False)):
            _check_range(where, f"best_candidates[{step}]", [index], 0, len(tree.paths) - 1)
        return EagleCase(
            name=name,
            prompt=prompt,
            answer=[*output[len(prompt) :], trees[-1].tokens[0]],
            accepted=accepted,
            best=best,
            trees=trees,
            features={},
            masks={},
        )

    def _tree(self, entry: BundleEntry, where: str) -> RecordedTree:
        rows, deepest = self.sizes.rows, self.sizes.depth + 1
        tokens, depths = entry.ids("draft_tokens"), entry.ids("tree_position_ids")
        paths = entry.id_rows("retrieve_indices")
        for name, values in (("draft_tokens", tokens), ("tree_position_ids", depths)):
            if len(values) != rows:
                raise CheckpointError(f"{where}: {name} must have {rows} numbers as params.total_token says")
        _check_range(where, "draft_tokens", tokens, 0, self.base.vocab_size - 1)
        _check_range(where, "tree_position_ids", depths, 0, deepest)
        width = len(paths[0]) if paths else 0
        if not 1 <= width <= deepest + 1 or len(paths) > rows or any(len(path) != width for path in paths):
            raise CheckpointError(
                f"{where}: retrieve_indices must be 1 to {rows} paths of one length, at most {deepest + 1}"
            )
        _check_range(where, "retrieve_indices", [row for path in paths for row in path], -1, rows - 1)
        return RecordedTree(tokens=tokens, paths=paths, depths=depths)


def _check_range(where: str, name: str, values: Sequence[int], least: int, most: int) -> None:
    for value in values:
        if not least <= value <= most:
            raise CheckpointError(f"{where}: {name} must be from {least} to {most}, got {value}")


def _roots(prompt: Sequence[int], accepted: Sequence[int]) -> list[int]:
    return list(accumulate((each + 1 for each in accepted), initial=len(prompt)))


def _with_tensors(directory: Path, cases: Sequence[EagleCase], sizes: TreeSizes, width: int) -> list[EagleCase]:
    """The cases with their tensors.

    width: of a row of features.
    """
    path = directory / TENSORS_FILE
    if not path.is_file():
        raise CheckpointError(f"{directory} has no {TENSORS_FILE}: name the directory of a bundle")
    wanted = _shapes(cases, sizes, width)
    for name, shape in tensor_shapes_of(path).items():
        if name not in wanted:
            raise CheckpointError(f"{path}: {name} is of no tree of {CASES_FILE}, or is not {FEATURES} or {MASK}")
        if shape != wanted[name]:
            raise CheckpointError(f"{path}: {name} has shape {list(shape)}, expected {list(wanted[name])}")
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and bool(torch.isfinite(tensor).all())):
            raise CheckpointError(f"{path}: {name} must be finite floating-point numbers")
    return [_with_own(case, tensors) for case in cases]


def _with_own(case: EagleCase, tensors: Mapping[str, Tensor]) -> EagleCase:
    names = [(step, f"{case.name}.step{step}") for step in range(len(case.trees))]
    features = {step: tensors[f"{name}.{FEATURES}"][0] for step, name in names if f"{name}.{FEATURES}" in tensors}
    masks = {step: tensors[f"{name}.{MASK}"] for step, name in names if f"{name}.{MASK}" in tensors}
    return replace(case, features=features, masks=masks)


def _shapes(cases: Sequence[EagleCase], sizes: TreeSizes, width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors that a bundle may have."""
    shapes: dict[str, tuple[int, ...]] = {}
    for case in cases:
        starts = [0, *case.roots]
        for step, (start, stop) in enumerate(zip(starts, case.roots, strict=False)):
            shapes[f"{case.name}.step{step}.{FEATURES}"] = (1, stop - start, width)
            shapes[f"{case.name}.step{step}.{MASK}"] = (sizes.rows, sizes.rows)
    return shapes
