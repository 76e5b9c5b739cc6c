"""Section: every implementation that can serve here, timed on the policy's passes and on long contexts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from edgeflow.kernels.kv.formats import INT8
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.table.implementations import REFERENCE, Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.timing import last_level_cache, median_us, rotating
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.sections.kernel_checks import policy_shape
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Heads, TrialCase
from edgeflow.lab.trials.model_cases import model_cases

SAMPLES = 9
CONTEXTS = (2048, 8192, 32768)
SMALL_CONTEXTS = (64,)
LONG_HEADS = Heads(28, 4, 128)  # rows and heads of Qwen2.5 7B
SMALL_HEADS = Heads(4, 2, 16)
MEASURED = ("packed_attention", "rms_norm", "add_rms_norm", "rope_write_kv", "swiglu", "greedy")


@torch.inference_mode()
def operators(setting: SectionSetting) -> Found:
    """Microseconds per call; for long contexts also the share of the copy bandwidth at which the KV is read."""
    table = built_in_table()
    rows: list[Found] = []
    found: Found = {"operators": rows}
    for case, kv_bytes in [*_long(setting), *((case, 0) for case in _model(setting))]:
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(" ".join((case.op_name, *case.signed())))
            continue
        rows += _times(setting, table, case, kv_bytes)
        setting.publish(found)
    return found


def _model(setting: SectionSetting) -> Iterator[TrialCase]:
    return (case for case in model_cases(policy_shape(setting.size)) if case.op_name in MEASURED)


def _long(setting: SectionSetting) -> Iterator[tuple[TrialCase, int]]:
    """One decode row over a long slot, KV in the model's dtype and in int8, with the bytes that must be read."""
    heads = SMALL_HEADS if setting.small else LONG_HEADS
    for context in SMALL_CONTEXTS if setting.small else CONTEXTS:
        spans = [Span(0, context - 1, 1)]
        rows = 2 * context * heads.kv
        yield cases.packed_attention(spans, heads), rows * heads.width * setting.dtype.itemsize
        yield cases.packed_attention_scaled(spans, heads, INT8), rows * (heads.width + torch.float32.itemsize)


def _times(setting: SectionSetting, table: OperatorTable, case: TrialCase, kv_bytes: int) -> list[Found]:
    """A candidate that fails is reported, and the others are timed. Weights, keys and values are not cached."""
    stage, shape_sig = case.signed()
    context = OperatorKey(op_name=case.op_name, stage=stage, weight=case.weight, shape_sig=shape_sig)
    ring = case.ring(setting.device, setting.dtype, last_level_cache(setting.device))
    rows = []
    for impl_id in table.candidates(case.op_name, case.kv, case.weight):
        candidate = table.implementation(case.op_name, impl_id, case.kv)
        if impl_id == REFERENCE or table.objection(candidate, context, Hardware.of(setting.device), setting.dtype):
            continue
        row: Found = {
            "operator": case.op_name,
            "KV": case.kv,
            "stage": stage,
            "shape": shape_sig,
            "implementation": impl_id,
        }
        try:
            call = rotating([problem.given_to(candidate.load()) for problem in ring])
            row["µs"] = median_us({"call": call}, setting.device, SAMPLES)["call"]
        except Exception as error:  # any error of a compiler or a device
            row["error"] = f"{type(error).__name__}: {error}"[:200]
        if kv_bytes and setting.measured and "µs" in row:
            row["share of copy bandwidth"] = kv_bytes / (row["µs"] * 1e-6) / setting.measured.bandwidth
        rows.append(row)
    return rows
