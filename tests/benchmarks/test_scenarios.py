"""A scenario with real processes, as small as it gets, and the parts that scenarios stand on."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from benchmarks.chaos.fake_server import Manners, Proxy, fake_server
from benchmarks.chaos.mixed_guests import cheating
from benchmarks.chaos.process_facts import alive, children, held, is_idle, memory, started_at, wait_for
from benchmarks.chaos.resource_faults.outputs import disk, pipe
from benchmarks.chaos.robots import KillableProcess
from benchmarks.chaos.service import ROOT
from benchmarks.chaos.stalled_robots import StalledRobotsPlan, stalled_robots
from benchmarks.chaos.stalls import LONGEST_S, SHORTEST_S, durations
from edgeflow_client.rpc import control_pb2 as pb


def test_a_server_that_stops_and_a_network_that_stalls(tmp_path):
    """HOLD in time is not asserted here, a busy machine may be late; that each robot holds and acts again is."""
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.chaos", "server-stop", "--trials", "3", "--robots", "1", "--real", "0"]
    done = subprocess.run([*command, "--json", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(path.read_text())
    assert set(report["samples"]["late_ms"]) == {
        f"no model, {kind}" for kind in ("stopped", "killed", "network stalled")
    }
    figures = {row["what"]: row for row in report["figures"]}
    assert figures["trials"]["value"] == 3
    assert figures["actions given out past their validity"]["value"] == 0
    assert done.returncode == (not all(row["met"] for row in report["figures"]))
    assert {"date", "cpu", "cores", "load_average", "python", "torch", "commit"} <= set(report)


def test_the_oldest_frame_that_a_robot_acts_on():
    """The robots and servers of the stalls scenario, one stall each; the control has no age limit."""
    seen = {}
    with ExitStack() as stack:
        server = stack.enter_context(KillableProcess(fake_server, 250, Manners(350, 100, first_late_s=0.3, late_s=0.3)))
        port = server.receive()
        for name, limit_s in (("default", None), ("control", math.inf)):
            plan = StalledRobotsPlan(stalls_s=[[0.5]], seed=0, limit_ms=350, max_action_age_s=limit_s)
            seen[name] = stack.enter_context(KillableProcess(stalled_robots, port, plan))
        heard = {name: [robot.receive(), *robot.receive()] for name, robot in seen.items()}
    (stalled, robot), (_, control) = heard["default"], heard["control"]
    assert (stalled, robot.stalls_s, robot.beyond) == ("stalled", [0.5], 0)
    assert robot.acted > 0
    assert control.late_ms > 50 and control.beyond > 0


def test_stalls_have_every_length():
    lengths = sorted(durations(8, random.Random(1)))
    edges = [SHORTEST_S * (LONGEST_S / SHORTEST_S) ** (index / 8) for index in range(9)]
    assert all(low <= length <= high for low, length, high in zip(edges, lengths, edges[1:], strict=False))


def test_an_unknown_scenario_is_rejected():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "client-kill" in done.stdout


def test_an_unknown_case_of_a_scenario_is_rejected():
    command = [sys.executable, "-m", "benchmarks.chaos", "resources", "--only", "full-disk,nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no case 'nothing'" in done.stderr and "blocked-pipe" in done.stderr


@pytest.mark.parametrize("opened", [disk, partial(pipe, closed=True), partial(pipe, closed=False)])
def test_an_outlet_takes_lines_until_it_is_spoilt(opened):
    with opened() as outlet:
        if os.fstat(outlet.descriptor).st_rdev != Path("/dev/full").stat().st_rdev:
            assert os.write(outlet.descriptor, b"a line\n") == 7
        outlet.spoil()
        os.set_blocking(outlet.descriptor, False)
        with pytest.raises(OSError):
            os.write(outlet.descriptor, b"a line\n")


def test_cheats_send_more_than_they_declare_and_begin_episodes():
    leaving, ended, tally = threading.Event(), threading.Event(), Counter()
    sent = cheating(pb.Image(data=b"picture"), leaving, ended, tally)
    kinds = [next(sent).WhichOneof("kind") for _ in range(5)]
    assert kinds == ["open", "frame", "frame", "frame", "reset"]
    leaving.set()
    assert next(sent, None) is None and tally["frames"] == 3


def test_a_sleeping_process_is_idle_and_this_one_is_not():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert wait_for(lambda: is_idle(child.pid), 60) is not None
        child.kill()
    assert not is_idle(os.getpid())


def test_a_child_is_seen_until_it_is_killed_and_not_as_a_zombie():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children(os.getpid())
        assert abs(started_at(child.pid) - started_at(os.getpid())) < 24 * 3600
        assert memory(child.pid)["VmRSS"] > 0
        child.send_signal(signal.SIGKILL)
        assert wait_for(lambda: not alive(child.pid), 60) is not None
        assert child.pid not in children(os.getpid())


def test_a_held_descriptor_is_counted():
    before = held(os.getpid()).descriptors
    with socket.socket():
        assert held(os.getpid()).descriptors == before + 1


def test_waiting_ends_at_its_bound():
    assert wait_for(lambda: False, 0.02) is None
    assert wait_for(lambda: True, 0.02) is not None


def test_the_proxy_forwards_stalls_and_resumes():
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy() as proxy:
        proxy.target = server.getsockname()[1]
        host, port = proxy.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as near:
            far, _ = server.accept()
            with far:
                near.sendall(b"a")
                far.settimeout(10)
                assert far.recv(1) == b"a"
                proxy.stall()
                near.sendall(b"b")
                far.settimeout(0.1)
                try:
                    passed = far.recv(1)
                except TimeoutError:
                    passed = b""
                assert passed == b""
                proxy.resume()
                far.settimeout(10)
                assert far.recv(1) == b"b"
