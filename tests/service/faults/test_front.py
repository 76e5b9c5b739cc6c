"""Front processes that are told to stop, told twice, killed, or stuck."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import grpc
import pytest

from edgeflow.service.host import watchdogs
from edgeflow.service.host.watchdogs import LoopWatch
from edgeflow.service.observe.health import Health, HealthState
from tests.service.front_process import HANG_S, Front, front, robot, wait_for
from tests.service.harness import eventually, serving
from tests.service.processes import runs, state, until_gone

ENDLESS_MS = 2 * 1000 * HANG_S  # a drain that outlasts `Front.ended`


def log_of(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def stopped(made: Front) -> None:
    """Send SIGTERM: the process ends with exit code 0, its worker gone."""
    worker = made.worker()
    made.signal(signal.SIGTERM)
    assert made.ended() == 0
    assert not runs(worker)


@pytest.mark.parametrize(("hung", "drain_ms"), [("hang in c", 500), ("stop", ENDLESS_MS)])
def test_sigterm_with_a_hung_worker_ends_with_exit_code_0(checkpoint, tmp_path: Path, hung: str, drain_ms: int):
    with front(checkpoint, tmp_path, timing__drain_ms=drain_ms) as made, robot(made.address) as one:
        one.open()
        one.frame(hung)
        one.until("notice")  # its instruction starts an epoch
        if hung == "stop":
            wait_for(lambda: state(made.worker()) == "T")
        stopped(made)
        assert one.rest() is grpc.StatusCode.UNAVAILABLE
        told = one.kinds()
        assert told[:2] == ["epoch", "drain"] and told[-1] == "DRAINING"
        assert [m.frame_status.seq for m in one.heard if m.WhichOneof("kind") == "frame_status"] == [1]
        if drain_ms == ENDLESS_MS:  # the drain ended when the worker's silence was noticed, long before its own limit
            assert "WORKER_LOST" in told


def test_sigterm_while_the_worker_restarts(checkpoint, tmp_path: Path, monkeypatch):
    with front(checkpoint, tmp_path) as made, robot(made.address) as one:
        one.open()
        os.kill(made.worker(), signal.SIGKILL)
        one.until("notice")
        made.signal(signal.SIGTERM)
        assert one.rest() is grpc.StatusCode.UNAVAILABLE
        assert made.ended() == 0
        assert one.kinds()[-1] == "DRAINING"


def test_the_steps_of_a_drain_come_in_order(checkpoint, tmp_path: Path):
    with front(checkpoint, tmp_path) as made, robot(made.address) as one:
        one.open()
        one.frame()
        one.until("action")
        stopped(made)
        assert one.rest() is grpc.StatusCode.UNAVAILABLE
        assert one.kinds()[-2:] == ["drain", "DRAINING"]
        events = log_of(tmp_path)
        steps = [each.get("state", each["event"]) for each in events if each["event"] != "starting"]
        order = ["ready", "draining", "session_closed", "worker_stopped", "stopped"]
        assert [step for step in steps if step in order] == order
        assert [each["ended"] for each in events if each["event"] == "worker_stopped"] == ["exit code 0"]


def test_sigterm_while_the_worker_loads(checkpoint, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("EDGEFLOW_TEST_START", "hang")
    with front(checkpoint, tmp_path, ready=False) as made:
        stopped(made)
        assert not made.ready_file.exists()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_closed_terminal_and_a_quit_drain_too(checkpoint, tmp_path: Path, number: int):
    with front(checkpoint, tmp_path) as made, robot(made.address) as one:
        one.open()
        for harmless in (signal.SIGUSR1, signal.SIGUSR2):
            made.signal(harmless)
        one.frame()
        one.until("action")
        made.signal(number)
        assert one.rest() is grpc.StatusCode.UNAVAILABLE
        assert made.ended() == 0
        assert one.kinds()[-2:] == ["drain", "DRAINING"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(checkpoint, tmp_path: Path, number: int):
    patient = {"timing__drain_ms": ENDLESS_MS, "timing__worker_progress_ms": ENDLESS_MS}
    with front(checkpoint, tmp_path, **patient) as made, robot(made.address) as one:
        one.open()
        one.frame("hang")
        one.until("notice")  # its instruction starts an epoch: the drain will have this frame to wait for
        worker = made.worker()
        made.signal(number)
        one.until("notice")
        assert one.kinds() == ["epoch", "drain"]
        made.signal(number)
        assert made.ended() == -number
        until_gone(worker)


@pytest.mark.parametrize("phase", ["loading", "idle", "hang", "hang in c"])
def test_the_worker_of_a_killed_front_leaves(checkpoint, tmp_path: Path, monkeypatch, phase: str):
    monkeypatch.setenv("EDGEFLOW_TEST_START", "hang" if phase == "loading" else "")
    with front(checkpoint, tmp_path, ready=phase != "loading") as made:
        worker = made.worker()
        if phase.startswith("hang"):
            with robot(made.address) as one:
                one.open()
                one.frame(phase)
                made.signal(signal.SIGKILL)
        made.signal(signal.SIGKILL)
        made.ended()
        until_gone(worker)


def test_a_loop_that_does_not_turn_is_seen_by_a_thread(monkeypatch):
    monkeypatch.setattr(watchdogs, "CHECK_S", 0.01)
    monkeypatch.setattr(watchdogs, "STALL_S", 0.05)
    monkeypatch.setattr(watchdogs, "GIVE_UP_S", 0.5)
    stacks: list[list[str]] = []
    resumed, lost = threading.Event(), threading.Event()
    watch = LoopWatch(stacks.append, resumed.set, lost.set)
    watch.start()
    wait_for(lambda: bool(stacks))
    assert "wait_for" in "\n".join(stacks[0])
    while not resumed.is_set():
        watch.beat()
        time.sleep(0.001)
    assert lost.wait(HANG_S)
    watch.stop()


def test_a_stalled_loop_is_neither_live_nor_ready():
    health = Health()
    health.move(HealthState.WARMING)
    health.move(HealthState.READY)
    assert health.live and health.ready
    health.stalled = True
    assert not health.live and not health.ready


async def test_a_blocked_loop_is_logged_with_what_blocks_it(checkpoint, monkeypatch):
    monkeypatch.setattr(watchdogs, "STALL_S", 0.3)
    async with serving(checkpoint) as served:
        health = served.service.health
        wait_for(lambda: health.stalled)  # blocks the loop it runs in
        assert not health.live
        await eventually(lambda: health.live and health.ready)
        (told,) = served.events("loop_stalled")
        assert "test_a_blocked_loop" in "\n".join(told["stack"])
        assert served.metric("edgeflow_watchdog_fired_total", which="loop") == 1
