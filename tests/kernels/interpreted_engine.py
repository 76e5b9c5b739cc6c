"""Run by test_triton.py with TRITON_INTERPRET=1: the engine with every operator in Triton, against torch's operators.

Prints a JSON line per shift, and one for projections of 4 bits: the tokens of serial decoding with torch, and those of
the pipeline with Triton.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, decode_serially, limits_for
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_frames, random_policy
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode

CPU = torch.device("cpu")
SIZE = replace(SIZES["tiny"], stages=4, text_tokens=5)
FRAMES = 4
GROUP = 32


def in_triton() -> OperatorTable:
    """A table in which kernels may run here, and serve wherever there is one."""
    anywhere = [replace(each, devices=frozenset(), dtypes=frozenset()) for each in BUILT_IN]
    names = {each.op_name: "triton" for each in anywhere if each.impl_id == "triton"}
    table = OperatorTable(anywhere, []).forcing(**names)
    for name in names:
        key = OperatorKey(op_name=name, weight=AWQ if name == "linear" else "")
        assert table.choose(key, Hardware("cpu"), torch.float32).implementation.impl_id == "triton"
    return table


def tokens(table: OperatorTable, mode: Mode, shift: Shift, group: int = 0) -> list[tuple[int, ...]]:
    policy = random_policy(SIZE, CPU, torch.float32, table=table, group=group)
    engine = PolicyEngine(policy, policy.K, SIZE.rows + policy.K, table=table)
    engine.kv.data.fill_(torch.nan)
    frames = random_frames(SIZE, policy, FRAMES)
    if mode is Mode.SERIAL:
        found = decode_serially(engine, frames)
    else:
        run = OfflineRun(engine, Scheduler(limits_for(policy.K, shift=shift)), [mode])
        found = run.decode([frames])[0]
    assert all(decoded.sampled.finite for decoded in found)
    return [decoded.sampled.token_ids for decoded in found]


def main() -> None:
    torch.set_num_threads(1)
    expected = tokens(built_in_table(), Mode.SERIAL, Shift.ROTATE)
    for shift in Shift:
        tell(shift.value, expected, tokens(in_triton(), Mode.PIPELINED, shift))
    expected = tokens(built_in_table(), Mode.SERIAL, Shift.ROTATE, GROUP)
    tell("rotate, 4 bits", expected, tokens(in_triton(), Mode.PIPELINED, Shift.ROTATE, GROUP))


def tell(way: str, expected: list[tuple[int, ...]], found: list[tuple[int, ...]]) -> None:
    print(json.dumps({"way": way, "expected": expected, "found": found}), flush=True)


if __name__ == "__main__":
    main()
