"""Measured figures in texts: each is followed by a comment that names the result file and the expression it comes from.

    1.7 times<!-- closed-loop-cpu-2026-11-22.json: conditions[0].fps / conditions[1].fps -->
    186 of 200<!-- closed-loop-cpu-2026-11-22.json: conditions[7].successes; conditions[7].episodes -->
    313 ms<!-- source: ActionFlow, Table 1 -->

Expressions, separated by semicolons, stand for the last numbers before the comment, in their order. A figure that
others have published has its source instead. `unexplained` finds sentences that look measured and have no comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages.expressions import ExpressionError, evaluate

COMMENT = re.compile(r"<!-- (?P<file>[\w.-]+\.json|source): (?P<expressions>.+?) -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,-])-?\d[\d,]*(?:\.\d+)?(?![\w-]*\d)")
UNITS = (
    "ns|µs|us|ms|s|seconds?|minutes?|min|x|times|[KMG]i?B|TB|GB/s|TB/s|tokens/s|actions/s|chunks/s|frames/s|FPS|"
    "(?:tokens|actions|chunks|frames) per second|of \\d+|TFLOP/s"
)
LIMIT = r"(?:[Aa]t (?:least|most)|more than|less than|up to|below|above|Above|within|every|after|[+±≤≥<>]) ?"
WITH_UNIT = re.compile(
    rf"(?<![\w.,-])(?P<limit>{LIMIT})?-?\d[\d,]*(?:\.\d+)?(?: ?%(?! (?:Wilson )?interval)| (?:{UNITS}))(?![\w/])"
)
"""A number with a unit; after a word of `LIMIT` it is a setting or a target."""
MEASURING = re.compile(
    r"\b(?:measured|took (?:about )?\d|takes [^.]{0,40} on (?:an?|one|two|\d) |reache[sd] (?:about )?\d|"
    r"succeed(?:s|ed)?|success(?:es)?|of \d+ episodes|faster|slower|\d times as fast|speed-?up|p50|p90|p99|median|"
    r"on average|improve[sd]?|costs? only|gain(?:s|ed)?|(?:are|were|is) (?:right|exact))\b",
    re.IGNORECASE,
)
"""Words of measuring. Settings and limits ("at most 2 s", "waits 250 ms") have none of them."""
FRACTION = re.compile(r"\d\.\d|\d ?%|\d of \d")
CODE = re.compile(
    r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$|(?<=\n\n)(?: {4}[^\n]*\n)+|`[^`\n]+`", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class UnsourcedFigure:
    """A figure that does not follow from its result file, or a sentence without a comment."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


def wrong(page: str, results: Path) -> Iterator[UnsourcedFigure]:
    """Comments whose numbers differ from those printed before them."""
    text = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    begin = 0
    for found in COMMENT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["file"] != "source":
            try:
                data = json.loads((results / found["file"]).read_text())
            except OSError:
                yield UnsourcedFigure(line, f"no result file {found['file']}")
            else:
                for problem in _differences(text[begin : found.start()], found["expressions"], data):
                    yield UnsourcedFigure(line, problem)
        begin = found.end()


def _differences(before: str, expressions: str, data: Mapping[str, Any]) -> Iterator[str]:
    wanted = [each.strip() for each in expressions.split(";")]
    printed = [each[0] for each in NUMBER.finditer(before)][-len(wanted) :]
    if len(printed) < len(wanted):
        yield f"{len(wanted)} expressions, {len(printed)} numbers before them"
        return
    for number, expression in zip(printed, wanted, strict=True):
        try:
            value = evaluate(expression, data)
        except (ExpressionError, ZeroDivisionError) as error:
            yield str(error)
        else:
            if not agrees(number, value):
                yield f"{number} is printed, {expression} gives {value:.6g}"


def agrees(printed: str, value: float) -> bool:
    """True when the value, rounded to the printed digits, is the printed number."""
    digits = len(printed.partition(".")[2])
    number = float(printed.replace(",", ""))
    return abs(number - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def unexplained(page: str) -> Iterator[UnsourcedFigure]:
    """Sentences that have a number with a unit and a word of measuring, and no comment.

    A row of a table counts as one sentence, with the words of the table's head.
    """
    text = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    head = ""
    for begin, block in _blocks(text):
        row = block.lstrip().startswith("|")
        head = (head or block) if row else ""
        for offset, sentence in [(0, block)] if row else _sentences(block):
            figure = next((each for each in WITH_UNIT.finditer(COMMENT.sub("", sentence)) if not each["limit"]), None)
            if figure and MEASURING.search(head + sentence) and not COMMENT.search(sentence):
                at = begin + offset + len(sentence) - len(sentence.lstrip())
                shown = f"{figure[0].strip()!r} looks measured: {' '.join(sentence.split())[:100]}"
                yield UnsourcedFigure(text.count("\n", 0, at) + 1, shown)
    for table in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = [cell for line in table[0].splitlines()[2:] for cell in line.strip("| ").split("|")[1:]]
        measured = sum(bool(FRACTION.search(cell)) for cell in cells)
        if measured >= max(4, len(cells) / 2) and not COMMENT.search(table[0]):
            yield UnsourcedFigure(text.count("\n", 0, table.start()) + 1, "a table of figures looks measured")


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table rows, with their offsets."""
    begin = 0
    for found in re.finditer(r"\n(?=\s*\n)|\n(?=\s*(?:[-*|#>]|\d+\. ))", text):
        yield begin, text[begin : found.start()]
        begin = found.end()
    yield begin, text[begin:]


def _sentences(block: str) -> Iterator[tuple[int, str]]:
    begin = 0
    masked = COMMENT.sub(lambda found: "x" * len(found[0]), block)
    for found in re.finditer(r"(?<=[.:;!?])(?:x{9,})?\s+(?=[A-Z*`(\[])", masked):
        yield begin, block[begin : found.end()]
        begin = found.end()
    yield begin, block[begin:]
