"""The sections of the GPU suite, their shares of its time, and the order that a section's process receives.

The suite itself reads this module before any package of its folder of wheels is there: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Found = dict[str, Any]
LEFT_OUT = "left out"
"""Key of what a section names in its findings when its time did not suffice for everything."""
SIZES = ("openvla-7b", "tiny")
"""Names of the policies that can be measured (random_policy.py has their shapes)."""
INT4_MODELS = ("openvla-7b", "qwen2.5-7b")
"""Models whose projections are measured in 4 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The parameters of one section's process."""

    section: str
    """Its name."""
    device: str
    """Cpu or cuda."""
    size: str
    """The policy's name, one of SIZES."""
    frames: int
    """Frames per timing."""
    ends: float
    """The second on the monotonic clock of this machine at which the process is killed."""
    out: str
    """The suite's folder."""
    bundles: str = ""
    """Folder of recorded checkpoints, or empty."""
    ceilings: tuple[float, float] | None = None
    """Measured bytes per second of a copy and FLOP/s of a matrix product, once they are known."""


TOTAL_S = 570.0
"""Seconds of a call of ten minutes that sections may take; the rest is for the wheels and for the suite itself."""
SECTIONS = {
    "facts": 12.0,
    "ceilings": 11.0,
    "kernels": 64.0,
    "tokens": 33.0,
    "frames": 11.0,
    "tune": 42.0,
    "policy": 48.0,
    "baseline": 25.0,
    "flow": 45.0,
    "chat": 41.0,
    "drafts": 50.0,
    "service": 38.0,
    "verify": 16.0,
    "fp8": 25.0,
    "int4": 26.0,
    "long-actions": 19.0,
    "towers": 13.0,
    "long-context": 17.0,
    "profile": 17.0,
    "operators": 17.0,
}
"""The share of each section in seconds, from the start of its process to its end; the most important first."""
if sum(SECTIONS.values()) > TOTAL_S:
    raise ValueError(f"the sections' shares are {sum(SECTIONS.values()):g} s, at most {TOTAL_S:g} s fit: shorten one")


def end_of(section: str, shares: Mapping[str, float], now: float, ends: float) -> float:
    """The end of a section's time: everything up to `ends` except the shares of the later sections in `shares`.

    So a section always has its share and what earlier sections left unused. If there is less time than the sum of the
    shares, all shares shrink in proportion.
    """
    names = list(shares)
    later = sum(shares[name] for name in names[names.index(section) + 1 :])
    scale = min(1.0, max(0.0, ends - now) / (shares[section] + later))
    return ends - scale * later
