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
    """The objects that a child inherits."""

    role: str
    control: socket.socket
    """Its socket to control."""
    listener: socket.socket
    """The bound socket it serves."""
    chat_path: str
    """Path of the chat front's socket, for the gateway; "" without chat."""
    config: Path
    """The file of the resolved configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Control → server: fork a child; answered by Forked or NotForked.

    With the descriptors of the child's socket to control and of the socket that it serves.
    """

    role: str
    chat_path: str
    memory_mb: int
    """chat_path and memory_mb: as in launch.ChildRole."""


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
    """The end of the process in words, as in host/spawn.py."""


ForkMessage: TypeAlias = Fork | Kill | Forked | NotForked | Ended
FORK_CODING: Coding[ForkMessage] = Coding(ForkMessage.__args__)
