"""KV memory: how many control sessions fit into the free memory of a device, in whole bytes.

A session takes a ring of K slots. Beside the rings stay free: a reserve (activations of the largest pass, and a fixed
part for CUDA graphs, workspaces of libraries and fragments), and the memory of the chat model, which is loaded after
the policy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.kernels.kv.formats import INT4, KVFormat, KVShape
from edgeflow.kernels.kv.int4 import GROUP
from edgeflow.kernels.table.dimensions import STAGES, signature
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, built_in_table
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import ConfigError

MOST_SESSIONS = 8
"""The most sessions that are reserved where max_sessions is not set."""
FIXED_BYTES = {"cpu": 256 << 20, "cuda": 7 << 28}
"""The fixed part of the reserve by device type. CUDA: about 180 recordings at 8 MiB, 32 MiB of cuBLAS workspace for
each of two streams, split-KV workspaces and allocator fragments; predicted, not measured. OpenVLA has 179 recordings
with 8 sessions. A flow policy with texts of more than 256 tokens may have more, up to `MOST_GRAPHS`.
docs/operate/deploy.md states both numbers, and no other page does."""
RECORDING_BYTES = 8 << 20
"""Memory of one CUDA graph; predicted, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVNeed:
    """Memory of a policy's KV, and what must stay free beside it, in bytes."""

    ring: int
    """Slots per session, K."""
    spare: int
    """Slots beside all rings."""
    capacity: int
    """Positions per slot."""
    slot_bytes: int
    """Memory of one slot, in every layer."""
    reserve_bytes: int
    """Memory kept free for activations and graphs."""
    chat_bytes: int = 0
    """Memory kept free for the chat model."""
    frame_bytes: int = 0
    """Memory kept free for each session's frames."""

    def kv_bytes(self, sessions: int) -> int:
        """All slots of so many sessions."""
        return (sessions * self.ring + self.spare) * self.slot_bytes

    def total_bytes(self, sessions: int) -> int:
        """All slots, and what stays free."""
        return self.kv_bytes(sessions) + sessions * self.frame_bytes + self.reserve_bytes + self.chat_bytes


def sessions_that_fit(need: KVNeed, free_bytes: int, most: int = MOST_SESSIONS) -> int:
    """The number of sessions whose KV fits beside the reserve and chat: 0 to `most`."""
    left, each = free_bytes - need.total_bytes(0), need.total_bytes(1) - need.total_bytes(0)
    if left < 0:
        return 0
    return min(most, left // each) if each else most


def choose_sessions(wanted: int | None, need: KVNeed, free_bytes: int, most: int = MOST_SESSIONS) -> int:
    """`wanted` sessions, or (None) as many as fit up to `most`; ConfigError with the sum where they do not.

    A single session, where no number was configured, may use the reserve and chat's part: a robot comes first.
    """
    fitting = sessions_that_fit(need, free_bytes, wanted or most)
    if wanted is not None and fitting < wanted:
        raise ConfigError(_rejection(wanted, fitting, need, free_bytes))
    if need.kv_bytes(1) + need.frame_bytes > free_bytes:
        raise ConfigError(_rejection(1, 0, need, free_bytes))
    return max(1, fitting)


def describe(sessions: int, need: KVNeed, free_bytes: int) -> str:
    """The line shown at start: `KV: 3 sessions x 7 slots x 400 positions = 4.1 GiB of 6.8 GiB free`."""
    if not need.ring:
        return f"{sessions} session{'s' * (sessions > 1)}, no KV between passes"
    spare = f" + {need.spare} spare slot" if need.spare else ""
    plural = "s" if sessions > 1 else ""
    return (
        f"KV: {sessions} session{plural} x {need.ring} slots x {need.capacity} positions{spare} = "
        f"{size(need.kv_bytes(sessions))} of {size(free_bytes)} free"
    )


def activation_bytes(text: LlamaConfig, rows: int, dtype: torch.dtype) -> int:
    """Intermediate results of a decoder layer for so many rows, all at once: an upper bound."""
    widths = 4 * text.hidden_size + text.attention.row_numbers + 3 * text.intermediate_size
    return rows * widths * dtype.itemsize


def widened_bytes(kv_format: KVFormat, shape: KVShape, device: torch.device) -> int:
    """The floats of a slot that a pass attends over where no kernel reads the format itself; 0 where one does.

    All layers share them. There are two sets: for the rows of a pass, and for those that are sampled, which attend by
    themselves in the last layer.
    """
    if not _widens(kv_format, shape, device):
        return 0
    numbers = shape.capacity * shape.kv_heads * shape.head_dim
    widening = 0
    if kv_format is INT4:  # codes of keys or values, and floats where the model's are narrower
        widening = numbers // 2 + (0 if shape.dtype == torch.float32 else numbers * torch.float32.itemsize)
    return 2 * (2 * numbers * shape.dtype.itemsize + widening)


def _widens(kv_format: KVFormat, shape: KVShape, device: torch.device) -> bool:
    """True where the operator table chooses attention that widens slots, in any stage."""
    table, hardware, sizes = built_in_table(), Hardware.of(device), signature(kv=shape.kv_heads, d=shape.head_dim)
    keys = (
        OperatorKey(op_name="packed_attention", stage=stage, kv=kv_format.name, shape_sig=sizes) for stage in STAGES
    )
    return any(table.choose(key, hardware, shape.dtype).implementation.impl_id == "widened" for key in keys)


def written_bytes(kv_format: KVFormat, shape: KVShape, *, rows: int = 0, spans: int = 0) -> int:
    """Intermediate results of a write into int4 slots, for so many rows and spans, queries aside: an upper bound.

    The keys and values of the rows, and then the whole groups in which the rows of a span lie: as many places as it has
    rows, and at most two groups more. Other formats: 0.
    """
    if kv_format is not INT4:
        return 0
    numbers, itemsize = shape.kv_heads * shape.head_dim, shape.dtype.itemsize
    codes = torch.float32.itemsize + 2  # a quotient, a code in a byte, and two codes in a byte twice
    place = numbers * max(3 * itemsize, itemsize + codes)
    return rows * (3 * numbers * itemsize + place) + spans * 2 * GROUP * place


def free_bytes(device: torch.device) -> int:
    """The memory that can still be allocated. On a CPU pages are granted before they exist, so the system must be
    asked.

    A GPU that shares the system's memory (Jetson) can also take pages that only cache files, such as the checkpoint.
    """
    if device.type != "cuda":
        return available_bytes()
    torch.cuda.empty_cache()
    free = int(torch.cuda.mem_get_info(device)[0])
    integrated = torch.cuda.get_device_properties(device).is_integrated
    return max(free, available_bytes(unknown=0)) if integrated else free


def available_bytes(unknown: int = sys.maxsize) -> int:
    """MemAvailable of /proc/meminfo; `unknown` where there is no such file."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return unknown
    return int(kib) * 1024


def size(count: int) -> str:
    """Bytes for a person, in MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"


def _rejection(sessions: int, fitting: int, need: KVNeed, free_bytes: int) -> str:
    slots, activations = sessions * need.ring + need.spare, need.reserve_bytes + sessions * need.frame_bytes
    kv = f"{slots} slots x {need.slot_bytes} bytes for {need.capacity} positions = {size(need.kv_bytes(sessions))}, "
    chat = f" and {size(need.chat_bytes)} for chat" if need.chat_bytes else ""
    advice = f"lower max_sessions ({fitting} fit)" if fitting else "lower max_prompt_tokens"
    return (
        f"max_sessions: {sessions} sessions need {size(need.total_bytes(sessions))}: {kv if slots else ''}"
        f"{size(activations)} for activations and graphs{chat}; {size(max(free_bytes, 0))} are free beside the "
        f"weights: {advice}"
        + (" or max_prompt_tokens" if fitting else "")
        + (", or choose a smaller chat model" if need.chat_bytes else "")
    )
