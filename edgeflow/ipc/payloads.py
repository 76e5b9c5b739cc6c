"""Raw bytes beside the header of a message."""

from __future__ import annotations

from typing import TypeAlias

Payload: TypeAlias = bytes | memoryview
"""Raw bytes that follow a header: sent from any buffer without a copy, received as bytes."""
Payloads: TypeAlias = Payload | tuple[Payload, ...]
"""The same from several buffers, which are received as one."""
