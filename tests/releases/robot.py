"""A robot as a program, for an SDK and a service of different releases: prints what it saw as a line of JSON.

A release's SDK runs the program of its own commit, so that this one may use what is new.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import edgeflow_client
from edgeflow_client import CameraSpec, ImageFormat, Pose, RateKeeper, RobotClient
from edgeflow_client.types import Command

ACTIONS, MOST_FRAMES = 20, 300
PERIOD_S = 0.05


def main(address: str) -> None:
    """Push frames until enough actions were executed."""
    camera, rate, acted = CameraSpec("wrist", 128, 128, ImageFormat.RGB8), RateKeeper(PERIOD_S), set()
    with RobotClient(
        address, cameras=[camera], instruction="grasp the red handle", control_period_s=PERIOD_S
    ) as client:
        for _ in range(MOST_FRAMES):
            client.push(np.zeros((128, 128, 3), np.uint8), pose=Pose([0.4, 0.0, 0.3], xyzw=[0.0, 0.0, 0.0, 1.0]))
            directive = client.latest()
            if directive.command is Command.ACT and directive.action is not None:
                acted.add(directive.action.seq)
            if len(acted) >= ACTIONS:
                break
            rate.wait()
        seen = client.statistics()
    report = {"actions": len(acted), "rejected": seen.rejected, "reconnects": seen.reconnects}
    print(json.dumps({**report, "sdk": edgeflow_client.__file__}))


if __name__ == "__main__":
    main(sys.argv[1])
