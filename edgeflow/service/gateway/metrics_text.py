"""The metrics of several processes as one text in the Prometheus format."""

from __future__ import annotations

from collections.abc import Mapping

HELP = "# HELP "


def merge(texts: Mapping[str, str]) -> str:
    """One text, each family once. Families of more than one process get the label `process`."""
    families: dict[str, dict[str, list[str]]] = {}
    for process, text in texts.items():
        for name, lines in _families(text).items():
            families.setdefault(name, {})[process] = lines
    return "".join(_written(of_process) for of_process in families.values())


def _families(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(HELP):
            lines = found.setdefault(line.split(" ", 3)[2], [])
        lines.append(line)
    return found


def _written(of_process: Mapping[str, list[str]]) -> str:
    if len(of_process) == 1:
        return "".join(f"{line}\n" for lines in of_process.values() for line in lines)
    first = next(iter(of_process.values()))
    head = [line for line in first if line.startswith("#")]
    samples = [
        _labelled(line, process) for process, lines in of_process.items() for line in lines if not line.startswith("#")
    ]
    return "".join(f"{line}\n" for line in (*head, *samples))


def _labelled(line: str, process: str) -> str:
    """A sample with one more label."""
    brace, space = line.find("{"), line.find(" ")
    if 0 <= brace < space:
        return f'{line[: brace + 1]}process="{process}",{line[brace + 1 :]}'
    return f'{line[:space]}{{process="{process}"}}{line[space:]}'
