"""The chat model in one line, for people."""

from __future__ import annotations

from edgeflow.ipc.chat_messages import ChatReady

MIB = 1 << 20
DRAFTS = {"lookup": "drafts by look-up", "eagle3": "drafts by an EAGLE-3 head"}


def chat_summary(ready: ChatReady) -> str:
    """The model, its drafts, the memory of its slots, and the longest prompt."""
    slots = 1 + len(ready.slots)
    memory = f" with a memory of {_size(ready.long.memory_bytes)}" if ready.long is not None else ""
    each, whole = _size(ready.slot_bytes), _size(ready.kv_bytes)
    scratch = " with one for recordings" if ready.kv_bytes > slots * ready.slot_bytes else ""
    counted = f"{slots} slot{'s' * (slots > 1)}"
    size = f"{counted} of {ready.capacity} positions{memory}, {each} each, {whole} in all{scratch}"
    drafts = f", {DRAFTS.get(ready.draft, ready.draft)}" if ready.draft else ""
    return f"{ready.model} ({ready.family}; {ready.numbers}{drafts}), {size}{_length(ready)}"


def _length(ready: ChatReady) -> str:
    """The range of prompts that slots with a memory serve at the same size."""
    if ready.long is None:
        return ""
    return f", for prompts of any length up to {ready.length} tokens; from {ready.long.threshold} on they are folded"


def _size(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 1024:.1f} KiB"
