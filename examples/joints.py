"""An arm whose policy answers in joint angles, such as ACT: two cameras, its state, a gripper, chunks of actions.

python examples/joints.py [--address 127.0.0.1:50051] [--task "pick up the cube"] [--answers 60]
    [--camera top:128x96 --camera wrist:128x96] [--state observation.state:6]

The arm is simulated. Put the calls of a real one into `Arm`, in the five places marked HERE.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from edgeflow_client.errors import EdgeflowError
from edgeflow_client.rate import RateKeeper
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

PERIOD_S = 0.05


class Arm:
    """A simulated arm: its last joint is the gripper, and its pictures change with its joints."""

    def __init__(self, cameras: Sequence[CameraSpec], state: StateSpec) -> None:
        self.cameras, self.state = cameras, state
        self.moves = self.holds = 0
        self._joints = np.zeros(state.size)

    def images(self) -> dict[str, np.ndarray]:
        # HERE: a uint8 picture [height, width, 3], red first, of every camera by name.
        shade = 128 + 100 * np.sin(self._joints.sum())
        return {each.name: np.full((each.height, each.width, 3), int(shade), np.uint8) for each in self.cameras}

    def joints(self) -> np.ndarray:
        # HERE: the state, in the order and the units of the policy's training data.
        return self._joints

    def move(self, joints: np.ndarray) -> None:
        # HERE: command the joints, joints[:-1], and the gripper, joints[-1].
        self._joints = self._joints + 0.5 * (joints - self._joints)
        self.moves += 1

    def hold(self) -> None:
        # HERE: stay where the arm is.
        self.holds += 1

    def wait_for_person(self) -> None:
        # HERE: return only after a person has checked that the arm may move again.
        input("The arm holds. Press Enter when it may move again. ")


def control(address: str, task: str, arm: Arm, answers: int) -> None:
    """Push the newest frame and execute the current directive; hold when there is none."""
    with RobotClient(
        address,
        cameras=arm.cameras,
        state=[arm.state],
        instruction=task,
        control_period_s=PERIOD_S,
        open_timeout_s=60.0,  # the service may still be loading
    ) as client:
        rate = RateKeeper(PERIOD_S)
        while client.statistics().actions < answers:
            rate.wait()
            client.push(arm.images(), state={arm.state.name: arm.joints()})
            directive = client.latest()
            if directive.joints is not None:  # of a chunk, the row that is due now
                arm.move(directive.joints)
            else:
                arm.hold()  # directive.reason says why
            if directive.needs_reset:  # after STOP, a fault of the service or 2 s of silence
                arm.wait_for_person()
                client.reset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:50051")
    parser.add_argument("--task", default="pick up the cube")
    parser.add_argument("--answers", type=int, default=60, help="end after so many answers")
    parser.add_argument("--camera", action="append", type=camera, help="NAME:WIDTHxHEIGHT, for every camera")
    parser.add_argument("--state", type=state, default="observation.state:6", help="NAME:NUMBERS")
    arguments = parser.parse_args()
    arm = Arm(arguments.camera or [camera("top:128x96"), camera("wrist:128x96")], arguments.state)
    try:
        control(arguments.address, arguments.task, arm, arguments.answers)
    except EdgeflowError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arm.moves} moves, {arm.holds} holds")
    return 0


def camera(text: str) -> CameraSpec:
    name, _, size = text.rpartition(":")
    width, _, height = size.partition("x")
    return CameraSpec(name, int(width), int(height), ImageFormat.RGB8)


def state(text: str) -> StateSpec:
    name, _, size = text.rpartition(":")
    return StateSpec(name=name, size=int(size))


if __name__ == "__main__":
    sys.exit(main())
