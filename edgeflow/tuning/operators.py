"""The work of `edgeflow ops` and `edgeflow tune`: the operator table for a model on a device, and its tuner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgeflow.engine.device import DTYPES
from edgeflow.engine.table import operator_table
from edgeflow.errors import ConfigError
from edgeflow.kernels.table.dimensions import kv_formats, only_role
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table, known
from edgeflow.kernels.table.overlay import (
    Overlay,
    OverlayEntry,
    Shape,
    Stamp,
    current_stamp,
    load_entries,
    read_overlay,
    refuse_stale,
    write_overlay,
)
from edgeflow.kernels.trials.cases import Case
from edgeflow.kernels.trials.model_cases import model_cases, preset, staged_cases
from edgeflow.kernels.trials.tune import Tuned, Tuner, Verdict
from edgeflow.kernels.weights import FLOAT
from edgeflow.model_paths import EMBEDDED_FLOW, EMBEDDED_MODEL, resolve_model
from edgeflow.models.shape import checkpoint_shape, with_head
from edgeflow.models.vocabulary import HEADS
from edgeflow.policies.registry import detected

Report = Callable[[str, int, int], None]
ROWS = 280  # rows of a prefill, by default
TOWERS_OWN = ("varlen_attention", "add_layer_norm")
DIMENSIONS = ("op_kind", "op_name", "model_name", "hw_profile", "layer_role", "stage", "weight", "kv", "shape_sig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One line of `edgeflow ops`."""

    op_name: str
    layer_role: str
    stage: str
    weight: str
    kv: str
    shape_sig: str
    impl_id: str
    impl_params: dict[str, int]
    why: str
    passed_over: tuple[str, ...]


def model_shape(model: str, rows: int, head: str = FLOAT) -> ModelShape:
    """The shape of a model: a checkpoint's directory, an embedded policy, or one of the presets.

    head: the format in which a chat model's head is held.
    """
    if head not in HEADS:
        raise ConfigError(f"head: must be {' or '.join(HEADS)}, got {head!r}")
    if model not in (EMBEDDED_MODEL, EMBEDDED_FLOW) and not Path(model).is_dir():
        return with_head(preset(model), head)
    directory = resolve_model(model)
    policy = detected(directory)
    if policy is None:
        return checkpoint_shape(directory, rows, head)
    if head != FLOAT:
        raise ConfigError(f"head: {head}: is for chat models, and {model} is a policy of the family {policy.name}")
    return policy.shape(directory, rows)


def dtype_named(name: str, hardware: Hardware) -> torch.dtype:
    """ "" is what the service takes there."""
    if not name:
        return torch.bfloat16 if hardware.device_type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r}: one of {', '.join(DTYPES)}")
    return DTYPES[name]


def serving(
    shape: ModelShape, hardware: Hardware, dtype: torch.dtype, overlay: Path | None, weights: str = "float"
) -> list[Serving]:
    """Every operator as it is looked up for a model, then each problem of its passes."""
    table = _table(overlay, dtype, weights)
    keys = [
        OperatorKey(op_name=name, model_name=shape.family, kv=kv) for name in table.operators for kv in kv_formats(name)
    ]
    return [_serving(table, key, hardware, dtype) for key in (*keys, *_calls(shape))]


def unmatched(shape: ModelShape, hardware: Hardware, dtype: torch.dtype, overlay: Path, weights: str) -> list[str]:
    """The entries of an overlay that serve no call of a model's decoder there; those of vision towers are left out, and
    of policies that denoise chunks all but those of products."""
    table = _table(overlay, dtype, weights)
    idle = [entry for entry in table.unmatched(_calls(shape), hardware) if entry.origin == overlay.name]
    named = [(entry.key.op_name, entry.key.text, entry.impl_id) for entry in idle]
    return [
        f"{op_name or 'any operator'} ({text or 'everywhere'}) → {impl_id}"
        for op_name, text, impl_id in named
        if (op_name in ("", "linear") if shape.step_rows else op_name not in TOWERS_OWN)
    ]


def _calls(shape: ModelShape) -> list[OperatorKey]:
    """The contexts of a decoder's calls."""
    return [
        OperatorKey(
            op_name=case.op_name,
            model_name=shape.family,
            layer_role=case.layer_role or only_role(case.op_name),
            stage=stage,
            weight=case.weight,
            kv=case.kv,
            shape_sig=case.signed()[1],
        )
        for stage, case in staged_cases(shape)
    ]


def tune(
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    out: Path,
    samples: int,
    report: Report,
    weights: str = "float",
) -> Overlay:
    """Tune every problem that `out` does not hold yet; it is written after each one, so a run can be resumed.

    The problems of a quantised weight are one: a single implementation serves all of them.
    """
    stamp = current_stamp(device, dtype, weights)
    sizes = Shape(**{name: getattr(shape, name) for name in Shape.model_fields})
    overlay = _begun(out, stamp, sizes)
    tuner = _tuner(shape, device, dtype, samples, weights)
    problems = model_cases(shape)
    done = 0
    for together in _of_one_weight(problems):
        keys = [tuner.key(case) for case in together]
        report(f"{keys[0].op_name} {keys[0].shape_sig}", done, len(problems))
        if not all(any(entry.key.matches(key) for entry in overlay.entries) for key in keys):
            others = [entry for entry in overlay.entries if not any(entry.key.matches(key) for key in keys)]
            found = _entries(tuner.tune_together(together))
            overlay = overlay.model_copy(update={"entries": [*others, *found]})
            write_overlay(out, overlay)
        done += len(together)
    return overlay


def _of_one_weight(problems: Sequence[Case]) -> list[list[Case]]:
    """The problems in groups: those of a quantised weight together, where the first of them stands."""
    groups: dict[object, list[Case]] = {}
    for index, case in enumerate(problems):
        sizes = case.signed()[1].partition("|")[2]  # without the rows
        weight = case.layer_role, case.weight, sizes
        groups.setdefault(weight if case.weight not in ("", FLOAT) else index, []).append(case)
    return list(groups.values())


def regress(path: Path, device: torch.device, dtype: torch.dtype, samples: int, report: Report) -> Iterator[Verdict]:
    """Check every entry of an overlay again: is it correct, and still no slower than the built-in choice?"""
    overlay = read_overlay(path)
    if overlay.stamp is None or overlay.model is None:
        raise ConfigError(f"operator overlay {path}: it was not written by `edgeflow tune`, nothing can be re-checked")
    weights = overlay.stamp.weights
    refuse_stale(path, overlay.stamp, current_stamp(device, dtype, weights))
    shape = overlay.model.model
    tuner = _tuner(shape, device, dtype, samples, weights)
    problems = [(tuner.key(case), case) for case in model_cases(shape)]
    for index, entry in enumerate(overlay.entries):
        report(f"{entry.op_name} {entry.shape_sig}", index, len(overlay.entries))
        case = next((case for key, case in problems if entry.key.matches(key)), None)
        if case is not None:
            yield tuner.check(case, entry.impl_id, dict(entry.impl_params))
        else:
            yield Verdict(entry.key, entry.impl_id, 0.0, 0.0, "no problem of this model has this shape")


def _tuner(shape: ModelShape, device: torch.device, dtype: torch.dtype, samples: int, weights: str) -> Tuner:
    table = operator_table(None, weights, device, dtype)
    return Tuner(table=table, model_name=shape.family, device=device, dtype=dtype, samples=samples)


def _table(overlay: Path | None, dtype: torch.dtype, weights: str) -> OperatorTable:
    """The table for a device that may not be present: float weights become `weights` even if nothing serves them."""
    table = built_in_table() if weights == "float" else built_in_table().converting(weights)
    if overlay is None:
        return table
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return table.overlaid(*load_entries(overlay, device, dtype, weights))


def _serving(table: OperatorTable, key: OperatorKey, hardware: Hardware, dtype: torch.dtype) -> Serving:
    chosen = table.choose(key, hardware, dtype)
    return Serving(
        op_name=key.op_name,
        layer_role=key.layer_role,
        stage=key.stage,
        weight=known(key, hardware).weight,
        kv=key.kv,
        shape_sig=key.shape_sig,
        impl_id=chosen.implementation.impl_id,
        impl_params=dict(chosen.params),
        why=chosen.why,
        passed_over=chosen.passed_over,
    )


def _begun(out: Path, stamp: Stamp, sizes: Shape) -> Overlay:
    """The entries of an earlier run for this machine and model; ConfigError for any other overlay."""
    if not out.exists():
        return Overlay(stamp=stamp, model=sizes)
    overlay = read_overlay(out)
    if overlay.stamp != stamp or overlay.model != sizes:
        raise ConfigError(f"{out} holds results of another machine, version or model: name another file or remove it")
    return overlay


def _entries(together: Sequence[Tuned]) -> list[OverlayEntry]:
    """An entry for each problem; for a quantised weight one more, which serves all other numbers of rows alike."""
    found = [_entry(tuned) for tuned in together]
    key = together[0].key
    if key.weight in ("", FLOAT):
        return found
    other_rows: dict[str, Any] = {
        "shape_sig": key.shape_sig.partition("|")[2],
        "impl_params": {},
        "us": None,
        "default_us": None,
    }
    return [*found, found[0].model_copy(update=other_rows)]


def _entry(tuned: Tuned) -> OverlayEntry:
    named = {name: getattr(tuned.key, name) for name in DIMENSIONS}
    times = {"us": round(tuned.us, 3), "default_us": round(tuned.default_us, 3)}
    return OverlayEntry(**named, impl_id=tuned.impl_id, impl_params=tuned.params, **times)
