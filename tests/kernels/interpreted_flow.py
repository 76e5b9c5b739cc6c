"""Run by test_triton.py with TRITON_INTERPRET=1: flow policies with every operator in Triton, against torch's.

Prints a JSON line: how far chunks are from those of torch, relative to the largest.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.types import Mode
from tests.engine.flow.tiny_flow import ADAPTIVE_SHAPE, CROSS_SHAPE, Shape, TinyFlowPolicy, random_frames
from tests.kernels.interpreted_engine import in_triton

WIDE: dict[str, Any] = {"width": 32, "expert": 32, "head_dim": 16}
RUNS = [
    (replace(CROSS_SHAPE, kinds=CROSS_SHAPE.kinds[:2], **WIDE), Mode.PIPELINED, 3),
    (replace(ADAPTIVE_SHAPE, sizes=FlowSizes(steps=2, horizon=6, dims=2), **WIDE), Mode.SERIAL, 1),
]
"""Several frames step at once in the first, in the second one by itself."""


def chunks(shape: Shape, table: OperatorTable, mode: Mode, frames: int) -> np.ndarray:
    policy = TinyFlowPolicy(shape, table=table)
    passes = policy.sizes.program.passes
    engine = FlowEngine(policy, 1, 6)
    engine.contract.stages.kv.data.fill_(torch.nan)
    run = OfflineRun(engine, Scheduler(limits_for(passes)), [mode])
    return np.stack([each.sampled.values for each in run.decode([random_frames(shape, frames)])[0]])


def main() -> None:
    torch.set_num_threads(1)
    off = []
    for shape, mode, frames in RUNS:
        expected = chunks(shape, built_in_table(), Mode.SERIAL, frames)
        found = chunks(shape, in_triton(), mode, frames)
        off.append(float(np.abs(found - expected).max() / np.abs(expected).max()))
    print(json.dumps({"off": max(off)}))


if __name__ == "__main__":
    main()
