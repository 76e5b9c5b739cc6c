"""The messages between control and the children's fork server, one packet each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from edgeflow.ipc.coding import Coding


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Control → server: fork a child; answered by Forked or NotForked.

    With the descriptors of the child's socket to control and of the socket that it serves. chat_path, memory_mb: as of
    `Role`.
    """

    role: str
    chat_path: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Control → server: SIGKILL to a child, unless it has ended."""

    pid: int


@dataclass(frozen=True, slots=True)
class Forked:
    """Server → control: the child's process id."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotForked:
    """Server → control: the fork failed. text: the system's reason."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Server → control: a child has ended. how: as of host/spawn.py."""

    pid: int
    how: str


ToServer: TypeAlias = Fork | Kill
FromServer: TypeAlias = Forked | NotForked | Ended
ForkMessage: TypeAlias = ToServer | FromServer

CODING: Coding[ForkMessage] = Coding((*ToServer.__args__, *FromServer.__args__))
