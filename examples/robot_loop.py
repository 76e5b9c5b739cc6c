"""A robot's control loop: push the newest frame, do what the service says now, hold when it says nothing."""

import time
from collections.abc import Callable

import numpy as np

from edgeflow.client.pose import Pose
from edgeflow.client.robot import RobotClient
from edgeflow.types import CameraSpec, ImageFormat

PERIOD_S = 0.05
CAMERA = CameraSpec("wrist", width=96, height=96, format=ImageFormat.RGB8)

Look, Feel = Callable[[], np.ndarray], Callable[[], Pose]
Move, Hold = Callable[[Pose, float], None], Callable[[], None]


def control(address: str, task: str, image: Look, pose: Feel, move: Move, hold: Hold, steps: int) -> None:
    with RobotClient(address, cameras=[CAMERA], instruction=task, control_period_s=PERIOD_S) as client:
        for _ in range(steps):
            client.push(image(), pose=pose())
            target = client.latest().target  # None: hold. After a longer silence: until client.reset()
            if target is not None and target.pose is not None:
                move(target.pose, target.values["gripper"])
            else:
                hold()
            time.sleep(PERIOD_S)
