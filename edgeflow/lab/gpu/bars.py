"""The suite's main figures, each with its bar: passed, missed or not measured.

Bars are set for one H200. The bar of a ratio that follows from floors is scaled to another device by its floors, from
the bandwidth and matrix rate measured there; a share of a floor or of a ceiling has the same bar everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgeflow.lab.gpu.section_order import INT4_MODELS, Found
from edgeflow.lab.gpu.subjects.floors import Ceilings, pipelined_floor_s, serial_floor_s
from edgeflow.lab.gpu.subjects.random_policy import SIZES, PolicySize

H200 = Ceilings(4.8e12, 989e12)  # data sheet: bytes per second, dense bfloat16 FLOP/s
CHAT_BARS = {
    "qwen2.5-0.5b": (0.40, 0.30),
    "qwen2.5-1.5b": (0.60, 0.45),
    "qwen2.5-3b": (0.70, 0.50),
    "qwen2.5-7b": (0.80, 0.60),
}
"""Least share of the copy bandwidth in decode, and of the matrix rate in a prefill of CHAT_PROMPT rows."""
CHAT_PROMPT = 1024
INT4_SHARE = 0.65
"""Least share of the copy bandwidth in decode with weights of 4 bits."""
INT4_PASS = 1.05
"""A packed pass with weights of 4 bits takes at most so many times as long as in the model's dtype."""
Sections = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, None where it was not measured, and its least value, None where it is only reported."""

    name: str
    value: float | None
    bar: float | None

    def row(self) -> Found:
        """The figure as a row of the report."""
        return {"figure": self.name, "measured": self.value, "bar": self.bar, "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        """not measured, reported, passed or missed."""
        if self.value is None:
            return "not measured"
        if self.bar is None:
            return "reported"
        return "passed" if self.value >= self.bar else "missed"


def figures(sections: Sections, size: str) -> list[Found]:
    """Rows of the report's first table, from what the sections found."""
    return [figure.row() for figure in (*_policy(sections, SIZES[size]), *_chat(sections), *_int4(sections))]


def _policy(sections: Sections, size: PolicySize) -> Iterator[Figure]:
    measured = _ceilings(sections)
    fps = _rates(sections, "policy")
    serial, pipelined = fps.get("serial, graphs"), fps.get("pipelined, rotate, graphs")
    baseline = _found(sections, "baseline").get("frames/s")
    yield Figure("baseline, plain transformers, frames/s", baseline, None)
    yield Figure("serial with graphs / baseline", _ratio(serial, baseline), 4.0)
    yield Figure("pipelined / serial, both with graphs", _ratio(pipelined, serial), _scaled(2.55, size, measured))
    floor_s = pipelined_floor_s(size, measured) if measured else None
    yield Figure("pipelined, share of the floor", pipelined * floor_s if pipelined and floor_s else None, 0.65)
    yield Figure(
        "pipelined / naive pipe, both without graphs", _ratio(fps.get("pipelined, rotate"), fps.get("naive pipe")), 1.25
    )
    long = _rates(sections, "long-actions")
    bar = _scaled(8.0, replace(size, stages=32), measured)
    yield Figure("K = 32: pipelined / serial", _ratio(long.get("pipelined, rotate"), long.get("serial")), bar)
    small = _rates(sections, "fp8")
    yield Figure("FP8 / model's dtype, pipelined", _ratio(small.get("fp8"), small.get("model's dtype")), 1.4)
    yield Figure("rotate / copy shift", _ratio(pipelined, fps.get("pipelined, copy, graphs")), None)


def _chat(sections: Sections) -> Iterator[Figure]:
    rows = {row["model"]: row for row in _found(sections, "chat").get("requests", []) if row["prompt"] == CHAT_PROMPT}
    for model, (decode, prefill) in CHAT_BARS.items():
        row = rows.get(model, {})
        yield Figure(f"{model}: decode, share of copy bandwidth", row.get("share of copy bandwidth"), decode)
        yield Figure(f"{model}: prefill {CHAT_PROMPT}, share of matrix rate", row.get("share of matrix rate"), prefill)


def _int4(sections: Sections) -> Iterator[Figure]:
    found, rates = _found(sections, "int4"), _rates(sections, "int4")
    for row in found.get("models", [{"model": name} for name in INT4_MODELS]):
        share, ratio = row.get("one row, share of copy bandwidth"), row.get("packed, model's dtype / 4 bits")
        yield Figure(f"{row['model']} in 4 bits: projections of a row, share of copy bandwidth", share, INT4_SHARE)
        yield Figure(f"{row['model']}: projections of a packed pass, model's dtype / 4 bits", ratio, 1 / INT4_PASS)
    passes = _ratio(rates.get("4 bits"), rates.get("model's dtype"))
    yield Figure("4 bits / model's dtype, pipelined", passes, 1 / INT4_PASS)
    yield Figure("chat in 4 bits: decode, share of copy bandwidth", found.get("share of copy bandwidth"), INT4_SHARE)


def _scaled(bar: float, size: PolicySize, measured: Ceilings | None) -> float:
    """A bar times what pipelining can gain on this device, over what it can gain on the one the bar was set for."""
    if measured is None:
        return bar

    def gain(ceilings: Ceilings) -> float:
        return serial_floor_s(size, ceilings) / pipelined_floor_s(size, ceilings)

    return bar * gain(measured) / gain(H200)


def _ceilings(sections: Sections) -> Ceilings | None:
    found = _found(sections, "ceilings")
    return Ceilings(found["copy bytes/s"], found["matrix FLOP/s"]) if found else None


def _rates(sections: Sections, name: str) -> dict[str, float]:
    return {row["system"]: row["frames/s"] for row in _found(sections, name).get("systems", [])}


def _found(sections: Sections, name: str) -> Found:
    found: Found = sections.get(name, {}).get("found") or {}
    return found


def _ratio(value: float | None, against: float | None) -> float | None:
    return value / against if value and against else None
