"""Section: the operator tuner for the policy and the chat models, within a time limit; later sections use
its results.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import monotonic

from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.lab.gpu.section_order import Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.sections.chat_speed import models
from edgeflow.lab.gpu.sections.kernel_checks import model_shape, policy_shape
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES
from edgeflow.lab.trials.model_cases import model_cases
from edgeflow.lab.tuning.operators import tune

POLICY_SHARE = 0.5  # share of the time; the chat models share the rest
SAMPLES = 9
PROMPT = 1024
SMALL_PROMPT = 16


def tune_models(setting: SectionSetting) -> Found:
    """One overlay per model in the results' folder; if a model's time is over, what was tuned is kept."""
    rows: list[Found] = []
    shapes = _shapes(setting)
    for index, (name, shape) in enumerate(shapes.items()):
        share = POLICY_SHARE if index == 0 else 1 / (len(shapes) - index)  # share of the remaining time
        ends = monotonic() + share * setting.left_s
        path = setting.overlay(name)
        path.unlink(missing_ok=True)
        with suppress(_TimeOver):
            report = partial(_stop_after, ends)
            tune(shape, setting.device, setting.dtype, out=path, samples=SAMPLES, report=report)
        rows += _tuned(setting, name)
        setting.publish({"tuned": rows})
    totals = {name: len(model_cases(shape)) for name, shape in shapes.items()}
    done = [{"model": name, "problems": total, "tuned": _count(rows, name)} for name, total in totals.items()]
    return {"models": done, "tuned": rows}


def _count(rows: list[Found], name: str) -> int:
    return sum(row["model"] == name for row in rows)


class _TimeOver(Exception):
    """The time for one model is over."""


def _stop_after(ends: float, problem: str, done: int, total: int) -> None:  # noqa: ARG001 - told before each problem
    if monotonic() > ends:
        raise _TimeOver


def _shapes(setting: SectionSetting) -> dict[str, ModelShape]:
    """The policy, then the chat models."""
    shapes = {setting.size.name: policy_shape(setting.size)}
    prompt = SMALL_PROMPT if setting.small else PROMPT
    for name in models(setting):
        shapes[name] = model_shape(CHAT_SIZES[name], prompt, stages=1, family="qwen2")
    return shapes


def _tuned(setting: SectionSetting, name: str) -> list[Found]:
    from edgeflow.kernels.table.overlay import read_overlay

    path = setting.overlay(name)
    entries = read_overlay(path).entries if path.exists() else []
    return [
        {
            "model": name,
            "operator": entry.op_name,
            "role": entry.layer_role,
            "stage": entry.stage,
            "shape": entry.shape_sig,
            "implementation": " ".join(
                [entry.impl_id, *(f"{key}={value}" for key, value in entry.impl_params.items())]
            ),
            "µs": entry.us,
            "built-in µs": entry.default_us,
        }
        for entry in entries
    ]
