"""Measured figures in texts: each agrees with the result file that its comment names, and none is without a comment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pages.expressions import ExpressionError, evaluate
from benchmarks.pages.files import RESULTS
from benchmarks.pages.prose import agrees, unexplained, wrong

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "benchmarks"
TEXTS = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "edgeflow/**/README.md",
        "client/**/*.md",
        "examples/**/*.md",
        "plugins/**/*.md",
    )
    for path in ROOT.glob(pattern)
    if path.parent != GENERATED and path.is_relative_to(ROOT)
]


def test_figures_agree_with_their_files():
    assert not [f"{path}: {each}" for path in TEXTS for each in wrong(path.read_text(), RESULTS)]


def test_figures_that_look_measured_name_their_file():
    found = [f"{path}: {each}" for path in TEXTS for each in unexplained(path.read_text())]
    assert not found, "add the comment (`python -m benchmarks.pages --help`), or link to docs/benchmarks instead"


DATA = {
    "rows": [{"mode": "serial", "fps": 10, "at": 5.0}, {"mode": "the other", "fps": 25, "at": 5.0}],
    "a b": {"c": 3},
    "text": "x",
    "on": True,
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("rows[1].fps / rows[0].fps", 2.5),
        ('rows[mode="the other"].fps - rows[mode=serial, at=5].fps * 2 + -1', 4),
        ('(["a b"].c + 1) * 2', 8),
        ("rows[-1].fps / 2 / 5", 2.5),
    ],
)
def test_expressions(expression, value):
    assert evaluate(expression, DATA) == value


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rows[at=5].fps", "2 entries"),
        ("rows[2].fps", "no 2"),
        ("none.there", "no 'none'"),
        ("text", "str is not a number"),
        ("on", "bool is not a number"),
        ("text + 1", "is not a number"),
        ("rows[0].fps rows", "left over"),
        ("rows[0", "] is expected"),
        ("rows[0].__class__", "no '__class__'"),
        ("(1", "expected"),
        ("1 $ 2", "cannot read"),
        ("text[mode=serial]", "needs a list"),
    ],
)
def test_expressions_that_are_wrong(expression, problem):
    with pytest.raises(ExpressionError, match=problem.replace("[", r"\[")):
        evaluate(expression, DATA)


def test_comments(tmp_path):
    (tmp_path / "f.json").write_text(json.dumps(DATA))
    right = (
        "Took 2.5 times<!-- f.json: rows[1].fps / rows[0].fps -->, 10 of 25<!-- f.json: rows[0].fps; rows[1].fps -->."
    )
    assert not list(wrong(right, tmp_path)) and not list(unexplained(right))
    for text, problem in (
        ("2.6 times<!-- f.json: rows[1].fps / rows[0].fps -->", "2.6 is printed"),
        ("times<!-- f.json: text -->", "1 expressions, 0 numbers"),
        ("3 times<!-- g.json: text -->", "no result file"),
        ("3 times<!-- f.json: rows[0].fps / 0 -->", "division"),
    ):
        assert [found for found in wrong(text, tmp_path) if problem in found.problem], text
    assert not list(wrong("`3 times<!-- g.json: text -->`", tmp_path))


def test_numbers_agree_when_rounded():
    assert agrees("1.7", 1.749) and not agrees("1.7", 1.751) and agrees("22,384", 22384.2) and agrees("-0.1", -0.14)


@pytest.mark.parametrize(
    "text",
    [
        "The robot succeeded in 186 of 200 episodes.",
        "| frames | p50 2.9 ms |",
        "- Pipelining is 2.1 times faster.",
        "| what | measured |\n|---|---|\n| overhead | 2.9 ms |",
        "First sentence. Measured, it is 12 %, no more.",
    ],
)
def test_figures_without_a_comment_are_found(text):
    assert list(unexplained(text))


@pytest.mark.parametrize(
    "text",
    [
        "A session waits at most 250 ms for an answer.",
        "Set `timing.drain_ms` to 500 ms. The forecast is measured at start.",
        "```\np50 2.9 ms measured\n```",
        "313 ms<!-- source: ActionFlow, Table 1 --> were measured by its authors.",
        "Measured by others: 3 ms, and 313 ms pipelined<!-- source: ActionFlow, Table 1 -->. Another sentence.",
    ],
)
def test_settings_are_not_figures(text):
    assert not list(unexplained(text))
