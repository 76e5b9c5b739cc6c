"""The GPU suite's report in Markdown, from its JSON: values as lines, lists as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeflow.lab.gpu.order import LEFT_OUT

Found = Mapping[str, Any]


def report(results: Found) -> str:
    """The figures with their bars, how each section ended, and what each found."""
    lines = [f"# GPU suite: {results['size']} on {_device(results)}", ""]
    lines += [f"Started {results['started']}, {results['seconds']:.0f} s in all.", ""]
    lines += ["## Figures", "", *_table(results["figures"]), "", "## Sections", ""]
    sections = results["sections"]
    lines += _table([_summary(name, section) for name, section in sections.items()])
    for name, section in sections.items():
        if section.get("found"):
            lines += ["", f"## {name}", *_body(section["found"])]
    return "\n".join(lines) + "\n"


def _device(results: Found) -> str:
    facts = results["sections"].get("facts", {}).get("found", {})
    return str(facts.get("device", facts.get("profile", results["device"])))


def _summary(name: str, section: Found) -> Found:
    late = section.get("found", {}).get(LEFT_OUT)
    why = section.get("error") or (f"no time for {', '.join(late)}" if late else None)
    return {"section": name, "result": section["status"], "seconds": section["seconds"], "why": why}


def _body(found: Found) -> Iterator[str]:
    """The single values, then a table per list."""
    found = {name: value for name, value in found.items() if name != LEFT_OUT}
    tables = {name: value for name, value in found.items() if isinstance(value, list)}
    if len(tables) < len(found):
        yield ""
    for name, value in found.items():
        if name not in tables:
            yield f"- {name}: {_text(value)}"
    for name, rows in tables.items():
        yield from ("", f"### {name}", "", *(_table(rows) or ["None."]))


def _table(rows: Sequence[Found]) -> list[str]:
    """A table with every column that any row has."""
    if not rows:
        return []
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return head + [f"| {' | '.join(_text(row.get(name)) for name in columns)} |" for row in rows]


def _text(value: Any) -> str:
    """A cell: four digits of a number that is not whole, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value).replace("|", " ").replace("\n", " ")
