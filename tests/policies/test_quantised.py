"""Policies whose language model is in 4 bits answer as the same numbers in floats do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgeflow.config.service import load_config
from edgeflow.contract import Observation
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.policies.registry import family_of
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine
from edgeflow_client.types import Mode
from tests import tiny_checkpoint
from tests.policies.flow import tiny
from tests.policies.flow.tiny import TOP
from tests.policies.flow.tiny_policies import RATE, observation
from tests.policies.flow.weights import Tiny
from tests.quantised import quantised_copies, share_of

EXACT = built_in_table().forcing(linear=REFERENCE)
FLOW = {
    "smolvla": ("model.vlm_with_expert.vlm.model.text_model.", ["lm_expert", "vision_model", "connector"]),
    "pi0": ("model.paligemma_with_expert.paligemma.model.language_model.", ["gemma_expert", "vision_tower"]),
    "pi05": ("model.paligemma_with_expert.paligemma.model.language_model.", ["gemma_expert", "vision_tower"]),
}


def answers(directory: Path, seen: Observation, mode: Mode, table: OperatorTable = EXACT) -> list[torch.Tensor]:
    """What the engine that serves gives for three frames: tokens or a normalised chunk."""
    family = family_of(directory)
    settings = RATE if family.name != "openvla" else {}
    placement = Placement(dtype=torch.float32, device=torch.device("cpu"), table=table)
    policy: Any = family.load(directory, settings, LoadOptions()).load(placement)
    engine: Any = family.prepare(policy, EngineOptions(sessions=1, text_rows=64, table=table))
    engine.keep_logits = True
    run = OfflineRun(engine, Scheduler(limits_for(policy.program().passes)), [mode])
    decoded = run.decode([[policy.prepare(seen)] * 3])[0]
    return [torch.stack(each.logits) if each.logits else torch.from_numpy(each.sampled.values) for each in decoded]


@pytest.fixture(scope="module", params=["openvla", *FLOW])
def copies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "openvla":
        source = tiny_checkpoint.write_checkpoint(folder / "source", tiny_checkpoint.TinySize(hidden=64, mlp=96))
        return quantised_copies(source, folder, "language_model.", ["vision_backbone", "projector"])
    sizes = Tiny(kind=request.param, width=32, expert=24, inner=64)
    return quantised_copies(tiny.write_checkpoint(folder / "source", sizes), folder, *FLOW[request.param])


@pytest.mark.parametrize("mode", [Mode.SERIAL, Mode.PIPELINED])
def test_answers_are_those_of_the_same_numbers_in_floats(copies: tuple[Path, Path], mode: Mode):
    seen = observation(3, TOP)
    four, floats = (answers(each, seen, mode) for each in copies)
    # A scale that is off by 2 % gives more than 1e-3; sums in another order about 1e-6.
    assert max(share_of(*pair) for pair in zip(four, floats, strict=True)) < 2e-5


def test_the_warm_up_of_rounded_rows_allows_rounding(copies: tuple[Path, Path]):
    settings = RATE if family_of(copies[0]).name != "openvla" else {}
    given = {"device": "cpu", "dtype": "float32", "max_sessions": 1, "max_prompt_tokens": 64, "policy": settings}
    four, floats = (build_engine(load_config(None, {"model": str(each), **given})) for each in copies)
    assert (four.rounds, floats.rounds) == (True, False)
    warm_up(four.engine, four.limits.shift, lambda *_: None, rounds=four.rounds)
