"""The status that the service announces to its starter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """The phase of the service's life."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """An announcement. step, done, total: progress of the start. Ports are 0 until bound.

    chat: the chat model and the memory of its slots, in one line; "" without chat.
    operators: operators in use besides the built-in ones, in one line.
    memory: the KV memory of the sessions and what was free, in one line.
    forecasts: (mode, answers per second, age in ms) for one robot alone at full rate, from measured pass times.
    horizon: actions per answer.
    warnings: settings that the system does not permit.
    """

    phase: Phase
    step: str = ""
    done: int = 0
    total: int = 0
    grpc_address: str = ""
    http_address: str = ""
    grpc_port: int = 0
    http_port: int = 0
    health_port: int = 0
    model: str = ""
    device: str = ""
    chat: str = ""
    operators: str = ""
    memory: str = ""
    forecasts: tuple[tuple[str, float, float], ...] = ()
    horizon: int = 1
    warnings: tuple[str, ...] = ()
