"""How figures are written: digits, shares, intervals and bytes; and the tables of the fault tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

RENAMED = (
    (r"frames a second", "frames per second"),
    (r"\bfronts\b", "control processes"),
    (r"(?<!chat )\bfront\b(?!-)", "control"),
    (r"^chat: ", "chat front: "),
    (r"\bours\b", "edgeflow's"),
    (r"\bour\b", "edgeflow's"),
    (r"\brefusals\b", "rejections"),
)
"""Words of the files that pages write otherwise, most of them names from before."""


def number(value: float, digits: int = 0) -> str:
    """With so many digits after the point, and commas between thousands."""
    written = f"{value:,.{digits}f}"
    return written.removeprefix("-") if not re.search("[1-9]", written) else written


def short(value: float) -> str:
    """Three significant digits, or all digits of an integer."""
    if abs(value - round(value)) < 1e-9:
        return number(value)
    digits = max(0, 2 - len(str(int(abs(value))))) + 1 if abs(value) >= 1 else 2
    return number(value, 0 if abs(value) >= 100 else digits)


def target(value: float) -> str:
    """A target, without zeros at the end."""
    return f"{float(f'{value:.3g}'):,g}"


def percent(share: float, digits: int = 0) -> str:
    return f"{number(share * 100, digits)} %"


def between(interval: Sequence[float], digits: int = 0) -> str:
    """An interval of shares, in percent."""
    return f"{number(interval[0] * 100, digits)} to {number(interval[1] * 100, digits)} %"


def mebibytes(value: float, digits: int = 1) -> str:
    return f"{number(value / 2**20, digits)} MiB"


def label(what: str) -> str:
    for pattern, word in RENAMED:
        what = re.sub(pattern, word, what)
    return what


def quantity(value: float, unit: str) -> str:
    """With its unit; short times in milliseconds."""
    if unit == "s" and abs(value) < 0.1:
        value, unit = value * 1e3, "ms"
    return f"{short(value)} {unit}".rstrip()


def figure_table(figures: Sequence[Mapping[str, Any]], also: str = "", without: str = "") -> str:
    """A fault test's figures with a target, and those whose names match `also`; then those that had to be 0 and are."""
    rows, zeros = [], []
    for each in figures:
        what = label(each["what"])
        bar = each["bar"]
        if without and re.search(without, what):
            continue
        if bar == 0 and each["value"] == 0:
            zeros.append(what)
        elif bar is not None or (also and re.search(also, what)):
            unit = each["unit"]
            written = "" if bar is None else f"{target(bar)} {unit}".rstrip() + ("" if each["met"] else ", **missed**")
            rows.append(f"| {what} | {quantity(each['value'], unit)} | {written} |\n")
    table = "| figure | measured | at most |\n|---|---|---|\n" + "".join(rows) if rows else ""
    zero = f"Zero, as required: {'; '.join(zeros)}.\n" if zeros else ""
    return "\n".join(each for each in (table, zero) if each)
