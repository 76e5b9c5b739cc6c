"""The roles of child processes, and what they start with."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

GATEWAY, CHAT = "gateway", "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A child's name, the socket it serves, where the chat front is ("" without chat), and its memory limit."""

    name: str
    listener: socket.socket
    chat_path: str
    memory_mb: int


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
