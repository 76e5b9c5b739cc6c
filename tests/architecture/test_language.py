"""Plain English: dialect that docs/develop/writing.md replaces may only become less (language.py has the rules)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.architecture.language import all_findings, baseline, findings_in_code, findings_in_page, lower


def test_no_file_has_more_dialect_than_before():
    allowed = baseline()
    found = all_findings()
    counts = Counter(each.path for each in found)
    worse = {path for path, count in counts.items() if count > allowed.get(path, 0)}
    lines = "\n".join(str(each) for each in found if each.path in worse)
    assert not worse, (
        f"docs/develop/writing.md has the words to use; a file may have no more findings than before:\n{lines}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Of one request.",
        "Whether it runs.",
        "What there is to tell.",
        "A byte that is no frame.",
        "The mode is none of serial and depth.",
        "It takes 3 ms a pass.",
        "Two entries a dimension.",
        "Frames a second.".replace("Frames", "10 frames"),
        "What is told.",
        "A caller that was told.",
        "Frames under way.",
        "A process of its own.",
        "The file is refused.",
        "A refusal with a reason.",
        "Refused frames.",
        "The tokens are settled.",
        "How many are unsettled.",
        "The chunk that is being played.",
        "A robot that plays chunks.",
        "The row behind the prompt.",
        "Copied behind the pass.",
        "As of `load`.",
        "For tests, as of Executor.",
        "It reads regular files alone.",
        "Draws long logs.",
        "What the host has to do.",
        "The age foretold for the session.",
        "The reference against ours.",
        "An action leaves at once.",
        "The leash comes first.",
    ],
)
def test_dialect_is_found(text: str):
    assert findings_in_code("x.py", f'def f():\n    """{text}"""\n')


@pytest.mark.parametrize(
    "text",
    [
        "The age of one request.",
        "True when it runs.",
        "A stream where there is no session.",
        "It is no longer than before, and there was no answer.",
        "It takes 3 ms per pass.",
        "In a second process, after a pass.",
        "Its own process.",
        "`told` is the name of a field, and `told a pass` is code.",
        "A connection refused by a peer.",
        "The display of a replayed graph.",
        "Behind a proxy, where the server falls behind; the idea behind a mode.",
        "As in `load`; supported as of version 2.",
        "A robot alone on the device; it can run alone.",
        "It draws a picture and logs it.",
        "It does what it must do, and a forecast.",
        "Frames leave the pipeline; our numbers.",
    ],
)
def test_plain_english_is_not(text: str):
    assert not findings_in_code("x.py", f'def f():\n    """{text}"""\n')


def test_texts_of_errors_and_options_are_read_but_not_other_strings():
    assert findings_in_code("x.py", 'def f(a):\n    raise ValueError(f"{a} is none of these")\n')
    assert findings_in_code("x.py", 'option(help="Frames: 20 frames a second.")\n')
    assert findings_in_code("x.py", 'setting = Field(0, description="Frames: 20 frames a second.")\n')
    assert not findings_in_code("x.py", 'text = "the answer is none of these"\n')


def test_docstrings_below_fields_and_constants_are_read():
    assert findings_in_code("x.py", 'class A:\n    b: int\n    """What is told."""\n')
    assert findings_in_code("x.py", 'B = 1\n"""Of one request."""\n')
    assert not findings_in_code("x.py", 'def f():\n    g()\n    "what is told"\n')


def test_pages_are_read_without_their_code():
    assert [each.line for each in findings_in_page("x.md", "one\n3 ms a pass\n")] == [2]
    assert not findings_in_page("x.md", "```\n3 ms a pass\n```\nand `3 ms a pass`\n")


def test_the_baseline_is_only_ever_lowered():
    left = lower(Counter({"a": 1, "b": 9, "new": 2}), {"a": 3, "b": 4, "clean": 2})
    assert left == {"a": 1, "b": 4}
