"""Markdown that the generated pages share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def inline(text: str) -> str:
    """A text of one paragraph, with what Markdown would take for HTML escaped outside code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*") for part in parts)
