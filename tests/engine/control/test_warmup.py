"""Before it is ready a worker has recorded every pass that four sessions can ask for."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CaptureError
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.graphs import record_passes
from edgeflow.engine.placement import choose_graphs
from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow.worker.build import build_engine
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode
from tests.cases import some_by_day
from tests.engine.recorded_graphs import record
from tests.engine.test_graphs import CPU, ON_THE_DEVICE
from tests.tiny_checkpoint import TinySize, write_checkpoint

CAPACITY = 64  # prompts of 1 to 41 tokens after 16 image tokens: three numbers of rows


def quiet(step: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TinySize(kv_heads=2))


@pytest.mark.parametrize(
    ("sessions", "shift"),
    some_by_day(product((1, 2, 4), Shift), [(1, Shift.COPY), (2, Shift.ROTATE), (4, Shift.COPY)]),
)
def test_every_shape_of_random_sessions_is_recorded(checkpoint, shift: Shift, sessions: int):
    """Robots of different modes and instructions, whose frames come at any time; every depth with two sessions."""
    policy = load_openvla(checkpoint, torch.float32, CPU, table=ON_THE_DEVICE)
    options = {"table": ON_THE_DEVICE, "graphs": True, "record": record, "shift": shift}
    engine = PolicyEngine(policy, sessions * policy.K, CAPACITY, **options)
    steps: list[tuple[str, int, int]] = []
    told = record_passes(engine, lambda *step: steps.append(step), required=True)
    assert told == f"{len(engine.graphs)} graphs"
    assert [step[0] for step in steps] == ["graphs"] * steps[0][2]
    engine.graphs.seal()
    dice = random.Random(1)
    image = torch.zeros(policy.pixel_shape)
    longest = CAPACITY - policy.K - policy.fixed_rows
    for depth in range(1, policy.K + 1) if sessions == 2 else (1, 3, policy.K):
        limits = limits_for(policy.K, sessions=sessions, shift=shift)
        run = OfflineRun(engine, Scheduler(limits), [Mode.DEPTH, *[Mode.PIPELINED] * (sessions - 1)], depth)
        answered, seq = 0, 0
        while answered < 8 * sessions:
            for session in range(sessions):
                if seq < 8 * sessions and not run.waiting(session) and dice.random() < 0.6:
                    seq += 1
                    ids = policy.prompt_ids("go")[:1] * dice.randint(1, longest)
                    run.offer(session, seq, PreparedFrame(image, ids))
            ticket = run.step()
            answered += len(run.collect(ticket)) if ticket is not None else 0
    assert engine.graphs.eager_passes == 0


def test_passes_that_cannot_be_recorded_run_eagerly_unless_graphs_are_required(checkpoint):
    policy = load_openvla(checkpoint, torch.float32, CPU)
    engine = PolicyEngine(policy, policy.K, CAPACITY, graphs=True, record=record)
    with pytest.raises(ConfigError, match="graphs: packed_attention: this implementation reads slots on the host"):
        record_passes(engine, quiet, required=True)
    told = record_passes(engine, quiet, required=False)
    assert told.startswith("no graphs: packed_attention") and engine.graphs is None
    assert record_passes(engine, quiet, required=True) == ""


def test_after_a_capture_that_failed_nothing_runs_eagerly(checkpoint):
    def fails(program: object) -> None:
        raise CaptureError("graphs: not permitted")

    policy = load_openvla(checkpoint, torch.float32, CPU, table=ON_THE_DEVICE)
    engine = PolicyEngine(policy, policy.K, CAPACITY, graphs=True, record=fails)
    with pytest.raises(CaptureError):
        record_passes(engine, quiet, required=False)


def test_graphs_are_chosen_by_device_and_dtype(checkpoint):
    cuda = torch.device("cuda")
    assert choose_graphs("auto", cuda, torch.bfloat16) and choose_graphs("on", cuda, torch.float32)
    assert not choose_graphs("auto", cuda, torch.float32) and not choose_graphs("off", cuda, torch.bfloat16)
    assert not choose_graphs("auto", CPU, torch.bfloat16)
    with pytest.raises(ConfigError, match="graphs: on needs a CUDA device"):
        build_engine(ServiceConfig(model=str(checkpoint), graphs="on", device="cpu"))
