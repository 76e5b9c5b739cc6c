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


@dataclass(frozen=True, slots=True)
class Section:
    """function: `module:name` below edgeflow.bench. most_s: of ten minutes, what it may take."""

    function: str
    most_s: float


# The most important first: what is left of the time goes to the next.
SECTIONS = {
    "facts": Section("device:facts", 30),
    "ceilings": Section("device:ceilings", 30),
    "kernels": Section("kernel_checks:kernels", 120),
    "tokens": Section("token_checks:tokens", 60),
    "tune": Section("tuning:tune_models", 80),
    "policy": Section("policy_speed:policy", 90),
    "baseline": Section("baseline:baseline", 60),
    "chat": Section("chat_speed:chat", 100),
    "fp8": Section("policy_speed:fp8", 50),
    "long-actions": Section("policy_speed:long_actions", 50),
    "long-context": Section("long_context:long_context", 30),
    "profile": Section("profiled:passes", 45),
    "operators": Section("operator_speed:operators", 40),
}
