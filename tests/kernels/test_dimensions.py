"""Names of the operator table's dimensions: spellings of others become ours, unknown ones are refused."""

from __future__ import annotations

import pytest

from edgeflow.kernels.table.dimensions import KINDS, ROLES, SIGNATURES, covers, read_model, read_role, read_signature


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("", ""),
        ("m=1|in_features=1536|...", "m=1|e=1536"),
        ("rows=300|out_features=8|in_features=16", "m=512|n=8|e=16"),
        ("positions=65|num_key_value_heads=2|head_dim=64", "t=128|kv=2|d=64"),
        ("...", ""),
    ],
)
def test_long_names_become_letters_and_rows_their_class(text, ours):
    assert read_signature(text) == ours


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("in_feature=1536", r"'in_feature=1536': no size has this name; known: m, rows, tokens, n, out_features"),
        ("m=1|...|e=2", r"'\.\.\.': no size"),
        ("m=many", "'m=many': a size is an integer"),
        ("m=-1", "'m=-1': a size is an integer"),
        ("m=1|rows=2", "'rows=2': this size is given twice"),
    ],
)
def test_signatures_that_no_call_can_match_are_rejected(text, said):
    with pytest.raises(ValueError, match=said):
        read_signature(text)


def test_an_entry_names_some_sizes_of_a_call():
    assert covers("", "m=1|n=2") and covers("n=2", "m=1|n=2") and covers("n=2|m=1", "m=1|n=2")
    assert not covers("n=3", "m=1|n=2") and not covers("d=2", "m=1|n=2") and not covers("n=2", "")


def test_roles_and_families_have_the_spelling_of_the_paper_and_of_checkpoints():
    assert [read_role(name) for name in ("fused_qkv", "o_proj", "lm_head", "query", "")] == [
        "qkv",
        "output",
        "head",
        "query",
        "",
    ]
    assert [read_model(name) for name in ("qwen2_5", "qwen3", "mine")] == ["qwen2", "qwen3", "mine"]
    with pytest.raises(ValueError, match="'post' is not the role of an operator; known: down, final, full, gate_up"):
        read_role("post")


def test_every_operator_has_a_kind_roles_and_a_signature():
    assert KINDS.keys() == ROLES.keys() == SIGNATURES.keys()
    assert all(ROLES.values())
