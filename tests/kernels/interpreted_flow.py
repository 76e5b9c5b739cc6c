"""Run by test_triton.py with TRITON_INTERPRET=1: a flow policy with every operator in Triton, against torch's.

Prints a JSON line: how far the chunks of the pipeline are from serial ones, relative to the largest.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.types import Mode
from tests.engine.flow.tiny_flow import CROSS_SHAPE, TinyFlowPolicy, random_frames
from tests.kernels.interpreted_engine import in_triton

SHAPE = replace(CROSS_SHAPE, width=32, expert=32, head_dim=16, kinds=CROSS_SHAPE.kinds[:2])
FRAMES = 3


def chunks(table: OperatorTable, mode: Mode) -> np.ndarray:
    policy = TinyFlowPolicy(SHAPE, table=table)
    passes = policy.sizes.program.passes
    engine = FlowEngine(policy, passes, policy.fixed_rows + 6 + policy.sizes.step_rows)
    engine.contract.stages.kv.data.fill_(torch.nan)
    run = OfflineRun(engine, Scheduler(limits_for(passes)), [mode])
    return np.stack([each.sampled.values for each in run.decode([random_frames(SHAPE, FRAMES)])[0]])


def main() -> None:
    torch.set_num_threads(1)
    expected = chunks(built_in_table(), Mode.SERIAL)
    found = chunks(in_triton(), Mode.PIPELINED)
    print(json.dumps({"off": float(np.abs(found - expected).max() / np.abs(expected).max())}))


if __name__ == "__main__":
    main()
