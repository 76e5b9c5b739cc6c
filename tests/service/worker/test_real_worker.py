"""Front and real worker together: frames in, actions out, a kill in between, a clean end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeflow.pass_records import PASS_TOPIC
from edgeflow_client.recording.reader import Recording
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import eventually, serving
from tests.service.processes import Newborn
from tests.tiny_checkpoint import write_checkpoint

OWN = SimpleNamespace(launch=None)  # the service starts its workers itself


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


async def test_actions_before_and_after_a_kill(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The passes of both workers are recorded."""
    (tmp_path / "queue.py").write_text("raise RuntimeError('the worker imports from where it was started')")
    monkeypatch.chdir(tmp_path)
    ours = Newborn()
    recordings = tmp_path / "recordings"
    settings = {"mode": "serial", "chat__enabled": False, "recording__directory": str(recordings)}
    async with serving(tiny, OWN, **settings) as served:
        robot = served.robot()
        opened = await robot.open(mode=pb.MODE_SERIAL)
        assert (opened.action_tokens, opened.mode) == (7, pb.MODE_SERIAL)
        await robot.frame(1)
        first = await robot.action(1)
        assert len(first.values) == 7 and first.timings.passes == 7 and first.timings.inference_ns > 0
        await eventually(lambda: bool(served.events("worker_standby")))
        worker, reserve = ours()
        os.kill(worker, signal.SIGKILL)
        await robot.hold("WORKER_LOST")
        await robot.notice("worker_ready")
        await robot.frame(2)
        second = await robot.action(2)
        assert list(second.token_ids) == list(first.token_ids)
        assert ours()[0] == reserve
        lost = served.events("worker_lost")
        assert [(event["cause"], event["ended"]) for event in lost] == [("eof", "signal SIGKILL")]
    assert [event["ended"] for event in served.events("worker_stopped")] == ["exit code 0"]
    assert not ours()
    kinds = [json.loads(each.data)["kind"] for each in Recording.open(recordings).records(PASS_TOPIC)]
    assert [kind for kind in kinds if kind in ("engine", "frame")] == ["engine", "frame"] * 2
    assert kinds.count("pass") == first.timings.passes + second.timings.passes
    assert served.metric("edgeflow_recording_records_lost_total") == 0


async def test_drafts_give_the_tokens_of_serial_decoding_in_fewer_passes(tiny: Path):
    async with serving(tiny, OWN, mode="speculative", max_sessions=2, chat__enabled=False) as served:
        robot, serial = served.robot(), served.robot()
        opened = await robot.open(control_period_ms=5000)
        assert served.service.plane.worker is not None and served.service.plane.worker.bins
        assert (opened.mode, opened.max_passes, opened.action_tokens) == (pb.MODE_SPECULATIVE, 7, 7)
        await serial.open(mode=pb.MODE_SERIAL, control_period_ms=5000)
        await serial.frame(1)
        expected = await serial.action(1)
        actions = []
        for seq in (1, 2):
            await robot.frame(seq)
            actions.append(await robot.action(seq))
        assert [list(action.token_ids) for action in actions] == [list(expected.token_ids)] * 2
        assert (expected.timings.passes, expected.settled, expected.max_passes) == (7, 7, 0)
        assert [(action.settled, action.max_passes) for action in actions] == [(7, 7)] * 2
        assert actions[1].timings.passes == 1, "the same picture again: every guess is right"
