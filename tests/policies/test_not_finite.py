"""A network that gives NaN or infinity: the robot holds, and stops after three. No clamp and no limit on the motion
makes a position of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.config.sections import DimensionLimits, TrajectoryConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.policies.registry import family_of
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import ActionEvent
from edgeflow.service.sessions.session import Session
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command
from tests.policies.act.checkpoint import write_checkpoint as write_act
from tests.policies.flow.tiny import write_checkpoint as write_flow
from tests.policies.flow.weights import Tiny
from tests.policies.openvla_oft.tiny import HEAD, TinyOFT, save_pt, write_oft
from tests.service.sessions.test_session_properties import MS, REQUEST, RULES
from tests.tiny_checkpoint import write_checkpoint as write_openvla

OFT = TinyOFT()
LIMITED = {"action_low": [-0.1] * 3, "action_high": [0.1] * 3}
MOVING = {"action_names": ["x", "y", "z"], "action_relative": [True] * 3, "frame": "base"}
STATE = "observation.state[0]"


@dataclass(frozen=True)
class SpoiltCheckpoint:
    """A checkpoint and its tensor that is spoilt. limits: of the motion in the first dimension."""

    write: Callable[[Path], Path]
    tensor: str
    settings: dict[str, Any] = field(default_factory=dict)
    file: str = "model.safetensors"
    limits: dict[str, DimensionLimits] = field(default_factory=dict)


def flow(kind: str, **settings: Any) -> SpoiltCheckpoint:
    limits = settings.pop("limits", {})
    tensor = "model.action_out_proj.bias"
    return SpoiltCheckpoint(
        lambda path: write_flow(path, Tiny(kind=kind)), tensor, {"control_rate_hz": 20.0, **settings}, limits=limits
    )


def limited(name: str, **limits: Any) -> dict[str, DimensionLimits]:
    return {name: DimensionLimits(**limits)}


CASES = {
    "openvla": SpoiltCheckpoint(write_openvla, "language_model.lm_head.weight"),
    "oft": SpoiltCheckpoint(
        lambda path: write_oft(path, OFT), "model.fc2.bias", OFT.settings(family="openvla_oft"), HEAD
    ),
    "oft-tokens": SpoiltCheckpoint(
        lambda path: write_oft(path, OFT),
        "language_model.lm_head.weight",
        OFT.settings(family="openvla_oft", action_head=False),
    ),
    "act": SpoiltCheckpoint(write_act, "model.action_head.bias", {"control_rate_hz": 20.0}),
    **{kind: flow(kind) for kind in ("smolvla", "pi0", "pi05")},
    "clamped": flow("smolvla", **LIMITED),
    "velocity": flow("smolvla", limits=limited("a0", velocity=1.0, acceleration=9.0, jerk=99.0, free_start=True)),
    "from-state": flow("smolvla", limits=limited("a0", velocity=1.0, state=STATE)),
    "workspace": flow("smolvla", limits=limited("a0", low=-0.5, high=0.5)),
    "clamped-workspace": flow(
        "smolvla", **LIMITED, limits=limited("a0", low=-0.5, high=0.5, velocity=1.0, state=STATE)
    ),
    "displacements": flow("smolvla", **MOVING, limits=limited("x", velocity=1.0)),
    "moving-workspace": flow("smolvla", **MOVING, limits=limited("x", low=-0.5, high=0.5, state=STATE)),
}


def spoil(path: Path, tensor: str, number: float) -> None:
    """One number of a bias, or the first row of a matrix."""
    tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
    name = next(each for each in tensors if each.endswith(tensor))
    tensors[name][0] = number
    save_file(tensors, path) if path.suffix == ".safetensors" else save_pt(path, tensors, "")


def worker_of(directory: Path, case: SpoiltCheckpoint, say: Callable[[Message], None]) -> tuple[Worker, Any]:
    settings = dict(case.settings)
    family = family_of(directory, settings.pop("family", ""))
    placement = Placement(dtype=torch.float32, device=torch.device("cpu"), table=built_in_table())
    policy: Any = family.load(directory, settings, LoadOptions()).load(placement)
    engine = family.prepare(policy, EngineOptions(sessions=1, text_rows=64, table=built_in_table()))
    passes = policy.program().passes
    limits = SchedulerLimits(passes, 1, row_budget=1000, drain_after_ns=0, shift=Shift.ROTATE)
    worker = Worker(
        engine, Scheduler(limits), ManualClock(), say, trajectory=TrajectoryConfig(limits=dict(case.limits))
    )
    worker.inbox.put(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=policy.unnorm_keys[0]))
    return worker, policy


def frame(policy: Any, seq: int) -> SubmitFrame:
    (seen,) = sample_observations(policy.inputs, 1, "go", side=32)
    images = list(seen.images.values())
    return SubmitFrame(
        session=1,
        epoch=1,
        seq=seq,
        sizes=[side for image in images for side in (image.height, image.width)],
        state=[number for vector in seen.state.values() for number in vector],
        instruction="go",
        payload=b"".join(bytes(image.data) for image in images),
        stamp_ns=seq,
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CASES)
def test_actions_that_are_not_finite_become_hold_and_after_three_stop(tmp_path: Path, name: str, number: float):
    case, said = CASES[name], list[Message]()
    directory = case.write(tmp_path / name)
    spoil(directory / case.file, case.tensor, number)
    worker, policy = worker_of(directory, case, said.append)
    session = Session(1, REQUEST, policy.action_schema(policy.unnorm_keys[0]), RULES, 0)
    commands = []
    for seq in (1, 2, 3):
        worker.inbox.put(frame(policy, seq))
        while worker.step():
            pass
        (result,) = [message for message in said if isinstance(message, FrameResult) and message.seq == seq]
        session.admit(seq, seq * 100 * MS, seq * 100 * MS)
        session.offer(CheckedFrame(seq=seq, stamp_ns=seq * 100 * MS, images=(b"",)), seq * 100 * MS)
        assert session.start_decoding(seq * 100 * MS, alone=True) is not None
        session.decoded(b"", 1)
        assert session.start_sending(seq * 100 * MS) is not None
        session.result(result)
        commands += [each for each in session.take(seq * 100 * MS) if isinstance(each, ActionEvent)]
    assert [(each.command, each.reason) for each in commands] == [
        *[(Command.HOLD, Reason.POLICY_OUTPUT_INVALID)] * 2,
        (Command.STOP, Reason.FAULT),
    ]
    assert all(each.chunk is None for each in commands)


def test_un_normalising_keeps_values_that_are_not_finite(tmp_path: Path):
    """Where the limits of an action would make a position of it."""
    for name in ("oft", "clamped"):
        case = CASES[name]
        _, policy = worker_of(case.write(tmp_path / name), case, lambda _: None)
        rows = np.zeros((policy.action_schema(policy.unnorm_keys[0]).horizon, OFT.dims if name == "oft" else 4))
        for number in (math.nan, math.inf, -math.inf):
            rows[0, 0] = number
            assert np.isnan(policy.actions(rows, policy.unnorm_keys[0])[0, 0])
