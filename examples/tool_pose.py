"""An arm whose policy moves the tool, such as OpenVLA or the embedded one: a camera, the tool's pose, a gripper.

python examples/tool_pose.py [--address 127.0.0.1:50051] [--task "grasp the red handle"] [--answers 60]

The arm is simulated. Put the calls of a real one into `Arm`, in the five places marked HERE.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from edgeflow_client.errors import EdgeflowError
from edgeflow_client.pose import Pose
from edgeflow_client.rate import RateKeeper
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat

PERIOD_S = 0.05
CAMERA = CameraSpec("wrist", width=96, height=96, format=ImageFormat.RGB8)


class Arm:
    """A simulated arm that is at once where it is commanded."""

    def __init__(self) -> None:
        self.moves = self.holds = 0
        self._gripper = 1.0
        self._position = np.array([0.4, 0.0, 0.3])
        self._xyzw = np.array([1.0, 0.0, 0.0, 0.0])  # the tool points down

    def image(self) -> np.ndarray:
        # HERE: a uint8 picture [height, width, 3], red first.
        return np.full((CAMERA.height, CAMERA.width, 3), int(self._position[2] * 400) % 256, np.uint8)

    def pose(self) -> Pose:
        # HERE: where the tool was when the picture was taken, in the frame of the arm's base, in metres. ROS and SciPy
        # order a quaternion x, y, z, w; many simulators w, x, y, z: write wxyz=... for those.
        return Pose(self._position, xyzw=self._xyzw)

    def move(self, tool: Pose, gripper: float) -> None:
        # HERE: command the pose, tool.position and tool.xyzw or tool.wxyz, and the gripper.
        self._position, self._xyzw, self._gripper = tool.position, tool.xyzw, gripper
        self.moves += 1

    def hold(self) -> None:
        # HERE: stay where the arm is.
        self.holds += 1

    def wait_for_person(self) -> None:
        # HERE: return only after a person has checked that the arm may move again.
        input("The arm holds. Press Enter when it may move again. ")


def control(address: str, task: str, arm: Arm, answers: int) -> None:
    """Push the newest frame, do what the service says now, hold when it says nothing."""
    with RobotClient(
        address,
        cameras=[CAMERA],
        instruction=task,
        control_period_s=PERIOD_S,
        open_timeout_s=60.0,  # the service may still be loading
    ) as client:
        rate = RateKeeper(PERIOD_S)
        while client.statistics().actions < answers:
            rate.wait()
            client.push(arm.image(), pose=arm.pose())
            directive = client.latest()
            if (tool := directive.tool) is not None:
                arm.move(tool.pose, tool.values["gripper"])
            else:
                arm.hold()  # directive.reason says why
            if directive.needs_reset:  # after STOP, a fault of the service or 2 s of silence
                arm.wait_for_person()
                client.reset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:50051")
    parser.add_argument("--task", default="grasp the red handle")
    parser.add_argument("--answers", type=int, default=60, help="end after so many answers")
    arguments = parser.parse_args()
    arm = Arm()
    try:
        control(arguments.address, arguments.task, arm, arguments.answers)
    except EdgeflowError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arm.moves} moves, {arm.holds} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
