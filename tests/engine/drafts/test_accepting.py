"""Accepted paths and trees against a naive twin that walks rows one by one."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.engine.drafts.verifier import accepted_of_chain, accepted_of_tree
from edgeflow.kernels.kv.visibility import DraftTrees

CPU = torch.device("cpu")
VOCABULARY = 5


def tree(rows: int, seed: int, deep: float) -> tuple[list[int], list[int]]:
    """The parent and the token of each row after the root. Siblings are different tokens. deep: how often a row
    follows the one before it.
    """
    choose = random.Random(seed)
    parents: list[int] = []
    tokens = [0]
    said: dict[int, set[int]] = {}
    for row in range(1, rows):
        open_rows = [each for each in range(row) if len(said.get(each, ())) < VOCABULARY]
        last = row - 1 if choose.random() < deep else choose.choice(open_rows)
        parent = last if last in open_rows else open_rows[-1]
        token = choose.choice([each for each in range(VOCABULARY) if each not in said.get(parent, ())])
        said.setdefault(parent, set()).add(token)
        parents.append(parent)
        tokens.append(token)
    return parents, tokens


def walked(parents: list[int], tokens: list[int], given_tokens: list[int], sound: list[bool]) -> list[int]:
    """The rows of the accepted path: from the root on, the child whose token the row before it gives."""
    path = [0]
    while True:
        row = path[-1]
        children = [child for child, parent in enumerate(parents, start=1) if parent == row]
        right = [child for child in children if sound[row] and tokens[child] == given_tokens[row]]
        if not right:
            return path
        (chosen,) = right
        path.append(chosen)


def depths(parents: list[int]) -> list[int]:
    found = [0]
    for parent in parents:
        found.append(found[parent] + 1)
    return found


@given(
    st.integers(1, 63), st.integers(1, 3), st.integers(0, 10_000), st.sampled_from([0.1, 0.6, 1.0]), st.integers(0, 2)
)
def test_trees_equal_the_twin(rows: int, segments: int, seed: int, deep: float, spare: int):
    """Trees of several slots at once; rows after `counts` only pad. Half of all rows give the token of a child."""
    choose = random.Random(seed)
    grown = [tree(rows, seed + index, deep) for index in range(segments)]
    deepest = max(max(depths(parents)) for parents, _ in grown)
    trees = DraftTrees(segments + 1, rows + spare, CPU)
    slots = torch.tensor([segments - index for index in range(segments)])
    if rows > 1:
        trees.plant(slots, torch.tensor([parents for parents, _ in grown]), deepest + spare)
    state = [each[slots, :rows] for each in (trees.parent, trees.depth, trees.bits)]
    counts = [choose.randint(1, rows) for _ in grown]
    rights, expected = [], []
    for index, (parents, tokens) in enumerate(grown):
        whole = [0, *parents]
        assert state[0][index].tolist() == whole and state[1][index].tolist() == depths(parents)
        for row in range(rows):
            seen, here = {row}, row
            while here:
                here = whole[here]
                seen.add(here)
            assert state[2][index, row] == sum(1 << each for each in seen)
        children = {parent: [row for row in range(1, rows) if whole[row] == parent] for parent in range(rows)}
        gives = [
            tokens[choose.choice(children[row])] if children[row] and choose.random() < 0.8 else choose.randrange(9)
            for row in range(rows)
        ]
        sound = [choose.random() < 0.97 for _ in range(rows)]
        kept = counts[index]
        right = [
            choose.random() < 0.5 if not row else row < kept and sound[whole[row]] and gives[whole[row]] == tokens[row]
            for row in range(rows)
        ]
        rights.append(right)
        expected.append(walked(parents[: kept - 1], tokens, gives, sound))
    width = min(rows, deepest + 1)
    verified, path = accepted_of_tree(torch.tensor(rights), state[2], state[1], width)
    assert verified.tolist() == [len(each) for each in expected]
    assert path.tolist() == [[*each, *[each[-1]] * (width - len(each))] for each in expected]


@given(st.integers(1, 63), st.integers(1, 3), st.integers(0, 10_000), st.sampled_from([0.3, 0.9, 1.0]))
def test_chains_equal_the_twin(rows: int, segments: int, seed: int, sure: float):
    choose = random.Random(seed)
    rights = [[choose.random() < sure for _ in range(rows)] for _ in range(segments)]
    expected = []
    for right in rights:
        verified = 1
        while verified < rows and right[verified]:
            verified += 1
        expected.append(verified)
    assert accepted_of_chain(torch.tensor(rights)[:, 1:]).tolist() == expected


@given(st.integers(1, 63), st.integers(0, 10_000), st.sampled_from([0.3, 0.9, 1.0]))
def test_a_chain_is_a_tree_of_one_path(rows: int, seed: int, sure: float):
    choose = random.Random(seed)
    right = torch.tensor([[choose.random() < sure for _ in range(rows)]])
    trees = DraftTrees(1, rows, CPU)
    if rows > 1:
        trees.plant(torch.tensor([0]), torch.arange(rows - 1)[None], rows)
    verified, path = accepted_of_tree(right, trees.bits[:, :rows], trees.depth[:, :rows], rows)
    assert torch.equal(accepted_of_chain(right[:, 1:]), verified)
    assert path.tolist() == [[min(row, int(verified) - 1) for row in range(rows)]]
