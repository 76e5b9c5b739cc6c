"""Section: are the pipeline's tokens the serial ones, on this device, with graphs and without?"""

from __future__ import annotations

from dataclasses import replace

import torch

from edgeflow.bench.engines import engine_of, policy_of
from edgeflow.bench.order import Found
from edgeflow.bench.random_policy import SIZES, random_frames
from edgeflow.bench.setting import OffError, Setting, named
from edgeflow.engine.engine import PolicyEngine, Sampled
from edgeflow.engine.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.table import OperatorTable, built_in_table
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

LARGEST_LOSS = 0.02  # share of tokens that may differ between passes of different shapes, in bfloat16


def tokens(setting: Setting) -> Found:
    """Equal in float32 at a tiny shape, nearly so at the model's own in its dtype. Serial without graphs is right."""
    tiny = replace(setting, size=SIZES["tiny"], dtype=torch.float32)
    rows = compared(tiny, 3)
    setting.tell({"tokens that differ": rows})
    rows += compared(setting, 2)
    found: Found = {"tokens that differ": rows}
    if any(row["share"] > row["allowed"] for row in rows):
        raise OffError("tokens differ from serial ones", found)
    return found


def compared(setting: Setting, fills: int) -> list[Found]:
    """Shares of the tokens of `fills` full pipes."""
    size = setting.size
    policy = policy_of(setting, size, table=_table(setting))
    frames = random_frames(size, policy, fills * size.stages)
    right = [each.sampled for each in decode_serially(engine_of(policy, size, setting, graphs=False), frames)]
    allowed = 0.0 if setting.dtype == torch.float32 else LARGEST_LOSS
    rows = []
    for graphs in (False, True) if setting.graphs else (False,):
        engine = engine_of(policy, size, setting, graphs=graphs)
        ways = {f"pipelined, {shift.value}": _pipelined(engine, frames, shift) for shift in Shift}
        if graphs:
            ways["serial"] = [each.sampled for each in decode_serially(engine, frames)]
        for way, sampled in ways.items():
            row = {"policy": f"{size.name} {named(setting.dtype)}", "way": way, "graphs": graphs}
            rows.append({**row, "share": differing(right, sampled), "allowed": allowed})
    return rows


def _table(setting: Setting) -> OperatorTable:
    """In float32 with the attention that graphs hold in any dtype."""
    if setting.dtype == torch.float32:
        return built_in_table().forcing(packed_attention="masked")
    return setting.table(setting.size.name)


def differing(right: list[Sampled], other: list[Sampled]) -> float:
    """Share of tokens; all of them where a number is not finite."""
    if not all(sampled.finite for sampled in (*right, *other)):
        return 1.0
    pairs = [
        pair for one, two in zip(right, other, strict=True) for pair in zip(one.token_ids, two.token_ids, strict=True)
    ]
    return sum(a != b for a, b in pairs) / len(pairs)


def _pipelined(engine: PolicyEngine, frames: list[PreparedFrame], shift: Shift) -> list[Sampled]:
    run = OfflineRun(engine, Scheduler(limits_for(engine.policy.K, shift=shift)), [Mode.PIPELINED])
    return [each.sampled for each in run.decode([frames])[0]]
