"""The chat model in one line, for people."""

from __future__ import annotations

from edgeflow.ipc.chat_messages import ChatReady


def chat_summary(ready: ChatReady) -> str:
    """The model and the memory of its slots."""
    slots = 1 + len(ready.slots)
    whole_mib = ready.kv_bytes / 2**20
    size = f"{slots} slots of {ready.capacity} positions, {whole_mib / slots:.1f} MiB each, {whole_mib:.1f} in all"
    return f"{ready.model} ({ready.family}; {ready.numbers}), {size}"
