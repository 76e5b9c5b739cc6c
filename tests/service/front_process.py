"""A front process of tests: `python -c RUN checkpoint ready_file` with worker processes that load no torch."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import frame_message, open_message
from tests.service.processes import workers

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
HANG_S = 60  # what takes so long on any machine will never happen
RUN = """
import json, sys
from contextlib import closing
from functools import partial
from pathlib import Path
from edgeflow.config.service import load_config
from edgeflow.commands.serving import JsonPrinter
from edgeflow.service import app
from edgeflow.service.run import run_service
from edgeflow.service.host.output import Output
ports = {"grpc.port": 0, "http.port": 0, "health.port": 0, "frontends.port": 0, "max_action_age_ms": 60_000}
plain = {"chat.enabled": False, "standby": False}
config = load_config(None, {"model": sys.argv[1], **plain, **ports, **json.loads(sys.argv[3])})
app.Workers = partial(app.Workers, entry="tests.service.process_worker")
with Output() as output, closing(JsonPrinter(output.results())) as announce:
    code = run_service(config, announce, ready_file=Path(sys.argv[2]), log=output.lines)
sys.exit(code)
"""


@dataclass
class Front:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    ready_file: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{json.loads(self.ready_file.read_text())['grpc']}"

    def worker(self) -> int:
        """Its worker's process id."""
        return wait_for(lambda: workers(self.process.pid))[0]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has one."""
        return self.process.wait(HANG_S)


@contextmanager
def front(
    checkpoint: Path,
    tmp_path: Path,
    *,
    ready: bool = True,
    output: int | None = None,
    descriptors: int | None = None,
    **settings,
) -> Iterator[Front]:
    """output: where standard output and error go instead of to the file `log`. descriptors: how many it may have."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    ready_file = tmp_path / "ready.json"
    command = [sys.executable, "-c", RUN, str(checkpoint), str(ready_file), json.dumps(dotted)]
    with (tmp_path / "log").open("w") as log:
        stdout, stderr = (output, output) if output is not None else (subprocess.DEVNULL, log)
        process = subprocess.Popen(command, cwd=ROOT, stdout=stdout, stderr=stderr, text=True)
    if descriptors is not None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    made = Front(process, ready_file)
    try:
        if ready:
            wait_for(ready_file.exists)
        yield made
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], T]) -> T:
    """Poll a condition that nothing announces; what it was when it came true."""
    deadline = time.monotonic() + HANG_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


@contextmanager
def robot(address: str) -> Iterator[BlockingRobot]:
    with grpc.insecure_channel(address) as channel:
        yield BlockingRobot(channel)


class BlockingRobot:
    """One stream: sends at once, remembers all it hears."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.heard: list[pb.ServerMessage] = []
        self.sent = 0
        self._messages: list[pb.ClientMessage | None] = []
        call = channel.stream_stream(f"/{SERVICE}/Stream", bytes, pb.ServerMessage.FromString)
        self.call = call(self._outgoing(), wait_for_ready=True)

    def open(self) -> None:
        self._messages.append(pb.ClientMessage(open=open_message()))
        self.until("opened")

    def frame(self, instruction: str = "") -> int:
        self.sent += 1
        changes = {"instruction": instruction} if instruction else {}
        frame = frame_message(self.sent, stamp_ns=time.monotonic_ns(), **changes)
        self._messages.append(pb.ClientMessage(frame=frame))
        return self.sent

    def until(self, kind: str) -> pb.ServerMessage:
        for message in self.call:
            self.heard.append(message)
            if message.WhichOneof("kind") == kind:
                return message
        raise AssertionError("the stream ended")

    def rest(self) -> grpc.StatusCode:
        """Everything to the end; how it ended."""
        try:
            for message in self.call:
                self.heard.append(message)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def kinds(self) -> list[str]:
        """What was heard, in order: notices by kind, statuses by reason, actions by reason or `act`."""
        told = []
        for message in self.heard:
            match message.WhichOneof("kind"):
                case "notice":
                    told.append(message.notice.kind)
                case "frame_status":
                    told.append(message.frame_status.reason or "acted")
                case "action":
                    told.append(message.action.reason or "act")
        return told

    def _outgoing(self) -> Iterator[bytes]:
        while True:
            if self._messages:
                yield self._messages.pop(0).SerializeToString()
            else:
                time.sleep(0.005)
