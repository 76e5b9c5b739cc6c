"""The basic types of the system. Leaf module: standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum


class Mode(str, Enum):
    """How the frames of a session share passes.

    SERIAL: one frame at a time. PIPELINED: K frames share a pass. DEPTH: a given number of frames share a pass.
    SPECULATIVE: every frame drafts all of its tokens, and passes verify what is not settled. AUTO: the one of these
    with the highest rate whose action age is permitted.
    """

    SERIAL = "serial"
    PIPELINED = "pipelined"
    DEPTH = "depth"
    SPECULATIVE = "speculative"
    AUTO = "auto"


MOST_TOLERANCE_BINS = 2


@dataclass(frozen=True, slots=True)
class Speculation:
    """How the drafts of a session are verified.

    tolerance_bins: how far a token may be from the draft that it replaces and still be settled, 0 to
    MOST_TOLERANCE_BINS; 0 gives the tokens of serial decoding. It applies to displacements only. max_passes: a frame
    leaves after so many passes even if tokens are not settled, 1 to K; 0 stands for K, after which all are.
    """

    tolerance_bins: int = 0
    max_passes: int = 0

    def most_passes(self, stages: int) -> int:
        """Passes after which a frame leaves at the latest, 1 to K."""
        return self.max_passes or stages


@dataclass(frozen=True, slots=True)
class Pace:
    """How the frames of a session share passes, as the scheduler sees it.

    depth: ticks per frame (scheduler/pace.py), 1 (serial) to K (pipelined). speculation: None where tokens are decoded
    one by one; where frames draft, the depth is 0.
    """

    depth: int = 1
    speculation: Speculation | None = None


class ImageFormat(str, Enum):
    """How an image is encoded."""

    JPEG = "jpeg"
    RGB8 = "rgb8"


class Disposition(str, Enum):
    """The outcome of a frame; every frame gets exactly one."""

    ACTED = "acted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    DROPPED = "dropped"


class Command(str, Enum):
    """A command for a robot."""

    ACT = "act"
    HOLD = "hold"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """A camera as declared at open: RGB images of width x height pixels."""

    name: str
    width: int
    height: int
    format: ImageFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSchema:
    """The meaning of an action's numbers.

    names, units, low, high, relative: one entry per dimension; limits in the given units.
    frame: "tool" or "base", the frame in which relative dimensions are expressed.
    rotation: "rotvec" or "euler_xyz", how the three rotation dimensions compose.
    control_rate_hz: relative dimensions stand for one control step at this rate; 0 = not stated.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    relative: tuple[bool, ...]
    frame: str = "base"
    rotation: str = "euler_xyz"
    control_rate_hz: float = 0.0

    def __post_init__(self) -> None:
        lengths = {len(self.names), len(self.units), len(self.low), len(self.high), len(self.relative)}
        if len(lengths) != 1:
            raise ValueError(f"action schema fields differ in length: {sorted(lengths)}")
        if self.frame not in ("tool", "base"):
            raise ValueError(f"action schema frame is 'tool' or 'base', got {self.frame!r}")
        if self.rotation not in ("rotvec", "euler_xyz"):
            raise ValueError(f"action schema rotation is 'rotvec' or 'euler_xyz', got {self.rotation!r}")
        if not 0.0 <= self.control_rate_hz < math.inf:
            raise ValueError(f"action schema control_rate_hz is a rate or 0, got {self.control_rate_hz!r}")


@dataclass(frozen=True, slots=True)
class StageTimings:
    """Time a frame spent in each stage, in nanoseconds on the server's clock.

    decode: JPEG decoding. queue: waiting for a pass. inference: from the start of its first pass to the end of its
    last. passes: number of passes it took part in.
    """

    decode_ns: int = 0
    queue_ns: int = 0
    inference_ns: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Pass times in nanoseconds: on the device where that runs behind the host, else in the worker's loop.

    stages: K. prefill_ns: one prefill. two_prefills_ns: the prefills of two sessions. packed_ns: one prefill and K-1
    decode rows. decode_ns: one decode row. decodes_ns: K-1 decode rows. row_ns: each row that a pass has beyond K-1
    decode rows per prefill. launch_ns: host time before the device can begin a pass, which is launched while the one
    before it runs; 0 where launching computes.
    """

    stages: int
    prefill_ns: int
    two_prefills_ns: int
    packed_ns: int
    decode_ns: int
    decodes_ns: int
    row_ns: int = 0
    launch_ns: int = 0

    @property
    def launch_ahead(self) -> int:
        """Passes that may be in flight while the next one is planned."""
        return int(self.launch_ns > 0)

    def pass_ns(self, prefills: int, decodes: int) -> int:
        """The time of a pass of any shape, by the slopes of the corners, which never fall; decodes: rows that are not
        of prompts.
        """
        others = max(self.stages - 1, 1)
        if prefills == 0:
            slope = max(self.decodes_ns - self.decode_ns, 0)
            return self.decode_ns + slope * (decodes - 1) // max(others - 1, 1)
        more = max(self.two_prefills_ns - self.prefill_ns, 0) * (prefills - 1)
        packed = min(decodes, (self.stages - 1) * prefills)
        rows = max(self.packed_ns - self.prefill_ns, 0) * packed // others
        return self.prefill_ns + more + rows + self.row_ns * (decodes - packed)

    def scaled(self, percent: int) -> PassTimes:
        """The times of all passes multiplied by percent / 100, none below 1 ns; launch_ns stays."""
        passes = {name: max(getattr(self, name) * percent // 100, 1) for name in (*_WITH_PREFILL, *_WITHOUT)}
        return replace(self, **passes, row_ns=self.row_ns * percent // 100)

    def corrected(self, percent: int, *, with_prefill: bool) -> PassTimes:
        """The times with those of passes with, or without, a prefill multiplied by percent / 100."""
        moved, names = self.scaled(percent), (*_WITH_PREFILL, "row_ns") if with_prefill else _WITHOUT
        return replace(self, **{name: getattr(moved, name) for name in names})


_WITH_PREFILL = ("prefill_ns", "two_prefills_ns", "packed_ns")
_WITHOUT = ("decode_ns", "decodes_ns")
