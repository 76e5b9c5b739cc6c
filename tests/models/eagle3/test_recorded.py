"""The head and its trees against what the original implementation recorded."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.models.chat import stems_of
from edgeflow.models.checkpoint import Weights
from edgeflow.models.eagle3.config import read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes, grow
from edgeflow.models.llama import LlamaDecoder
from edgeflow.models.network import Taps
from edgeflow.models.published import read_published
from tests.oracles import oracle

CPU = torch.device("cpu")
BUNDLE = "eagle3-tiny"
TOLERANCE = 1e-4
CAPACITY = 128
pytestmark = pytest.mark.oracle(BUNDLE)


def cases() -> list[dict[str, Any]]:
    path = oracle(BUNDLE) / "cases.json"
    return json.loads(path.read_text())["cases"] if path.is_file() else [{}]


CASES = cases()


@pytest.fixture(scope="module")
def base() -> LlamaDecoder:
    path = oracle(BUNDLE) / "base"
    weights = Weights(path, torch.float32, CPU)
    return LlamaDecoder(read_published(path).text, weights, stem=stems_of(weights)[0])


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(oracle(BUNDLE) / "expected.safetensors")


def read_head(base: LlamaDecoder, **options: Any) -> Eagle3Head:
    path = oracle(BUNDLE) / "draft"
    return Eagle3Head.read(path, read_eagle3(path, base.config), base, torch.float32, CPU, **options)


def sizes() -> TreeSizes:
    stated = json.loads((oracle(BUNDLE) / "cases.json").read_text())["params"]
    return TreeSizes(rows=stated["total_token"], depth=stated["depth"], width=stated["top_k"])


@torch.inference_mode()
def features_of(base: LlamaDecoder, taps: tuple[int, ...], ids: list[int]) -> Tensor:
    """[L, taps * E], in one pass over a text."""
    kept = Taps(taps)
    layout = PackedLayout.of([Span(0, 0, len(ids))], CPU)
    base.forward(base.embed(torch.tensor(ids)), layout, base.kv_slots(1, CAPACITY), kept)
    return kept.features


@torch.inference_mode()
def extended(head: Eagle3Head, kv: KVSlots, start: int, features: Tensor, following: list[int]) -> Tensor:
    """The head's output [n, E] for accepted tokens; row t has the feature of token t and the embedding of the next."""
    layout = PackedLayout.of([Span(0, start, len(following))], CPU)
    return head.forward(head.project(features), head.embed(torch.tensor(following)), layout, kv)


def parents_of(tree: dict[str, Any]) -> list[int]:
    """The parent of each row after the root, from the recorded paths."""
    parents: dict[int, int] = {}
    for path in tree["retrieve_indices"]:
        rows = [row for row in path if row >= 0]
        for parent, row in pairwise(rows):
            assert parents.setdefault(row, parent) == parent
    return [parents[row] for row in range(1, len(tree["draft_tokens"]))]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_features_of_the_base(base: LlamaDecoder, expected: dict[str, Tensor], index: int):
    case, taps = CASES[index], (2, 4, 5)
    features = features_of(base, taps, case["output_ids"])
    known = 0
    for step in range(3):
        recorded = expected[f"case{index}.step{step}.draft_input_hidden_3x"][0]
        assert len(recorded) == (len(case["prompt_ids"]) if step == 0 else case["accept_lengths"][step - 1] + 1)
        off = (features[known : known + len(recorded)] - recorded).abs().max()
        assert off <= TOLERANCE * recorded.abs().max()
        known += len(recorded)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("index", range(len(CASES)))
@torch.inference_mode()
def test_every_tree_of_a_text(base: LlamaDecoder, expected: dict[str, Tensor], index: int, on_host: bool):
    """After each verification the head's slot gets the features of the tokens that were accepted."""
    case = CASES[index]
    head = read_head(base, table=built_in_table() if on_host else built_in_table().forcing(packed_attention="masked"))
    kv, text = head.kv_slots(1, CAPACITY), [*case["output_ids"], case["trees"][-1]["draft_tokens"][0]]
    kv.data.fill_(torch.nan)
    features = features_of(base, head.config.taps, text)
    known, length = 0, len(case["prompt_ids"]) + 1
    for step, (tree, accepted) in enumerate(zip(case["trees"], [*case["accept_lengths"], 0], strict=True)):
        hidden = extended(head, kv, known, features[known : length - 1], text[known + 1 : length])[-1:]
        known = length - 1
        place = torch.tensor([known])
        grown = grow(
            head,
            kv,
            slots=torch.zeros(1, dtype=torch.long),
            ends=place,
            rope=place[None],
            hidden=hidden,
            sizes=sizes(),
            whole=PackedLayout.of([], CPU),
            on_host=on_host,
        )
        assert [text[known], *grown.tokens[0].tolist()] == tree["draft_tokens"], step
        parents = grown.parents[0].tolist()
        assert parents == parents_of(tree), step
        recorded = expected.get(f"case{index}.step{step}.tree_mask")
        if recorded is not None:
            assert torch.equal(mask_of(parents), recorded.bool())
        length += accepted + 1
    assert length == len(text) + 1


def mask_of(parents: list[int]) -> Tensor:
    """[n, n] bool: the ancestors of each row, and itself."""
    seen = torch.eye(len(parents) + 1, dtype=torch.bool)
    for row, parent in enumerate(parents, start=1):
        seen[row] |= seen[parent]
    return seen


def test_the_recorded_head_fits_its_base(base: LlamaDecoder):
    config = read_eagle3(oracle(BUNDLE) / "draft", base.config)
    assert (config.taps, config.draft_vocabulary, config.target_hidden) == ((2, 4, 5), 256, 64)
    assert not config.own_embedding and not config.norm_before_residual
    assert read_head(base)._embedding is base.embedding
