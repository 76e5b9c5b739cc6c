"""Section: tokens of pipelined decoding and of drafts equal the serial ones on this device, with graphs and without."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, decode_serially, limits_for
from edgeflow.engine.control.records import Answer
from edgeflow.engine.control.warmup import Deviations, deviations, nudged
from edgeflow.engine.graphs import CudaRecord
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.lab.gpu.section_order import Found
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting, named
from edgeflow.lab.gpu.subjects.engines import engine_of, policy_of
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_frames
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode

SHARED = (Mode.PIPELINED, Mode.SPECULATIVE)


def tokens(setting: SectionSetting) -> Found:
    """Compare with serial decoding without graphs: tokens in float32 at a tiny shape, and logits in the model's own
    dtype at its shape, where they may differ by as much as rounding does (engine/control/warmup.py).
    """
    tiny = replace(setting, size=SIZES["tiny"], dtype=torch.float32)
    rows = compared(tiny, 3)
    setting.publish({"tokens that differ": rows})
    rows += compared(setting, 2)
    found: Found = {"tokens that differ": rows}
    if any(row["fault"] for row in rows):
        raise OffError("tokens differ from serial ones", found)
    return found


def compared(setting: SectionSetting, fills: int) -> list[Found]:
    """Each way of decoding `fills` full pipelines: share of differing tokens, deviation of logits, and the error, if
    any.
    """
    size = setting.size
    policy = policy_of(setting, size, table=_table(setting))
    frames = random_frames(size, policy, fills * size.stages)
    serial = _keeping_logits(engine_of(policy, size, setting, graphs=False))
    right = decode_serially(serial, frames)
    rounding = deviations(right, decode_serially(serial, nudged(frames, setting.dtype)))
    rows = []
    for graphs in (False, True) if setting.graphs else (False,):
        checked = (
            graphs and setting.cuda and setting.small
        )  # enough passes to check that inputs are still there when they are replayed
        record = CudaRecord(setting.device, check_inputs=True) if checked else None
        engine = _keeping_logits(engine_of(policy, size, setting, graphs=graphs, record=record))
        ways: dict[str, list[DecodedFrame]] = {}
        for mode, shift in product(SHARED, Shift):
            run = OfflineRun(engine, Scheduler(limits_for(engine.policy.K, shift=shift)), [mode])
            ways[f"{mode.value}, {shift.value}"] = run.decode([frames])[0]
        if graphs:
            ways["serial"] = decode_serially(engine, frames)
        for way, found in ways.items():
            row = {"policy": f"{size.name} {named(setting.dtype)}", "way": way, "graphs": graphs}
            same = [right[each.sampled.frame.seq - 1] for each in found]  # speculative frames may overtake others
            rows.append(row | _compare(same, found, rounding, setting.dtype))
    return rows


def _compare(right: list[DecodedFrame], found: list[DecodedFrame], rounding: Deviations, dtype: torch.dtype) -> Found:
    """The comparison of two runs.

    logits off: mean deviation in spreads of a row; by rounding: that of frames changed by one rounding.
    """
    share = differing([each.sampled for each in right], [each.sampled for each in found])
    off = deviations(right, found)
    if dtype == torch.float32:
        fault = f"{share:.1%} of the tokens differ" if share else ""
    else:
        fault = off.objection(rounding, dtype)
    return {"share": share, "logits off": off.mean, "by rounding": rounding.mean, "fault": fault}


def _keeping_logits(engine: PolicyEngine) -> PolicyEngine:
    engine.keep_logits = True
    return engine


def _table(setting: SectionSetting) -> OperatorTable:
    """The operators; in float32 with the attention that a graph can contain in any dtype."""
    if setting.dtype == torch.float32:
        return built_in_table().forcing(packed_attention="masked")
    return setting.table(setting.size.name)


def differing(right: list[Answer], other: list[Answer]) -> float:
    """Share of differing tokens; 1 if a number is not finite."""
    if not all(sampled.finite for sampled in (*right, *other)):
        return 1.0
    pairs = [
        pair for one, two in zip(right, other, strict=True) for pair in zip(one.token_ids, two.token_ids, strict=True)
    ]
    return sum(a != b for a, b in pairs) / len(pairs)
