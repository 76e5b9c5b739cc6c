"""A session's orders to its robot: the instruction in force, HOLD and STOP, and an operator who holds it.

- An operator's instruction is in force until the robot gives another text than it gave before, or is reset with one.
- While an operator holds the robot, every HOLD has the reason OPERATOR_HOLD, and every frame leaves with it. Neither a
  lost worker nor silence nor a new epoch ends that. STOP and the end of the session keep their own reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.service.sessions.answers import SessionAnswers
from edgeflow.service.sessions.frames import ActionEvent, PendingAnswer
from edgeflow.service.sessions.in_flight import FramesInFlight, Outbox
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command, Disposition

HELD_TEXT = "an operator holds the robot"


@dataclass(frozen=True, slots=True)
class OperatorHold:
    """A robot that is held by an operator."""

    text: str
    """The operator's reason, for people; may be empty."""
    by: str
    """The operator's principal; "" where no tokens are required."""
    since_ms: int
    """Unix milliseconds."""


class GivenInstruction:
    """The instruction in force. Its text is proven once an answer shows that its tokens fit a slot."""

    def __init__(self, text: str) -> None:
        self.text = self._proven = self._robots = text
        self._unproven: str | None = None  # the robot's text, until an answer comes under it

    def changes(self, text: str | None) -> bool:
        """True if a frame with this text changes the instruction; None = it has none.

        A robot may repeat its text in each frame, and thereby does not take back what an operator gave since.
        """
        if text == self.text:
            self._robot_gives(text)
        return text is not None and text != self._robots

    def give(self, text: str, *, by_operator: bool) -> None:
        """The robot or an operator gives a text; "" keeps the one in force."""
        self.text = text or self.text
        if text and not by_operator:
            self._robot_gives(text)

    def _robot_gives(self, text: str) -> None:
        if text != self._robots:
            self._robots = self._unproven = text

    def prove(self) -> None:
        """An answer came: the tokens of the instruction fit."""
        self._proven = self.text
        if self._unproven == self.text:
            self._unproven = None

    @property
    def reverts(self) -> bool:
        """True if the instruction can give way to the last proven one."""
        return self.text != self._proven

    def revert(self) -> None:
        """The instruction does not fit: the last proven one is in force again."""
        if self._robots in (self.text, self._unproven):
            self._robots = (
                self._proven
            )  # so that the robot's next frame with its text counts: it is rejected, too, or not
        self.text = self._proven


class SessionHolds:
    """HOLD and STOP for a session's robot. At most one waits in the outbox.

    operator: set while an operator holds the robot.
    """

    def __init__(self, frames: FramesInFlight, outbox: Outbox, answers: SessionAnswers) -> None:
        self.operator: OperatorHold | None = None
        self._frames = frames
        self._outbox = outbox
        self._answers = answers

    def hold_by(self, operator: OperatorHold) -> None:
        """An operator holds the robot, from now until `resume`: no frame in flight is answered."""
        self.operator = operator
        self._frames.drop_all("ABORTED", Reason.OPERATOR_HOLD, HELD_TEXT)
        self._outbox.notice("held", operator.text or HELD_TEXT)
        self.order(Reason.OPERATOR_HOLD)

    def resume(self) -> None:
        """The operator lets go: the next frame is answered, as after every HOLD from rest."""
        self.operator = None
        self._outbox.notice("resumed", "the operator lets the robot go on")

    def order(self, reason: str, command: Command = Command.HOLD) -> None:
        """Order the robot to stop moving; an action that was not taken yet is withdrawn. The STOP of a fault stays."""
        if self.operator is not None and command is Command.HOLD:
            reason = Reason.OPERATOR_HOLD
        self._answers.halt(reason)
        self._frames.withdraw(Disposition.DROPPED, "ABORTED", reason, "withdrawn: the robot holds")
        if command is Command.STOP or not self._answers.invalid.fault:
            self._outbox.safe = ActionEvent(
                epoch=self._outbox.epoch, command=command, reason=reason, valid_for_ms=self._answers.valid_for_ms
            )

    def withdraw_if_old(self, ready: PendingAnswer, now_ns: int, delay_ns: int) -> None:
        """Withdraw the waiting action if it is too old to be sent: HOLD, unless drafts of a newer frame are in flight.

        delay_ns: as in PendingAnswer.events.
        """
        if not self._answers.is_late(ready, now_ns, delay_ns):
            return
        text = f"the action is older than {self._answers.age_limit.ns // 1_000_000} ms"
        if ready.track.speculation is not None and self._frames.with_worker:
            self._frames.withdraw(Disposition.SUPERSEDED, "", Reason.ACTION_TOO_OLD, text)
            self.count_late()
        else:
            self._frames.withdraw(Disposition.DROPPED, "DEADLINE_EXCEEDED", Reason.ACTION_TOO_OLD, text)
            self.order(Reason.ACTION_TOO_OLD)

    def count_late(self) -> None:
        """A frame with drafts was too old to be answered while a newer one is in flight; several in a row mean HOLD."""
        if self._answers.count_late():
            self.order(Reason.ACTION_TOO_OLD)
