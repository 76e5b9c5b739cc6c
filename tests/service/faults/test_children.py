"""Gateway and chat front killed, stopped and orphaned, in real processes: robots on gRPC do not notice."""

from __future__ import annotations

import json
import os
import resource
import signal
import urllib.request
from pathlib import Path

import pytest

from edgeflow.service.fork_server import NICE, OOM_SCORE
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.front_process import BlockingRobot, Front, front, robot, wait_for
from tests.service.processes import children, comm, forked, runs, until_gone


def gateway(served: Front) -> int:
    """The gateway's process id, once there is one."""
    wait_for(lambda: forked(served.process.pid, "ef-gateway") is not None)
    return forked(served.process.pid, "ef-gateway") or 0


def fork_server(served: Front) -> int:
    """The process id of the children's fork server."""
    wait_for(lambda: "ef-forks" in map(comm, children(served.process.pid)))
    return next(pid for pid in children(served.process.pid) if comm(pid) == "ef-forks")


def sockets(pid: int) -> set[str]:
    """The sockets that a process holds."""
    links = (str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())
    return {link for link in links if link.startswith("socket")}


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


def test_a_killed_or_stopped_gateway_is_replaced_while_robots_continue(checkpoint, tmp_path: Path):
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


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_children_come_again_after_their_fork_server_is_lost(checkpoint, tmp_path: Path, stopped: bool):
    with front(checkpoint, tmp_path) as served, robot(served.address) as one:
        one.open()
        acts(one)
        server, first = fork_server(served), gateway(served)
        os.kill(server, signal.SIGSTOP if stopped else signal.SIGKILL)
        if stopped:
            os.kill(first, signal.SIGKILL)
        until_gone(first)
        acts(one)
        assert models(served)["data"]
        assert fork_server(served) != server
        assert gateway(served) != first
        acts(one)
        served.signal(signal.SIGTERM)
        assert served.ended() == 0


def test_a_fork_server_has_one_thread_and_children_of_strangers_give_way_to_robots(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path, chat__enabled=True) as served:
        server, child = fork_server(served), gateway(served)
        assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1
        assert os.getpriority(os.PRIO_PROCESS, server) == os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, child) == NICE
        assert not sockets(server) & sockets(child)


def test_children_die_with_control(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path) as served:
        server, child = fork_server(served), gateway(served)
        served.signal(signal.SIGKILL)
        until_gone(child)
        until_gone(server)
