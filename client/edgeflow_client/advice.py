"""Advice for whoever writes a robot's loop: logged once, while the loop goes on and the robot holds."""

from __future__ import annotations

import logging

PATIENCE = 10  # readings of the wrong kind before it is said
_log = logging.getLogger("edgeflow_client")


class Advice:
    """Notices a loop that cannot move its robot, by what it reads and pushes.

    A loop that reads the right kind at least once, among others, is left alone.
    """

    def __init__(self) -> None:
        self._wrong = 0
        self._right = self._told_pose = self._told_flood = False

    def read(self) -> None:
        """The kind that the policy answers in was read."""
        self._right = True

    def misread(self, read: str, instead: str) -> None:
        """A kind was read that this policy does not answer in. instead: what to read."""
        self._wrong += 1
        if self._wrong == PATIENCE and not self._right:
            _log.warning("directive.%s is None for every action of this policy: read %s", read, instead)

    def pose_missing(self) -> None:
        """A target was read whose frame was pushed without a pose."""
        if not self._told_pose:
            self._told_pose = True
            _log.warning(
                "directive.tool is None: this policy moves the tool from the pose of its frame, and the frame was "
                "pushed without one; write client.push(images, pose=...)"
            )

    def flooded(self) -> None:
        """The service ended a stream because of far too many frames."""
        if not self._told_flood:
            self._told_flood = True
            _log.warning(
                "the service ended the stream because frames came far above the declared rate: begin each step of "
                "the loop with edgeflow_client.rate.RateKeeper(control_period_s).wait()"
            )
