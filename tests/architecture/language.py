"""Finds dialect in docstrings, error and help texts, and Markdown; docs/develop/writing.md has words to use instead.

python -m tests.architecture.language            list every finding, with what to write instead
python -m tests.architecture.language --lower    lower the baseline to what is left; it never raises a count
python -m tests.architecture.language --write    set the baseline to what is there, after new rules
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).with_name("language_baseline.json")
CODE = ("edgeflow", "client", "benchmarks", "examples", "deploy", "plugins")
PAGES = ("*.md", "docs/**/*.md", "edgeflow/**/README.md", "client/*.md", "examples/*.md", "plugins/*/*.md")
GENERATED = ROOT / "client/edgeflow_client/rpc"
RULES_PAGE = ROOT / "docs/develop/writing.md"
"""It quotes what it advises against."""

COUNTED = (
    "ns|us|ms|s|seconds?|minutes?|bytes?|[KMG]i?B|GFLOPs?|FLOPs?|FPS|Hz|rows?|tokens?|frames?|actions?|entry|entries|"
    "one|passes|steps?|times|lines?|numbers?|scales?|launch(?:es)?|cop(?:y|ies)|slots?|segments?|episodes?|pings?|calls?"
)
PER = (
    "second|minute|hour|token|pass|row|frame|step|request|session|robot|layer|slot|line|dimension|output|position|"
    "mode|window|byte|head|element|entry|worker|connection|principal|address|tick|process|thread|page|multiprocessor|"
    "SM|program|block|cell|key|query|run|round|trial|segment|image|camera|message|quantity|case|column|phrase|place"
)
ARTICLES = "an?|the|its|their|each|every|this|that|so many|sampled|settled|verified|wrong|right"
FOLLOWED = (
    "it|them|those|that|what|which|how|each other|others?|one|last|newest|first|next|prompts?|pass(?:es)?|rows?|"
    "tokens?|drafts?|segments?|sinks?|roots?|lea(?:f|ves)|forward|steps?|prefix(?:es)?|sequences?|frames?|answers?|blocks?"
)
"""Things that have a place in time or in a sequence."""
BY_ITSELF = (
    "is|are|was|were|be|each|them|it|come|comes|run|runs|ran|stand|stands|left|leave|computed|robot|prefill|processors"
)
MOMENTS = r"now\b|today|version|release|commit|v?\d|\{\}"
COMPARATIVES = "longer|more|less|fewer|later|earlier|older|newer|better|worse|faster|slower|higher|lower|larger|smaller"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, and what to write instead."""

    pattern: re.Pattern[str]
    advice: str
    docstrings_only: bool = False
    within: tuple[str, ...] = ("",)
    """Texts without any of these, in lower case, are not searched: most of them."""


RULES = (
    Rule(re.compile(r"^Of "), "begin with the noun: 'The ages of ...', not 'Of ...'", docstrings_only=True),
    Rule(re.compile(r"^Whether "), "write 'True when ...', or what the function does", docstrings_only=True),
    Rule(
        re.compile(r"^What (?!s\b)"),
        "begin with a noun or a verb: 'The cost of a pass', not 'What a pass costs'",
        docstrings_only=True,
    ),
    Rule(
        re.compile(rf"(?<![Tt]here )\b(?:is|are|was|were) (?:none of|no (?!(?:{COMPARATIVES})\b)\w+)"),
        "write 'is not a ...', 'has no ...' or 'is not one of ...'",
    ),
    Rule(re.compile(rf"\b(?:\d[\d,.]* ?)?(?:{COUNTED}) an? (?:{PER})\b"), "write 'per' for rates: '3 ms per pass'"),
    Rule(re.compile(r"\b(?:told|tells)\b"), "write 'reported', 'received', 'returned' or 'sent'"),
    Rule(re.compile(r"\bunder way\b"), "write 'in flight', 'running' or 'current'"),
    Rule(re.compile(r"\bof (?:its|their|our|one's) own\b"), "write 'its own ...' or 'a separate ...'"),
    Rule(
        re.compile(r"(?<!\bconnection )\brefus(?:es?|ed|als?|ing)\b(?!:| to\b)", re.IGNORECASE),
        "write 'reject'; a connection is refused, and one refuses to do something",
        within=("refus",),
    ),
    Rule(
        re.compile(r"\b(?:un)?settl(?:es?|ed|ing)\b(?!:|, found|, R| \[|\.py|, program)", re.IGNORECASE),
        "write 'verify' of tokens, 'end' or 'decide' of others",
        within=("settl",),
    ),
    Rule(
        re.compile(r"(?<![/.])\bplay(?:s|ed|ing)?\b(?!:)", re.IGNORECASE),
        "write 'execute' or 'run'; a chunk is 'in execution'",
        within=("play",),
    ),
    Rule(
        re.compile(rf"\bbehind (?:(?:{ARTICLES}) )*(?:{FOLLOWED})\b", re.IGNORECASE),
        "write 'after' of time and order",
        within=("behind",),
    ),
    Rule(
        re.compile(rf"\bas of\b(?! (?:{MOMENTS}))", re.IGNORECASE),
        "write 'as in'; 'as of' is for dates and versions",
        within=("as of",),
    ),
    Rule(
        re.compile(rf"\b(?!(?:{BY_ITSELF}) )\w+`* alone(?=[.,;:)]|$)"),
        "write 'only ...' before the noun, or 'by itself'",
        within=("alone",),
    ),
    Rule(
        re.compile(r"\bdraw(?:s|n|ing)?(?: an?| the)? (?:\w+ )?logs?\b", re.IGNORECASE),
        "write 'generate' of logs",
        within=("draw",),
    ),
    Rule(re.compile(r"\bha(?:s|ve|d) to do\b"), "write 'does', 'must do' or 'is about'", within=("to do",)),
    Rule(
        re.compile(r"\bforet(?:old|ells?|elling)\b", re.IGNORECASE), "write 'forecast' or 'expected'", within=("foret",)
    ),
    Rule(re.compile(r"\bours\b(?!:|\.py)", re.IGNORECASE), "write edgeflow's or name the thing", within=("ours",)),
    Rule(re.compile(r"\b(?:actions?|answers?|chunks?) leaves?\b", re.IGNORECASE), "write 'is sent'", within=("leave",)),
    Rule(
        re.compile(r"\b(?:desk|leash|doors?)\b", re.IGNORECASE),
        "write 'queue', 'parent death' or 'interceptor'",
        within=("desk", "leash", "door"),
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One match. path: relative to the repository."""

    path: str
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.advice}"


def findings_in_code(path: str, source: str) -> list[Finding]:
    """Dialect in a module's docstrings, also below fields and constants, and in the texts of its errors, options and
    settings."""
    tree = ast.parse(source)
    found: list[Finding] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for text, line in _docstrings(node):
                found += _check(path, line, " ".join(_prose(text).split()), docstring=True)
        for text in _user_texts(node):
            found += _check(path, node.lineno, text, docstring=False)  # type: ignore[attr-defined]
    return found


def findings_in_page(path: str, page: str) -> list[Finding]:
    """Dialect in a Markdown page, without its code blocks."""
    found: list[Finding] = []
    fenced = False
    for number, line in enumerate(page.splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced:
            found += _check(path, number, _prose(line), docstring=False)
    return found


def all_findings() -> list[Finding]:
    """Every finding in the repository."""
    found: list[Finding] = []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if GENERATED not in path.parents:
                found += findings_in_code(_name(path), path.read_text())
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            if path != RULES_PAGE:
                found += findings_in_page(_name(path), path.read_text())
    return found


def baseline() -> dict[str, int]:
    """Findings that each file may still have."""
    return dict(json.loads(BASELINE.read_text()))


def lower(counts: Counter[str], old: dict[str, int]) -> dict[str, int]:
    """The baseline for what is left: counts that fell, never a count that rose."""
    return {path: min(counts[path], allowed) for path, allowed in sorted(old.items()) if counts[path]}


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    """The docstring of a definition, and those below the fields and constants in it, each with its line."""
    for index, part in enumerate(node.body):
        text = part.value if isinstance(part, ast.Expr) else None
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            continue
        if index == 0 or isinstance(node.body[index - 1], ast.Assign | ast.AnnAssign):
            yield text.value, part.lineno


def _user_texts(node: ast.AST) -> Iterator[str]:
    """Texts in a raise statement, and help texts and descriptions of options and settings."""
    roots: list[ast.AST] = []
    if isinstance(node, ast.Raise) and node.exc is not None:
        roots = [node.exc]
    elif isinstance(node, ast.Call):
        roots = [word.value for word in node.keywords if word.arg in ("help", "description")]
    for root in roots:
        inner = {id(part) for each in ast.walk(root) if isinstance(each, ast.JoinedStr) for part in each.values}
        for each in ast.walk(root):
            if isinstance(each, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in each.values)
            elif isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in inner:
                yield each.value


def _prose(text: str) -> str:
    return re.sub(r"`[^`]*`", "``", text)


def _check(path: str, line: int, text: str, *, docstring: bool) -> list[Finding]:
    lower_case = text.lower()
    rules = [
        rule
        for rule in RULES
        if (docstring or not rule.docstrings_only) and any(part in lower_case for part in rule.within)
    ]
    return [Finding(path, line, match[0], rule.advice) for rule in rules for match in rule.pattern.finditer(text)]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def main() -> None:
    """List the findings, or lower the baseline."""
    found = all_findings()
    if "--lower" in sys.argv or "--write" in sys.argv:
        counts = Counter(each.path for each in found)
        left = lower(counts, baseline() if "--lower" in sys.argv else dict(counts))
        BASELINE.write_text(json.dumps(left, indent=0) + "\n")
        print(f"{sum(left.values())} findings in {len(left)} files are left")
    else:
        print(*found, f"{len(found)} findings", sep="\n")


if __name__ == "__main__":
    main()
