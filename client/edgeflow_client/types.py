"""The types that travel between a robot and the service. Leaf module: standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum


class Mode(str, Enum):
    """How the frames of a session share passes.

    SERIAL: one frame at a time. PIPELINED: K frames share a pass. DEPTH: a given number of frames share a pass.
    SPECULATIVE: every frame drafts all of its tokens, and passes verify them. AUTO: the mode with the highest rate
    within the session's age limit; without a limit SPECULATIVE with exact tokens, or SERIAL for policies without
    drafts.
    """

    SERIAL = "serial"
    PIPELINED = "pipelined"
    DEPTH = "depth"
    SPECULATIVE = "speculative"
    AUTO = "auto"


class Execution(str, Enum):
    """How a robot executes answers.

    CONTINUE: each chunk continues the one in execution (real-time chunking). FRESH: each chunk starts anew while the
    one before it is in execution. REST: the robot executes some rows and stands still until its next frame is answered.
    SLOW: as CONTINUE or FRESH, at a fraction of the chunk's rate. AUTO: the service chooses, by how late answers come
    and by what the policy can bridge.
    """

    AUTO = "auto"
    CONTINUE = "continue"
    FRESH = "fresh"
    REST = "rest"
    SLOW = "slow"


MOST_TOLERANCE_BINS = 2
JPEG_QUALITY = 90


class ImageFormat(str, Enum):
    """The encoding of an image."""

    JPEG = "jpeg"
    """The bytes of a JPEG file."""
    RGB8 = "rgb8"
    """Height x width x 3 bytes."""


class Disposition(str, Enum):
    """The outcome of a frame; every frame gets exactly one."""

    ACTED = "acted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    DROPPED = "dropped"


class Command(str, Enum):
    """A command for a robot."""

    ACT = "act"
    """Execute the action."""
    HOLD = "hold"
    """Keep still; actions may follow."""
    STOP = "stop"
    """Keep still until `reset`."""


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """A camera declared at open."""

    name: str
    """Name of the camera, as the policy or the service's configuration knows it."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    format: ImageFormat
    """Encoding of the images that are passed to `push`."""
    send: ImageFormat | None = field(default=None, kw_only=True)
    """Encoding on the wire. JPEG: the SDK encodes RGB8 images, which needs simplejpeg, of edgeflow-client's extra
    `images`. None = JPEG, but images as they are to a service on the robot's own machine.
    """
    quality: int = field(default=JPEG_QUALITY, kw_only=True)
    """Quality of the JPEG that the SDK encodes, 1 to 100."""
    resize: bool = field(default=False, kw_only=True)
    """The SDK shrinks RGB8 images to what the policy takes, in proportion, before it sends them; needs pillow, of the
    same extra.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """A proprioceptive state vector that a robot declares at open or that a policy needs."""

    name: str
    """Name of the vector, such as observation.state."""
    size: int
    """Number of values."""
    elements: tuple[str, ...] = ()
    """A name per value; empty = not stated."""
    units: tuple[str, ...] = ()
    """A unit per value; empty = not stated."""

    def __post_init__(self) -> None:
        for kind, given in (("elements", self.elements), ("units", self.units)):
            if len(given) not in (0, self.size):
                raise ValueError(f"state {self.name!r} has {self.size} numbers and {len(given)} {kind}")


UNKNOWN_STEP_NS = 400_000_000  # assumed time of a single action whose control step is not stated
MAX_HORIZON = 1000  # actions per chunk


MAX_CHUNK_NUMBERS = 32_768  # values per chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSchema:
    """The meaning of an action's values, and the number of actions per answer."""

    names: tuple[str, ...]
    """One entry per dimension, like the next four."""
    units: tuple[str, ...]
    """One unit per dimension."""
    low: tuple[float, ...]
    """Lower limits in these units."""
    high: tuple[float, ...]
    """Upper limits in these units."""
    relative: tuple[bool, ...]
    """True for displacements."""
    frame: str = "base"
    """"tool" or "base": the frame of relative dimensions."""
    rotation: str = "euler_xyz"
    """"rotvec" or "euler_xyz": the meaning of the three rotation dimensions."""
    control_rate_hz: float = 0.0
    """Relative dimensions stand for one control step at this rate; 0 = not stated."""
    horizon: int = 1
    """Actions per chunk, within `check_chunk`."""
    step_ms: float = 0.0
    """Time between the actions of a chunk; 0 if the horizon is 1."""
    whole_way: bool = False
    """Relative dimensions are the whole way to the target, not one control step, so they have no control rate."""

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
        if self.whole_way and self.control_rate_hz:
            raise ValueError("action schema has whole_way and a control_rate_hz; an action is one or the other")
        if self.horizon < 1 or not 0.0 <= self.step_ms < math.inf or (self.horizon > 1 and not self.step_ms):
            raise ValueError(f"an action schema of horizon {self.horizon} has no step of {self.step_ms!r} ms")
        check_chunk(self.horizon, len(self.names))

    @property
    def motion_ns(self) -> int:
        """The time of one row's motion; of a single action that of its control step, UNKNOWN_STEP_NS if not stated."""
        if self.horizon > 1:
            return round(self.step_ms * 1e6)
        return round(1e9 / self.control_rate_hz) if self.control_rate_hz else UNKNOWN_STEP_NS

    @property
    def reach_ns(self) -> int:
        """Time from the capture of a frame to the moment of its answer's last action."""
        return round((self.horizon - 1) * self.step_ms * 1e6)


def check_chunk(horizon: int, dims: int) -> None:
    """Raise ValueError for a chunk that is longer than clients accept."""
    most = min(MAX_HORIZON, MAX_CHUNK_NUMBERS // max(dims, 1))
    if horizon > most:
        raise ValueError(f"a horizon of {horizon} is too long; with {dims} dimensions it must be 1 to {most}")


@dataclass(frozen=True, slots=True)
class StageTimings:
    """Time a frame spent in each stage, in nanoseconds on the server's clock."""

    decode_ns: int = 0
    """JPEG decoding."""
    queue_ns: int = 0
    """Waiting for a pass."""
    inference_ns: int = 0
    """From the start of its first pass to the end of its last."""
    passes: int = 0
    """Number of passes it took part in."""
