"""The worker as a process of its own."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeflow.config.service import load_config
from edgeflow.contract import Pace
from edgeflow.ipc.channel import BlockingChannel
from edgeflow.ipc.messages import (
    FrameResult,
    OpenSession,
    SessionOpened,
    Shutdown,
    SubmitFrame,
    WarmupProgress,
    WorkerFailed,
    WorkerReady,
)
from edgeflow.policies.openvla.policy import OpenVLAPolicy, PublishedOpenVLA
from edgeflow.text.weight_files import INDEX_FILE
from edgeflow.worker.build import build_engine
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import MAX_HORIZON, ActionSchema
from tests.plugins.edgeflow_stub import RAISE
from tests.stub_policy import stub_checkpoint
from tests.tiny_checkpoint import TinySize, write_checkpoint


@pytest.fixture
def start(tmp_path):
    """Start a worker with a configuration; yields (process, channel)."""
    started = []

    def run(**config: object):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"chat": {"enabled": False}, **config}))
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from edgeflow.worker.start import run; run()",
                "--fd",
                str(theirs.fileno()),
                "--config",
                str(path),
            ],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        channel = BlockingChannel(ours)
        started.append((process, channel))
        return process, channel

    yield run
    for process, channel in started:
        channel.close()
        process.kill()
        process.wait(timeout=10)


def first_after_progress(channel: BlockingChannel):
    while isinstance(message := channel.receive(), WarmupProgress):
        pass
    return message


def test_an_exception_of_a_plug_in_is_named_in_one_line(start, tmp_path, stub_plugin: None):
    directory = stub_checkpoint(tmp_path / "stub")
    process, channel = start(model=str(directory))
    ready = first_after_progress(channel)
    assert (ready.family, ready.plugin) == ("stub", "stub of edgeflow-stub 1.0")
    channel.send(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=""))
    assert isinstance(channel.receive(), SessionOpened)
    channel.send(SubmitFrame(session=1, epoch=1, seq=1, sizes=[1, 1], instruction=RAISE, payload=b"abc"))
    failed = channel.receive()
    assert isinstance(failed, WorkerFailed) and process.wait(timeout=30) == 2
    wanted = r"policy\.family: stub of edgeflow-stub 1\.0 failed: KeyError: 'as the\\ninstruction says' "
    assert re.fullmatch(wanted + r"\(edgeflow_stub\.py:\d+\)", failed.text)


def test_it_reports_ready_serves_and_exits(start, tmp_path):
    path = write_checkpoint(tmp_path / "tiny")
    (path / INDEX_FILE).write_text("of another model")
    process, channel = start(model=str(path), alias="tiny")
    ready = first_after_progress(channel)
    assert isinstance(ready, WorkerReady)
    assert (ready.model, ready.pass_times.stages) == ("tiny", 7)
    assert ready.pass_times.decode_ns > 0 and ready.pass_times.packed_ns > 0 and ready.kv_bytes > 0
    assert [INDEX_FILE in each for each in ready.warnings] == [True]
    assert ready.memory.startswith(f"KV: {ready.max_sessions} sessions x 7 slots x 144 positions = ")
    channel.send(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=""))
    assert isinstance(channel.receive(), SessionOpened)
    image = np.zeros((4, 4, 3), np.uint8)
    channel.send(SubmitFrame(session=1, epoch=1, seq=1, sizes=[4, 4], instruction="go", payload=image.tobytes()))
    result = channel.receive()
    assert isinstance(result, FrameResult) and result.valid
    channel.send(Shutdown())
    assert process.wait(timeout=60) == 0


def test_it_leaves_when_the_front_goes(start, tmp_path):
    process, channel = start(model=str(write_checkpoint(tmp_path / "tiny")))
    assert isinstance(first_after_progress(channel), WorkerReady)
    channel.close()
    assert process.wait(timeout=60) == 0


def test_a_missing_checkpoint_is_reported_by_name(start, tmp_path):
    process, channel = start(model=str(tmp_path / "nothing"))
    failed = first_after_progress(channel)
    assert isinstance(failed, WorkerFailed)
    assert failed.kind == "CheckpointError" and "nothing" in failed.text
    assert process.wait(timeout=60) == 2


@pytest.mark.parametrize(
    ("settings", "actions", "message"),
    [
        ({"max_prompt_tokens": 8}, 7, "max_prompt_tokens: 8 is too few, a short instruction takes"),
        ({"max_sessions": 64, "max_prompt_tokens": 4096}, 100_000, "max_sessions: 64 sessions need"),
        ({"unnorm_key": "elsewhere"}, 7, "unnorm_key: 'elsewhere' is not one of tiny"),
    ],
)
def test_a_limit_that_does_not_fit_the_model_is_reported(
    tmp_path, settings: dict[str, object], actions: int, message: str
):
    directory = write_checkpoint(tmp_path / "tiny", TinySize(actions=actions))
    with pytest.raises(ConfigError, match=message):
        build_engine(load_config(None, {"model": str(directory), "device": "cpu", **settings}))


def test_cuda_computes_as_it_is_verified(tmp_path):
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    build_engine(load_config(None, {"model": str(write_checkpoint(tmp_path / "tiny")), "device": "cpu"}))
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction


def test_a_policy_whose_chunks_no_client_takes_is_not_served(tmp_path, monkeypatch):
    def schema(self: OpenVLAPolicy, unnorm_key: str | None = None) -> ActionSchema:
        return replace(made(self, unnorm_key), horizon=MAX_HORIZON + 1, step_ms=20.0)

    made = OpenVLAPolicy.action_schema
    published = PublishedOpenVLA.load

    def load(*given):
        policy = published(*given)
        monkeypatch.setattr(OpenVLAPolicy, "action_schema", schema)
        return policy

    monkeypatch.setattr(PublishedOpenVLA, "load", load)
    directory = write_checkpoint(tmp_path / "tiny", TinySize())
    with pytest.raises(CheckpointError, match=r"^model: a horizon of 1001 is too long; with 7 dimensions it must be"):
        build_engine(load_config(None, {"model": str(directory), "device": "cpu"}))
