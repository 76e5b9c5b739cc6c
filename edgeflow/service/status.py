"""What the service tells whoever started it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """How far the service is."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One announcement. step, done, total: progress of the start; ports: the bound ones, 0 before that.

    chat: the chat model and the memory of its slots, in a line; empty where there is none.
    operators: what serves besides the built-in operators, in a line.
    forecasts: (mode, actions a second, age in ms) of one robot alone at full rate, from measured pass times.
    warnings: what was asked for and is not permitted here.
    """

    phase: Phase
    step: str = ""
    done: int = 0
    total: int = 0
    grpc_address: str = ""
    http_address: str = ""
    grpc_port: int = 0
    http_port: int = 0
    model: str = ""
    device: str = ""
    chat: str = ""
    operators: str = ""
    forecasts: tuple[tuple[str, float, float], ...] = ()
    warnings: tuple[str, ...] = ()
