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
    """The inheritance of a child. control: its socket to control. listener: the bound socket it serves.

    chat_path: of the chat front's socket, for the gateway; "" without chat. config: the resolved configuration's file.
    """

    role: str
    control: socket.socket
    listener: socket.socket
    chat_path: str
    config: Path


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


ForkMessage: TypeAlias = Fork | Kill | Forked | NotForked | Ended
FORK_CODING: Coding[ForkMessage] = Coding(ForkMessage.__args__)
