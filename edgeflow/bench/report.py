"""The GPU suite's readable report, from its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Found = Mapping[str, Any]


def report(results: Found) -> str:
    """Markdown. A section that failed says so, one that was not run is not there."""
    lines = [f"# GPU suite: {results['size']} on {results['device']}, {results['dtype']}", ""]
    lines += [f"Started {results['started']}, {results['seconds']:.0f} s in all.", ""]
    lines += ["| section | result | seconds |", "|---|---|---|"]
    for name, section in results["sections"].items():
        lines.append(f"| {name} | {section['status']}{_why(section)} | {section['seconds']:.1f} |")
    for name, section in results["sections"].items():
        if section.get("found") and name in _SECTIONS:
            lines += ["", f"## {name}", "", *_SECTIONS[name](section["found"])]
    return "\n".join(lines) + "\n"


def _why(section: Found) -> str:
    return f": {section['error']}" if section.get("error") else ""


def _facts(found: Found) -> list[str]:
    libraries = ", ".join(f"{name} {version or 'missing'}" for name, version in found["libraries"].items())
    plain = {name: value for name, value in found.items() if name != "libraries"}
    return [*(f"- {name}: {value}" for name, value in plain.items()), f"- {libraries}"]


def _ceilings(found: Found) -> list[str]:
    return [
        f"- copy: {found['copy_bytes_per_s'] / 1e9:.0f} GB/s, read and written",
        f"- matrix product: {found['matrix_flops_per_s'] / 1e12:.1f} TFLOP/s",
    ]


def _kernels(found: Found) -> list[str]:
    lines = [f"{found['checks'] - len(found['off'])} of {found['checks']} checks agree with the references.", ""]
    if found["off"]:
        lines += [
            "| operator | implementation | dtype | shape | deviation | allowed | |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in found["off"]:
        numbers = f"{row['deviation']} | {row['tolerance']} | {row.get('error', '')}"
        lines.append(f"| {row['op']} | {row['impl']} | {row['dtype']} | {row['shape'].replace('|', ' ')} | {numbers} |")
    return lines


def _lossless(found: Found) -> list[str]:
    return [
        f"- {policy}, {shift}: {share:.2%} of tokens differ from serial decoding"
        for policy, shifts in found.items()
        for shift, share in shifts.items()
    ]


def _speed(found: Found) -> list[str]:
    lines = ["| system | frames/s | against serial | share of floor |", "|---|---|---|---|"]
    for name, fps in found["fps"].items():
        share = found.get("share_of_floor", {}).get(name)
        told = "" if share is None else f"{share:.0%}"
        lines.append(f"| {name} | {fps:.2f} | {found['against_serial'][name]:.2f} | {told} |")
    for name, floor in found.get("floor_s", {}).items():
        lines.append(f"\nFloor of {name}: {1e3 * floor:.2f} ms a frame, from the FLOPs and bytes of its passes.")
    return lines


def _profile(found: Found) -> list[str]:
    waits = ", ".join(f"{name} {count}" for name, count in found["host_waits"].items()) or "none"
    lines = [f"{found['frames']} frames; host waits: {waits}.", "", "| longest | calls | µs |", "|---|---|---|"]
    return lines + [f"| {row['name'][:80]} | {row['calls']} | {row['us']:.0f} |" for row in found["longest"]]


def _tuning(found: Found) -> list[str]:
    lines = [f"{len(found['tuned'])} of {found['problems']} problems.", ""]
    lines += ["| operator | stage | shape | implementation | µs | default µs |", "|---|---|---|---|---|---|"]
    for row in found["tuned"]:
        chosen = " ".join([row["impl"], *(f"{name}={value}" for name, value in row["params"].items())])
        shape = row["shape"].replace("|", " ")
        lines.append(
            f"| {row['op']} | {row['stage']} | {shape} | {chosen} | {row['us']:.1f} | {row['default_us']:.1f} |"
        )
    return lines


_SECTIONS: dict[str, Callable[[Found], list[str]]] = {
    "facts": _facts,
    "ceilings": _ceilings,
    "kernels": _kernels,
    "lossless": _lossless,
    "speed": _speed,
    "profile": _profile,
    "tuning": _tuning,
}
