"""Records of the control plane: a frame in flight, the frames that a pass begins with, an open session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgeflow.contract import StageProgram
from edgeflow.engine.control.continuity import Continuity, Plan
from edgeflow.engine.control.steady import SteadyTokens
from edgeflow.engine.control.trajectory import Trajectory
from edgeflow.engine.stamps import Stamp
from edgeflow.ipc.messages import SubmitFrame
from edgeflow.scheduler.plan import FrameRef
from edgeflow_client.trajectory import Seam
from edgeflow_client.types import ActionSchema


@dataclass(slots=True, kw_only=True)
class Track:
    """A frame between its arrival and its action. drafts: behind its prompt, and their tolerance.

    plan: what is played from its capture on, as known when it was launched; seam: or why there is none. continues: the
    answer continues it.
    """

    message: SubmitFrame
    arrived_ns: int
    started_ns: int = 0
    drafts: int = 0
    tolerance_bins: int = 0
    plan: Plan | None = None
    seam: Seam = Seam.NONE
    continues: bool = False


@dataclass(slots=True, kw_only=True)
class Begun:
    """The frames that a pass begins with, prepared. stamp: on the device before the first; None where there is none."""

    started_ns: int
    stamp: Stamp | None = None
    prompts: dict[FrameRef, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parameters of a session, as in OpenSession, and what they mean with this policy.

    steady: the tokens that must not waver. chunks: the last ones; None where answers are single actions.
    """

    unnorm_key: str | None
    schema: ActionSchema
    program: StageProgram
    deadline_ns: int
    patience_ns: int
    steady: SteadyTokens
    rtc: bool
    trajectory: Trajectory
    chunks: Continuity | None

    @property
    def follows(self) -> bool:
        """True if what answers a frame depends on the answers before it."""
        return self.chunks is not None and (self.rtc or self.trajectory.limits)
