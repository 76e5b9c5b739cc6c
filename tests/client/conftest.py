"""Fixtures of the client's tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from edgeflow_client.robot import RobotClient
from tests.client.scripted import CAMERA, Server

IMAGE = np.zeros((CAMERA.height, CAMERA.width, 3), np.uint8)


@pytest.fixture
def serve():
    """serve(script) starts a scripted server; all of them stop with the test."""
    servers = []

    def start(script, port=0, credentials=None) -> Server:
        servers.append(Server(script, port, credentials))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect():
    """connect(server, ...) is a client with defaults, not entered yet."""

    def make(server: Server, **options) -> RobotClient:
        settings = {"cameras": [CAMERA], "instruction": "grasp", "control_period_s": 0.02} | options
        return RobotClient(server.address, **settings)

    return make


@pytest.fixture
def eventually():
    """eventually(condition) waits until it holds, and fails after a minute."""

    def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
        pause = threading.Event()
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            pause.wait(0.002)

    return wait
