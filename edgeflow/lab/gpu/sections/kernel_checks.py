"""Section: every implementation against its reference on this device, on small problems and on the model's problems."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from time import monotonic

import torch

from edgeflow.engine.placement import set_precision
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.table.implementations import REFERENCE, Hardware
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting, named
from edgeflow.lab.gpu.subjects.random_policy import SIZES, PolicySize
from edgeflow.lab.trials.cases import TrialCase
from edgeflow.lab.trials.catalogue import small_cases
from edgeflow.lab.trials.compare import ReferenceOutputs, tolerance
from edgeflow.lab.trials.model_cases import model_cases
from edgeflow.models.llama import LlamaConfig

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PROCESSES = 8  # Triton compiles for seconds per kernel and dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckShare:
    """Every `of`-th check from `index` on, until `ends` (monotonic seconds)."""

    device: str
    size: str
    dtype: torch.dtype
    index: int
    of: int
    ends: float


def kernels(setting: SectionSetting) -> Found:
    """Check everything in parts. OffError names what deviates; a part that a device error ended is reported too."""
    count = min(PROCESSES, max(1, (os.cpu_count() or 1) // 2)) if setting.cuda else 1
    parts = [
        CheckShare(
            device=setting.device.type,
            size=setting.size.name,
            dtype=setting.dtype,
            index=index,
            of=count,
            ends=setting.ends,
        )
        for index in range(count)
    ]
    rows: list[Found] = []
    broken: list[Found] = []
    late: list[str] = []
    if count == 1:
        rows, late = checks(parts[0])
        return _found(rows, broken, late)
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for each in as_completed([pool.submit(checks, part) for part in parts]):
            try:
                done, missed = each.result()
                rows, late = rows + done, late + missed
            except Exception as error:
                broken.append({"part": "of the checks", "error": f"{type(error).__name__}: {error}"[:300]})
            setting.publish({"checks": len(rows), "off": [row for row in rows if not row["ok"]]})
    return _found(rows, broken, late)


def policy_shape(size: PolicySize) -> ModelShape:
    """A policy as the operator table sees it."""
    return model_shape(size.text, size.rows, size.stages)


def model_shape(text: LlamaConfig, rows: int, stages: int, family: str = "llama") -> ModelShape:
    """A decoder as the operator table sees it. family: its model_name."""
    return ModelShape(
        family=family,
        hidden=text.hidden_size,
        inner=text.intermediate_size,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=text.head_dim,
        vocabulary=text.vocab_size,
        rows=rows,
        stages=stages,
    )


@torch.inference_mode()
def checks(part: CheckShare) -> tuple[list[Found], list[str]]:
    """Rows for the model's own problems in its dtype, then for the small ones in all dtypes; and the operators for
    which there was no time.
    """
    set_precision()  # it may be a process of its own
    table, device = built_in_table(), torch.device(part.device)
    problems = [(case, part.dtype) for case in model_cases(policy_shape(SIZES[part.size]))]
    small = [case for name in table.operators for weight in (FLOAT, AWQ) for case in small_cases(name, weight=weight)]
    problems += [(case, dtype) for dtype in FLOATS for case in small]
    rows: list[Found] = []
    for done, (case, dtype) in enumerate(mine := problems[part.index :: part.of]):
        if monotonic() > part.ends:
            return rows, [f"{case.op_name} {named(dtype)}" for case, dtype in mine[done:]]
        rows += _checks(table, case, device, dtype)
    return rows, []


def _checks(table: OperatorTable, case: TrialCase, device: torch.device, dtype: torch.dtype) -> list[Found]:
    """Each implementation against the reference; one that fails to compile or run is reported as such."""
    stage, shape_sig = case.signed()
    served = torch.float32 if case.wide else dtype
    expected = ReferenceOutputs.of(case, table.implementation(case.op_name, REFERENCE, case.kv).load(), device, dtype)
    rows: list[Found] = []
    for impl_id in table.candidates(case.op_name, case.kv, case.weight):
        candidate = table.implementation(case.op_name, impl_id, case.kv)
        if impl_id == REFERENCE or candidate.objection(Hardware.of(device), served, shape_sig):
            continue
        if candidate.causal and not case.causal:
            continue
        allowed = tolerance(case, dtype, candidate.weight, candidate.deviation)
        row: Found = {"operator": case.op_name, "implementation": impl_id, "dtype": named(dtype), "KV": case.kv}
        row |= {"stage": stage, "shape": shape_sig, "allowed": allowed}
        try:
            off = expected.deviation(candidate.load())
            rows.append(row | {"deviation": off, "ok": off <= allowed})
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"[:300]
            rows.append(row | {"deviation": None, "ok": False, "error": error_text})
    return rows


def _found(rows: list[Found], broken: list[Found], late: list[str]) -> Found:
    off = [row for row in rows if not row["ok"]] + broken
    found: Found = {"checks": len(rows), "off": off, "largest deviations": _worst(rows)}
    if late:
        found[LEFT_OUT] = [f"{name} ({count})" for name, count in Counter(late).items()]
    if off:
        raise OffError(f"{len(off)} of {len(rows)} kernel checks are off", found)
    return found


def _worst(rows: list[Found]) -> list[Found]:
    """The largest deviation of each implementation, dtype and KV format."""
    worst: dict[tuple[str, ...], Found] = {}
    for row in rows:
        key = row["operator"], row["implementation"], row["dtype"], row["KV"]
        mine = {name: row[name] for name in ("operator", "implementation", "dtype", "KV", "allowed")}
        mine |= {"deviation": row["deviation"] or 0.0, "checks": 0}
        best = worst.setdefault(key, mine)
        best["checks"] += 1
        best["deviation"] = max(best["deviation"], mine["deviation"])
    return list(worst.values())
