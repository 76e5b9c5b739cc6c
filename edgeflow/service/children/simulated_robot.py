"""The simulated robot that an operator starts beside the service: a separate process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from edgeflow.config.sections import is_loopback
from edgeflow.config.service import ServiceConfig
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY
from edgeflow.service.host.spawn import SpawnedProcess, spawn
from edgeflow.service.observe.log import EventLog
from edgeflow_client.errors import FailedPrecondition, Unavailable, how_to_install

ENTRY = "edgeflow.lab.commands.robots"
LIBRARY = "mujoco"  # of the extra demo
TOKEN_VARIABLE = "EDGEFLOW_TOKEN"
POLICIES = (EMBEDDED_POLICY, EMBEDDED_FLOW_POLICY)
END_S = 5.0  # for a robot that has closed its output to end
MOST_ERROR = 4096  # bytes of what it wrote last
SHOWN_ERROR = 300  # characters


def why_no_robot(config: ServiceConfig) -> str:
    """Why no simulated robot can be started beside this service; "" if one can."""
    if config.model_path not in POLICIES:
        return "the simulated robot is for the embedded policies"
    if config.tls.cert or not is_loopback(config.grpc.host):
        return "the simulated robot is for a service on loopback without TLS: use `edgeflow robot`"
    if find_spec(LIBRARY) is None:
        return f"{LIBRARY} is not installed; {how_to_install('demo')}"
    return ""


class RobotChild:
    """At most one robot. It is started without a copy of memory, runs at low priority and ends with control.

    address: the service's gRPC address.
    """

    def __init__(self, config: ServiceConfig, address: Callable[[], str], log: EventLog) -> None:
        self._config = config
        self._address = address
        self._log = log
        self._process: SpawnedProcess | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.ended is None

    def state(self) -> dict[str, Any]:
        """For an operator: whether one runs, and why none can be started."""
        return {"running": self.is_running, "lacking": why_no_robot(self._config)}

    def start(self, token: str) -> None:
        """Start it, with the operator's token; FailedPrecondition where none can be started, or one runs."""
        if lacking := why_no_robot(self._config):
            raise FailedPrecondition(lacking)
        if self.is_running:
            raise FailedPrecondition("a simulated robot runs already")
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        if token:
            environment[TOKEN_VARIABLE] = token
        try:
            output, written = os.pipe()
            try:
                arguments = [self._address(), str(os.getpid()), str(written)]
                self._process = spawn(ENTRY, [written], arguments, environment)
            except OSError:
                os.close(output)
                raise
            finally:
                os.close(written)
        except OSError as error:
            raise Unavailable(f"a process cannot be started: {error.strerror}") from None
        os.set_blocking(output, False)
        self._watching = asyncio.create_task(self._watch(self._process, output), name="simulated-robot")

    def stop(self) -> None:
        """End it; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    async def close(self) -> None:
        """End it, and wait for that."""
        self.stop()
        if self._watching is not None:
            await self._watching

    async def _watch(self, process: SpawnedProcess, output: int) -> None:
        """Keep the last of what it writes until its end, which is logged."""
        loop, last = asyncio.get_running_loop(), bytearray()
        over = asyncio.Event()

        def read() -> None:
            try:
                data = os.read(output, MOST_ERROR)
            except BlockingIOError:
                return
            last.extend(data)
            del last[:-MOST_ERROR]
            if not data:
                loop.remove_reader(output)
                over.set()

        loop.add_reader(output, read)
        try:
            await over.wait()
            ended = await process.wait(END_S)
        finally:
            loop.remove_reader(output)
            os.close(output)
        lines = last.decode(errors="replace").split("\n")
        line = next((each.strip() for each in reversed(lines) if each.strip()), "")
        self._log.event("simulated_robot", ended=ended, last=line[:SHOWN_ERROR])
