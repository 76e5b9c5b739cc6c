"""Emulated links: when packets leave them, and real TCP over one."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from random import Random

import pytest

from benchmarks.links.model import LINKS, MS_NS, EmulatedLink, LinkDirection, LinkState, wifi_trace

SIZE = 1500
NAMED = {link.name: link for link in LINKS}


def sent(link: EmulatedLink, every_ms: float, count: int) -> list[tuple[int, float | None]]:
    """Packets that enter at a steady pace, and when they leave."""
    direction = LinkDirection(link, Random(0))
    times_ns = [round(index * every_ms * MS_NS) for index in range(count)]
    return [(now_ns, direction.leaves_ns(now_ns, SIZE)) for now_ns in times_ns]


def delays_ms(link: EmulatedLink, every_ms: float = 5.0, count: int = 2000) -> list[float]:
    return [(left_ns - now_ns) / MS_NS for now_ns, left_ns in sent(link, every_ms, count) if left_ns is not None]


def test_delay_jitter_and_loss_are_as_stated():
    assert set(delays_ms(NAMED["100 ms"])) == {100.0}
    jittered = delays_ms(NAMED["20 ms, jitter of 20 ms"])
    assert (min(jittered), max(jittered)) == pytest.approx((20, 40), abs=0.2)
    assert len(delays_ms(NAMED["20 ms, 1 % loss"], count=20_000)) == pytest.approx(19_800, abs=60)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_packets_stay_in_order(link):
    left = [left_ns for _, left_ns in sent(link, 0.5, 5000) if left_ns is not None]
    assert all(earlier <= later for earlier, later in pairwise(left))


def test_a_narrow_link_carries_its_rate_and_loses_what_its_queue_does_not_hold():
    link = NAMED["20 ms, 5 Mbit/s"]
    passed = [left_ns for _, left_ns in sent(link, 0.5, 8000) if left_ns is not None]  # 24 Mbit/s for 4 s
    assert 8 * SIZE * len(passed) / 4e6 == pytest.approx(5, rel=0.05)
    full_ms = 8 * link.queue_bytes / 5e3
    assert max(delays_ms(link, 0.5, 8000)) == pytest.approx(20 + full_ms, rel=0.05)


def test_nothing_leaves_a_stalled_link_and_then_what_waited_leaves_at_once():
    steady, stall = LinkState(delay_ms=1, for_ms=100), LinkState(stalled=True, for_ms=200)
    link = EmulatedLink(name="stalling", trace=(steady, stall), queue_bytes=20 * SIZE)
    left = [left_ns / MS_NS for _, left_ns in sent(link, 5, 60) if left_ns is not None]
    assert not [at for at in left if 101 < at < 300]
    assert len([at for at in left if 300 <= at < 301]) == 20


def test_the_wifi_trace_is_what_its_model_says():
    trace = wifi_trace(Random(1))
    stalls = [state.for_ms for state in trace if state.stalled]
    assert 50 <= min(stalls) < max(stalls) <= 400
    bad = [state.for_ms for state in trace if state.loss]
    assert sum(bad) / len(bad) == pytest.approx(600, rel=0.3)
    assert sum(bad) / sum(state.for_ms for state in trace) == pytest.approx(1 / 6, rel=0.3)
    assert trace == wifi_trace(Random(1))


TCP = """
import socket, sys, time
from benchmarks.links.model import LINKS
from benchmarks.links.namespaces import SERVICE, RobotNetwork, enter
enter()
network = RobotNetwork()
listener = socket.create_server((SERVICE, 0))
with network, network.link(next(link for link in LINKS if link.name == "20 ms")) as forwarder:
    near = socket.socket()
    began = time.monotonic()
    near.connect(listener.getsockname())
    print(time.monotonic() - began)
    far, (address, _) = listener.accept()
    near.sendall(b"frame")
    print(address, far.recv(5).decode())
    forwarder.stdin.close()
"""


def test_tcp_crosses_a_link_between_two_namespaces():
    can = ["unshare", "--map-root-user", "--net", "sh", "-c", "test -w /dev/net/tun && ip link set lo up"]
    if subprocess.run(can, check=False, capture_output=True).returncode:
        pytest.skip("needs user namespaces and /dev/net/tun")
    done = subprocess.run([sys.executable, "-c", TCP], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    took, received = done.stdout.splitlines()
    assert float(took) >= 0.04  # a round trip
    assert received == "10.77.0.2 frame"
