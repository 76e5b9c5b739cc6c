"""Gateway and chat front killed, stopped and orphaned, in real processes: robots on gRPC do not notice."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import urllib.request
from pathlib import Path

from edgeflow.rpc import control_pb2 as pb
from edgeflow.service.children.start import NICE, OOM_SCORE
from tests.service.front_process import BlockingRobot, Front, front, robot, wait_for
from tests.service.processes import children, command, runs, until_gone


def gateways(served: Front) -> list[int]:
    """The process ids of gateways, the oldest first; a younger one is the spare."""
    return [pid for pid in children(served.process.pid) if "--role\0gateway" in command(pid) and runs(pid)]


def gateway(served: Front) -> int:
    """The gateway's process id, once there is one."""
    wait_for(lambda: bool(gateways(served)))
    return gateways(served)[0]


def has_loop(pid: int) -> bool:
    """True once a process has its event loop: it has loaded its modules."""
    with contextlib.suppress(FileNotFoundError):
        return any("eventpoll" in str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def models(served: Front) -> dict:
    """The list of models over HTTP; it waits in the backlog while the gateway restarts."""
    port = json.loads(served.ready_file.read_text())["http"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
        return json.loads(answer.read())


def acts(one: BlockingRobot) -> None:
    """Send a frame and wait for its action; a HOLD for anything but the test's own silence is a failure."""
    seq = one.frame()
    while (action := one.until("action").action).seq != seq:
        assert (action.command, action.reason) == (pb.COMMAND_HOLD, "INGRESS_SILENT")
    assert action.command == pb.COMMAND_ACT


def test_a_gateway_that_is_killed_or_stopped_is_replaced_and_robots_go_on(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path) as served, robot(served.address) as one:
        one.open()
        acts(one)
        assert models(served)["data"][0]["object"] == "model"
        first = gateway(served)
        assert os.getpriority(os.PRIO_PROCESS, first) == NICE
        assert int(Path(f"/proc/{first}/oom_score_adj").read_text()) == OOM_SCORE
        assert resource.prlimit(first, resource.RLIMIT_DATA)[0] == 512 << 20
        os.kill(first, signal.SIGTERM)
        os.kill(first, signal.SIGINT)
        acts(one)
        assert runs(first)  # these are for control
        os.kill(first, signal.SIGKILL)
        acts(one)
        assert models(served)["data"]
        second = gateway(served)
        os.kill(second, signal.SIGSTOP)
        acts(one)
        assert models(served)["data"]
        assert gateway(served) not in (first, second)
        acts(one)
        served.signal(signal.SIGTERM)
        assert served.ended() == 0


def test_a_spare_takes_over_at_once(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path, standby=True) as served:
        wait_for(lambda: len(gateways(served)) == 2)
        first, spare = gateways(served)
        wait_for(lambda: has_loop(spare))
        models(served)
        os.kill(first, signal.SIGKILL)
        assert models(served)["data"]
        assert gateway(served) == spare
        wait_for(lambda: len(gateways(served)) == 2)  # another spare
        first, spare = gateways(served)
        os.kill(spare, signal.SIGKILL)
        os.kill(first, signal.SIGKILL)
        assert models(served)["data"]
        assert gateway(served) not in (first, spare)


def test_children_die_with_control(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path) as served:
        child = gateway(served)
        served.signal(signal.SIGKILL)
        until_gone(child)
