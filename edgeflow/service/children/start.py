"""The start of a child: its inheritance, and the messages between control and the fork server, one packet each.

It imports little: the fork server reads it before it takes a low priority.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edgeflow.ipc.coding import Coding

GATEWAY, ROBOTS, CHAT = "gateway", "robots", "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStart:
    """The inheritance of a child."""

    role: str
    control: socket.socket
    """Its socket to control."""
    listener: socket.socket
    """The bound socket it serves."""
    chat_path: str
    """The chat path of the chat front's socket, for the gateway; "" without chat."""
    config: Path
    """The resolved configuration's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Control → server: fork a child; answered by Forked or NotForked.

    With the descriptors of the child's socket to control and of the socket that it serves.
    """

    role: str
    chat_path: str
    memory_mb: int
    """Both: as in `Role`."""


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
    """Server → control: the fork failed."""

    text: str
    """The system's reason."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Server → control: a child has ended."""

    pid: int
    how: str
    """As in host/spawn.py."""


ForkMessage: TypeAlias = Fork | Kill | Forked | NotForked | Ended
FORK_CODING: Coding[ForkMessage] = Coding(ForkMessage.__args__)
