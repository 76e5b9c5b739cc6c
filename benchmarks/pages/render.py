"""The pages of docs/benchmarks, from the templates and the result files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import boards
from benchmarks.pages.expressions import only
from benchmarks.pages.files import Result, results
from benchmarks.pages.words import between, figure_table, label, mebibytes, number, percent, short, target
from benchmarks.roofline import tables

TEMPLATES = Path(__file__).with_name("templates")
PAGES = Path(__file__).parents[2] / "docs" / "benchmarks"
BOARDS = "../operate/jetson.md"  # of which only a table is written
MARK = "<!-- Written by `python -m benchmarks.pages` from benchmarks/results; change the template instead. -->\n\n"


def rendered() -> dict[str, str]:
    """The text of each page, by its path from docs/benchmarks."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "n": number,
        "short": short,
        "percent": percent,
        "between": between,
        "mib": mebibytes,
        "label": label,
        "target": target,
    }
    environment.globals |= {
        "result": lambda name: results()[name],
        "data": lambda name: results()[name].data,
        "results": results,
        "only": only,
        "figure": figure,
        "figures": lambda name, also="", without="": figure_table(results()[name].data["figures"], also, without),
        "measured": measured,
        "predictions": tables(),
    }
    names = sorted(path.name for path in TEMPLATES.glob("*.md.jinja"))
    return {
        name.removesuffix(".jinja"): MARK + environment.get_template(name).render(page=name.partition(".")[0])
        for name in names
    } | {BOARDS: boards.page()}


def figure(name: str, what: str, place: int = 0) -> Any:
    """The value of a fault test's figure; place counts figures of the same name."""
    found = [each["value"] for each in results()[name].data["figures"] if each["what"] == what]
    return found[place]


def measured(*names: str) -> str:
    """When, where and how files were measured, below a table."""
    return "\n\n".join(_measured(results()[name]) for name in names) + "\n"


def _measured(result: Result) -> str:
    load = result.facts.get("load_average")
    busy = "" if load is None else f" (load average {load} at the start)"
    return (
        f"*Measured {result.date} on {result.machine}{busy}, commit `{result.commit}`, by `{result.command}`: "
        f"[{result.path.name}]({result.link}).*"
    )


def written() -> dict[str, str]:
    """The pages as they are on disk."""
    return {path.name: path.read_text() for path in sorted(PAGES.glob("*.md"))} | {BOARDS: boards.PAGE.read_text()}
