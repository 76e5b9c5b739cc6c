"""What the GPU suite asks of a section, in plain numbers: the suite runs each section in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """section: its name. device: cpu or cuda. size: the policy's name. frames: of each timing. seconds: it may take.

    out: the suite's folder. ceilings: bytes a second of a copy and FLOP/s of a product, once they are measured.
    """

    section: str
    device: str
    size: str
    frames: int
    seconds: float
    out: str
    ceilings: tuple[float, float] | None = None


SECTIONS = {
    "facts": 30,
    "ceilings": 30,
    "kernels": 120,
    "tokens": 60,
    "frames": 20,
    "tune": 80,
    "policy": 90,
    "baseline": 60,
    "chat": 100,
    "fp8": 50,
    "long-actions": 50,
    "long-context": 30,
    "profile": 45,
    "operators": 40,
}
"""Seconds of ten minutes that each may take. The most important first: what is left of the time goes to the next."""
