"""The command `edgeflow serve` with a Diffusion Policy, whose answers need two observations, and a robot of the SDK."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

from checkpoints import TOP, WRIST, PlainLeRobot, write_checkpoint
from robots import observation
from test_equal import EXACT, difference, seed_of

from edgeflow_client.actions import Action
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec


@contextlib.contextmanager
def served(folder: Path, model: Path) -> Iterator[str]:
    """The service of a checkpoint; the address of its gRPC server."""
    path, ready, log = (folder / name for name in ("config.json", "ready.json", "log"))
    ports = {name: {"port": 0} for name in ("grpc", "http", "health", "frontends")}
    settings = {"model": str(model), "chat": {"enabled": False}, "standby": False, "policy": {"control_rate_hz": 10.0}}
    path.write_text(json.dumps({**settings, **ports}))
    command = [
        sys.executable,
        "-m",
        "edgeflow.cli",
        "serve",
        "--config",
        str(path),
        "--ready-file",
        str(ready),
        "--json",
    ]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        while not ready.exists():  # pytest's timeout ends it
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{json.loads(ready.read_text())['grpc']}"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()


def test_a_robot_gets_the_chunks_of_lerobot(tmp_path: Path):
    directory = write_checkpoint(tmp_path / "diffusion", "diffusion")
    plain = PlainLeRobot(directory)
    cameras = [CameraSpec(name, 64, 48, ImageFormat.RGB8) for name in (TOP, WRIST)]
    acted: SimpleQueue[Action] = SimpleQueue()
    with (
        served(tmp_path, directory) as address,
        RobotClient(
            address,
            instruction="move",
            cameras=cameras,
            state=[StateSpec(name="observation.state", size=5)],
            control_period_s=0.1,
            open_timeout_s=60.0,
            on_action=lambda directive: directive.action and acted.put(directive.action),
        ) as robot,
    ):
        assert (robot.opened.schema.horizon, robot.opened.schema.step_ms) == (4, 100.0)
        window = []
        for step in (1, 2):
            images, state, task = observation(1, step)
            window.append(plain.seen(images, state, task))
            stamp_ns = time.monotonic_ns()
            seq = robot.push(images, state={"observation.state": state}, captured_ns=stamp_ns)
            while (action := acted.get(timeout=60)).seq < seq:
                pass
            assert difference(action.chunk, plain.selected(window, seed_of(0, stamp_ns))) <= EXACT
