"""Trees of drafts against a naive twin, and their structure whatever the numbers are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.models.eagle3.config import read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import DraftedTrees, TreeSizes, grow
from edgeflow.models.llama import LlamaDecoder
from tests.models.eagle3.naive_head import NaiveHead, Path, naive_tree
from tests.models.eagle3.random_head import (
    BASE,
    CPU,
    DRAFTS,
    ENTRIES,
    VOCABULARY,
    random_base,
    random_tensors,
    write_head,
)

CAPACITY, SLOTS = 96, 4
MASKED = built_in_table().forcing(packed_attention="masked")
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}


@dataclass(frozen=True)
class HeadPair:
    """A head by which attention reads places on the host, the same one by which it does not, and the twin."""

    on_host: Eagle3Head
    on_device: Eagle3Head
    naive: NaiveHead


def pair_of(folder: FilePath, base: LlamaDecoder, tensors: dict[str, Tensor], **changes: Any) -> HeadPair:
    config = read_eagle3(write_head(folder, {**ENTRIES, **changes}, tensors), base.config)
    heads = [Eagle3Head.read(folder, config, base, torch.float64, CPU, table) for table in (None, MASKED)]
    wide = {name: each.double() if each.is_floating_point() else each for name, each in tensors.items()}
    return HeadPair(*heads, NaiveHead(config, wide, base.embed(torch.arange(VOCABULARY))))


@pytest.fixture(scope="module")
def base() -> LlamaDecoder:
    return random_base()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, base: LlamaDecoder) -> dict[str, HeadPair]:
    folder, tensors = tmp_path_factory.mktemp("heads"), random_tensors()
    sure = tensors["lm_head.weight"].clone()
    sure[:2] = 0
    sure[0, 3], sure[1, 3] = 1e5, -1e5  # one of two tokens is certain
    return {
        "plain": pair_of(folder / "plain", base, tensors),
        "other": pair_of(folder / "other", base, random_tensors(bias=True), norm_before_residual=True, **MROPE),
        "equal": pair_of(folder / "equal", base, {**tensors, "lm_head.weight": torch.zeros(DRAFTS, 24)}),
        "sure": pair_of(folder / "sure", base, {**tensors, "lm_head.weight": sure}),
    }


@dataclass(frozen=True)
class Sequence:
    """A text of some rows in a slot, at RoPE positions of C components."""

    slot: int
    path: Path

    @property
    def position(self) -> tuple[int, ...]:
        """The RoPE position of the next row."""
        return tuple(each + 1 for each in self.path.positions[-1])


def sequence(slot: int, length: int, seed: int, *, shift: int, components: int) -> Sequence:
    draw = torch.Generator().manual_seed(seed)
    features = tuple(torch.randn(length, 24, generator=draw, dtype=torch.float64))
    tokens = tuple(torch.randint(0, VOCABULARY, (length,), generator=draw).tolist())
    positions = tuple(tuple(at + shift + 2 * c for c in range(components)) for at in range(length))
    return Sequence(slot, Path(features, tokens, positions))


@torch.inference_mode()
def known(head: Eagle3Head, kv: KVSlots, texts: list[Sequence]) -> Tensor:
    """Writes the sequences; the head's output for the last row of each [S, E]."""
    spans = [Span(each.slot, 0, len(each.path.tokens)) for each in texts]
    positions = torch.tensor([row for each in texts for row in each.path.positions]).T
    feature = torch.stack([row for each in texts for row in each.path.features])
    tokens = torch.tensor([token for each in texts for token in each.path.tokens])
    layout = PackedLayout.of(spans, CPU, rope_position=positions)
    return head.forward(feature, head.embed(tokens), layout, kv)[layout.sampled_rows]


@torch.inference_mode()
def trees(
    head: Eagle3Head, kv: KVSlots, texts: list[Sequence], hidden: Tensor, sizes: TreeSizes, *, on_host: bool
) -> DraftedTrees:
    return grow(
        head,
        kv,
        slots=torch.tensor([each.slot for each in texts]),
        ends=torch.tensor([len(each.path.tokens) for each in texts]),
        rope=torch.tensor([each.position for each in texts]).T,
        hidden=hidden,
        sizes=sizes,
        whole=PackedLayout.of([], CPU),
        on_host=on_host,
    )


@st.composite
def tree_sizes(draw: st.DrawFn) -> TreeSizes:
    width = draw(st.integers(1, 4))
    depth = draw(st.integers(0, 3 if width > 1 else 6))
    return TreeSizes(rows=1 + draw(st.integers(1, min(62, width + depth * width**2))), depth=depth, width=width)


@pytest.mark.parametrize("name", ["plain", "other", "equal", "sure"])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), sizes=tree_sizes(), count=st.integers(1, 2), shift=st.integers(0, 5))
def test_equals_the_naive_twin(pairs: dict[str, HeadPair], name: str, data, sizes: TreeSizes, count: int, shift: int):
    pair, components = pairs[name], 3 if name == "other" else 1
    slots = data.draw(st.permutations(range(SLOTS)))[:count]
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    texts = [
        sequence(slot, length, 10 * slot + length, shift=shift, components=components)
        for slot, length in zip(slots, lengths, strict=True)
    ]
    expected = []
    for text in texts:
        hidden = pair.naive.hidden(text.path)[-1]
        expected.append(naive_tree(pair.naive, text.path, hidden, text.position, sizes))
    for head, on_host in ((pair.on_host, True), (pair.on_device, False)):
        kv = head.kv_slots(SLOTS, CAPACITY)
        kv.data.fill_(torch.nan)
        grown = trees(head, kv, texts, known(head, kv, texts), sizes, on_host=on_host)
        assert list(zip(grown.tokens.tolist(), grown.parents.tolist(), strict=True)) == expected


@torch.inference_mode()
def test_rows_of_the_layer_equal_the_naive_twin(pairs: dict[str, HeadPair]):
    for name, components in (("plain", 1), ("other", 3)):
        pair = pairs[name]
        text = sequence(2, 9, 3, shift=4, components=components)
        expected = pair.naive.hidden(text.path)
        kv = pair.on_host.kv_slots(SLOTS, CAPACITY)
        spans = [Span(2, 0, 5), Span(2, 5, 4)]
        feature, embedded = torch.stack(text.path.features), pair.on_host.embed(torch.tensor(text.path.tokens))
        positions, found = torch.tensor(text.path.positions).T, []
        for span in spans:
            part = slice(span.start, span.start + span.length)
            layout = PackedLayout.of([span], CPU, rope_position=positions[:, part])
            found.append(pair.on_host.forward(feature[part], embedded[part], layout, kv))
        assert (torch.cat(found) - expected).abs().max() <= 1e-10 * expected.abs().max()
        assert torch.equal(feature, torch.stack(text.path.features))
        best = pair.on_host.log_probabilities(expected).topk(3)
        assert [pair.naive.best(row, 3) for row in expected] == [
            list(zip(*each, strict=True))
            for each in zip(best.values.tolist(), pair.on_host.targets[best.indices].tolist(), strict=True)
        ]


def test_a_chain_is_the_best_token_of_each_row(pairs: dict[str, HeadPair]):
    pair, text = pairs["plain"], sequence(1, 4, 5, shift=0, components=1)
    kv = pair.on_host.kv_slots(SLOTS, CAPACITY)
    hidden = known(pair.on_host, kv, [text])
    grown = trees(pair.on_host, kv, [text], hidden, TreeSizes(rows=7, depth=5, width=1), on_host=True)
    assert grown.parents.tolist() == [list(range(6))]
    path, feature, tokens = text.path, hidden[0], []
    for step in range(6):
        tokens.append(pair.naive.best(feature, 1)[0][1])
        path = path.then(feature, tokens[-1], (4 + step,))
        feature = pair.naive.hidden(path)[-1]
    assert grown.tokens.tolist() == [tokens]


def test_equal_scores_keep_a_parent_before_its_children(pairs: dict[str, HeadPair]):
    """A token that is certain has the score of its parent."""
    pair, text = pairs["sure"], sequence(0, 3, 8, shift=0, components=1)
    kv = pair.on_host.kv_slots(SLOTS, CAPACITY)
    hidden = known(pair.on_host, kv, [text])
    assert pair.on_host.log_probabilities(hidden).max() == 0
    grown = trees(pair.on_host, kv, [text], hidden, TreeSizes(rows=5, depth=3, width=3), on_host=True)
    assert grown.parents.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("on_host", [True, False])
def test_numbers_that_are_not_finite_give_a_whole_tree(pairs: dict[str, HeadPair], on_host: bool, wrong: float):
    pair = pairs["plain"]
    head = pair.on_host if on_host else pair.on_device
    texts = [sequence(slot, 4, slot, shift=0, components=1) for slot in (3, 1)]
    kv, sizes = head.kv_slots(SLOTS, CAPACITY), TreeSizes(rows=40, depth=4, width=4)
    hidden = known(head, kv, texts)
    hidden = torch.cat([torch.full_like(hidden[:1], wrong), hidden[1:]])
    grown = trees(head, kv, texts, hidden, sizes, on_host=on_host)
    check_structure(grown, head, sizes)
    naive = naive_tree(pair.naive, texts[1].path, hidden[1], texts[1].position, sizes)
    assert (grown.tokens[1].tolist(), grown.parents[1].tolist()) == naive
    followed = [*range(9), 21]  # scores are equal: the first candidates of each level
    assert grown.parents[0].tolist() == [row for row in followed for _ in range(4)][:39]


@torch.inference_mode()
def test_a_token_without_numbers_is_not_followed(tmp_path: FilePath, base: LlamaDecoder):
    tensors = {**random_tensors(), "embed_tokens.weight": base.embed(torch.arange(VOCABULARY)).float()}
    targets = torch.arange(DRAFTS) + tensors["d2t"]
    tensors["embed_tokens.weight"][targets[::2]] = torch.nan
    head, sizes = pair_of(tmp_path, base, tensors).on_device, TreeSizes(rows=12, depth=4, width=5)
    text = sequence(0, 3, 2, shift=0, components=1)
    kv = head.kv_slots(SLOTS, CAPACITY)
    feature = torch.stack(text.path.features)
    good = head.embed(targets[1:6:2])
    hidden = head.forward(feature, good, PackedLayout.of([Span(0, 0, 3)], CPU), kv)[-1:]
    grown = trees(head, kv, [text], hidden, sizes, on_host=False)
    check_structure(grown, head, sizes)
    tokens, parents = grown.tokens[0].tolist(), grown.parents[0].tolist()
    followed = {tokens[parent - 1] for parent in parents if parent}
    assert followed and followed <= set(targets[1::2].tolist())


@torch.inference_mode()
def test_nothing_is_read_on_the_host(tmp_path: FilePath, base: LlamaDecoder):
    """Tensors of the meta device have no numbers to read."""
    meta = torch.device("meta")
    tensors = {**random_tensors(), "embed_tokens.weight": torch.zeros(VOCABULARY, 24)}
    config = read_eagle3(write_head(tmp_path, ENTRIES, tensors), base.config)
    head = Eagle3Head.read(tmp_path, config, base, torch.float32, meta)
    sizes, count = TreeSizes(rows=24, depth=3, width=4), 2
    integers = torch.zeros(count, dtype=torch.long, device=meta)
    hidden, kv = torch.zeros(count, 24, device=meta), head.kv_slots(SLOTS, CAPACITY)
    grown = grow(
        head,
        kv,
        slots=integers,
        ends=integers,
        rope=integers[None],
        hidden=hidden,
        sizes=sizes,
        whole=PackedLayout.of([], meta),
        on_host=False,
    )
    assert grown.tokens.shape == grown.parents.shape == (count, 23) and grown.tokens.is_meta


def check_structure(grown: DraftedTrees, head: Eagle3Head, sizes: TreeSizes) -> None:
    assert grown.tokens.shape == grown.parents.shape == (len(grown.tokens), sizes.rows - 1)
    assert ((grown.parents >= 0) & (grown.parents < torch.arange(1, sizes.rows))).all()
    assert torch.isin(grown.tokens, head.targets).all()


def test_the_largest_tree_has_a_bit_for_every_ancestor(pairs: dict[str, HeadPair]):
    pair, text = pairs["plain"], sequence(2, 3, 4, shift=0, components=1)
    for sizes in (TreeSizes(rows=60, depth=7, width=10), TreeSizes(rows=63, depth=10, width=7)):
        kv = pair.on_host.kv_slots(SLOTS, CAPACITY)
        hidden = known(pair.on_host, kv, [text])
        grown = trees(pair.on_host, kv, [text], hidden, sizes, on_host=True)
        found = grown.tokens[0].tolist(), grown.parents[0].tolist()
        assert found == naive_tree(pair.naive, text.path, hidden[0], text.position, sizes)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"rows": 1}, "rows of a tree must be an integer, at least 2, got 1"),
        ({"rows": 2.0}, "rows .* got 2.0"),
        ({"depth": -1}, "depth of a tree must be an integer, at least 0, got -1"),
        ({"width": 0}, "width of a tree must be an integer, at least 1, got 0"),
        ({"rows": 64}, "rows of a tree must be at most 63, got 64"),
        ({"depth": 8}, r"\(depth - 1\) \* width of a tree must be at most 63, got 7 \* 10"),
        ({"rows": 13, "depth": 2, "width": 2}, "depth 2 and width 2 give 10 candidates, but rows 13 need 12"),
        ({"rows": 8, "depth": 5, "width": 1}, "give 6 candidates, but rows 8 need 7"),
    ],
)
def test_sizes_that_are_rejected(sizes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        TreeSizes(**sizes)


def test_trees_that_do_not_fit_are_rejected(pairs: dict[str, HeadPair]):
    head, text = pairs["plain"].on_host, sequence(0, 5, 1, shift=0, components=1)
    kv = head.kv_slots(1, 16)
    hidden = known(head, kv, [text])
    with pytest.raises(ValueError, match="a tree of 12 places after 5 is beyond slots of 16 positions"):
        trees(head, kv, [text], hidden, TreeSizes(rows=9, depth=4, width=3), on_host=True)
    with pytest.raises(ValueError, match=f"width 20 of a tree is more than the head's vocabulary {DRAFTS}"):
        trees(head, kv, [text], hidden, TreeSizes(rows=9, depth=1, width=20), on_host=True)
    assert BASE.vocab_size == VOCABULARY
