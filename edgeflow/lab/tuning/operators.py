"""The implementation of `edgeflow ops` and `edgeflow tune`: the operator table for a model on a device, and
its tuner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgeflow.engine.placement import operator_table
from edgeflow.kernels.table.bind_linear import check_one_copy, choices_by_rows
from edgeflow.kernels.table.dimensions import STAGES, kv_formats, only_role
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table, is_for, known
from edgeflow.kernels.table.overlay import (
    Overlay,
    OverlayEntry,
    OverlayStamp,
    adopt_threads,
    current_stamp,
    load_entries,
    read_overlay,
    reject_stale,
    table_entries,
)
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.progress import Report
from edgeflow.lab.trials.cases import TrialCase
from edgeflow.lab.trials.model_cases import model_cases, staged_cases
from edgeflow.lab.trials.tune import RecheckedEntry, Tuned, Tuner
from edgeflow.lab.tuning.subject import dtype_named
from edgeflow_client.errors import ConfigError

TOWERS_OWN = ("varlen_attention", "add_layer_norm")
DIMENSIONS = ("op_kind", "op_name", "model_name", "hw_profile", "layer_role", "stage", "weight", "kv", "shape_sig")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLine:
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


def serving(table: OperatorTable, shape: ModelShape, hardware: Hardware, dtype: torch.dtype) -> list[OperatorLine]:
    """The choice for every operator of a model, then for each problem of its passes."""
    keys = [
        OperatorKey(op_name=name, model_name=shape.family, kv=kv) for name in table.operators for kv in kv_formats(name)
    ]
    return [_serving(table, key, hardware, dtype) for key in (*keys, *_calls(shape))]


def unmatched(table: OperatorTable, shape: ModelShape, hardware: Hardware, overlay: Path) -> list[str]:
    """The entries of an overlay that serve no call of a model's decoder there. Entries for vision towers are not
    considered; for policies that denoise chunks, only those for products are.
    """
    calls = [known(call, hardware) for call in _calls(shape)]
    own = [entry for entry in table.entries if entry.origin == overlay.name]
    idle = [entry for entry in own if not any(is_for(entry, call) for call in calls)]
    named = [(entry.key.op_name, entry.key.text, entry.impl_id) for entry in idle]
    return [
        f"{op_name or 'any operator'} ({text or 'everywhere'}) → {impl_id}"
        for op_name, text, impl_id in named
        if (op_name in ("", "linear") if shape.step_rows else op_name not in TOWERS_OWN)
    ]


def refusals(table: OperatorTable, shape: ModelShape, hardware: Hardware, dtype: torch.dtype) -> list[str]:
    """The reasons why the service would reject this table: quantised weights with several implementations."""
    weights = [together[0] for together in _of_one_weight(model_cases(shape)) if _is_quantised(together[0].weight)]
    return [reason for case in weights if (reason := _refusal(table, shape, case, hardware, dtype))]


def _refusal(table: OperatorTable, shape: ModelShape, case: TrialCase, hardware: Hardware, dtype: torch.dtype) -> str:
    """Why the quantised weight of a case could not be bound; "" if it can."""
    weight = case.problem(torch.device("meta"), dtype).arguments[0]
    key = OperatorKey(op_name=case.op_name, model_name=shape.family, layer_role=case.layer_role, weight=case.weight)
    stages = STAGES[:1] if shape.step_rows else STAGES  # denoising passes are prefills
    keys = [replace(key, stage=stage) for stage in stages]
    try:
        check_one_copy(key, weight, [each for key in keys for each in choices_by_rows(table, key, weight, hardware)])
    except ConfigError as error:
        return str(error)
    return ""


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
    threads: int = 1,
) -> Overlay:
    """Tune every problem that `out` does not hold yet; it is written after each one, so a run can be resumed.

    The problems of a quantised weight count as one: a single implementation serves all of them. threads: on a CPU,
    those of the service.
    """
    stamp = current_stamp(device, dtype, weights, threads)
    overlay = _begun(out, stamp, shape)
    adopt_threads(stamp)
    tuner = _tuner(shape, device, dtype, samples, weights)
    problems = model_cases(shape)
    done = 0
    for together in _of_one_weight(problems):
        keys = [tuner.key(case) for case in together]
        report(f"{keys[0].op_name} {keys[0].shape_sig}", done, len(problems))
        if not _is_done(overlay, tuner, shape, together):
            others = [entry for entry in overlay.entries if not _is_meant(entry.key, keys)]
            found = _entries(tuner.tune_together(together))
            overlay = overlay.model_copy(update={"entries": [*others, *found]})
            write_overlay(out, overlay)
        done += len(together)
    return overlay


def write_overlay(path: Path, overlay: Overlay) -> None:
    """Write a file completely or not at all."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(overlay.model_dump_json(indent=2, exclude_defaults=False) + "\n")
    draft.replace(path)


def _of_one_weight(problems: Sequence[TrialCase]) -> list[list[TrialCase]]:
    """The problems in groups: those of a quantised weight together, at the place of the first."""
    groups: dict[object, list[TrialCase]] = {}
    for index, case in enumerate(problems):
        weight = case.layer_role, case.weight, _without_rows(case.signed()[1])
        groups.setdefault(weight if _is_quantised(case.weight) else index, []).append(case)
    return list(groups.values())


def _is_done(overlay: Overlay, tuner: Tuner, shape: ModelShape, together: Sequence[TrialCase]) -> bool:
    """True if each problem has an entry; for a quantised weight also the other numbers of rows, all with one
    implementation.
    """
    keys = [tuner.key(case) for case in together]
    quantised = _is_quantised(keys[0].weight)
    wanted = [*keys, _of_other_rows(keys[0])] if quantised else keys
    if not all(any(entry.key.matches(key) for entry in overlay.entries) for key in wanted):
        return False
    table = tuner.table.overlaid(*table_entries(overlay, "overlay"))
    hardware = Hardware.of(tuner.device)
    return not quantised or not _refusal(table, shape, together[0], hardware, tuner.dtype)


def _is_meant(entry: OperatorKey, keys: Sequence[OperatorKey]) -> bool:
    """True for an entry of these problems; for a quantised weight, of any stage and number of rows."""
    if not _is_quantised(keys[0].weight):
        return any(entry.matches(key) for key in keys)
    of_any = replace(entry, stage="", shape_sig=_without_rows(entry.shape_sig))
    return entry.weight == keys[0].weight and of_any.matches(_of_other_rows(keys[0]))


def _of_other_rows(key: OperatorKey) -> OperatorKey:
    return replace(key, shape_sig=_without_rows(key.shape_sig))


def _without_rows(shape_sig: str) -> str:
    return "|".join(size for size in shape_sig.split("|") if not size.startswith("m="))


def _is_quantised(weight: str) -> bool:
    return weight not in ("", FLOAT)


def regress(path: Path, device: torch.device, dtype: str, samples: int, report: Report) -> Iterator[RecheckedEntry]:
    """Check whether every entry of an overlay is still correct and no slower than the built-in choice.

    dtype: "" for the one that the overlay was tuned in. On a CPU torch takes the threads that it was tuned with.
    """
    overlay = read_overlay(path)
    if overlay.stamp is None or overlay.model is None:
        raise ConfigError(f"operator overlay {path}: it was not written by `edgeflow tune`, nothing can be re-checked")
    weights, number = overlay.stamp.weights, dtype_named(dtype or overlay.stamp.dtype)
    reject_stale(path, overlay.stamp, current_stamp(device, number, weights, overlay.stamp.threads))
    adopt_threads(overlay.stamp)
    shape = overlay.model
    tuner = _tuner(shape, device, number, samples, weights)
    problems = [(tuner.key(case), case) for case in model_cases(shape)]
    for index, entry in enumerate(overlay.entries):
        report(f"{entry.op_name} {entry.shape_sig}", index, len(overlay.entries))
        case = next((case for key, case in problems if entry.key.matches(key)), None)
        if case is not None:
            yield tuner.check(case, entry.impl_id, dict(entry.impl_params))
        else:
            yield RecheckedEntry(entry.key, entry.impl_id, 0.0, 0.0, "no problem of this model has this shape")


def _tuner(shape: ModelShape, device: torch.device, dtype: torch.dtype, samples: int, weights: str) -> Tuner:
    table = operator_table(None, weights, device, dtype)
    return Tuner(table=table, model_name=shape.family, device=device, dtype=dtype, samples=samples)


def shown_table(overlay: Path | None, dtype: torch.dtype, weights: str, tuned_for: str) -> OperatorTable:
    """The table for a device that may not be present: float weights become `weights` even if nothing serves them.

    tuned_for: as in `reject_stale`.
    """
    table = built_in_table() if weights == "float" else built_in_table().converting(weights)
    if overlay is None:
        return table
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return table.overlaid(*load_entries(overlay, device, dtype, weights, tuned_for))


def _serving(table: OperatorTable, key: OperatorKey, hardware: Hardware, dtype: torch.dtype) -> OperatorLine:
    chosen = table.choose(key, hardware, dtype)
    return OperatorLine(
        op_name=key.op_name,
        layer_role=key.layer_role,
        stage=key.stage,
        weight=known(key, hardware).weight,
        kv=key.kv,
        shape_sig=key.shape_sig,
        impl_id=chosen.implementation.impl_id,
        impl_params=dict(chosen.params),
        why=chosen.reason,
        passed_over=chosen.passed_over,
    )


def _begun(out: Path, stamp: OverlayStamp, sizes: ModelShape) -> Overlay:
    """The entries of an earlier run for this machine and model; ConfigError names the differences to any other."""
    if not out.exists():
        return Overlay(stamp=stamp, model=sizes)
    overlay = read_overlay(out)
    if overlay.stamp is None or overlay.model is None:
        raise ConfigError(f"{out} was not written by `edgeflow tune`: name another file with --out")
    theirs, ours = (_validity(*each) for each in ((overlay.stamp, overlay.model), (stamp, sizes)))
    differing = [
        f"{name} {theirs[name] or 'none'}, here {ours[name] or 'none'}" for name in ours if theirs[name] != ours[name]
    ]
    if differing:
        raise ConfigError(
            f"{out} holds results with {'; '.join(differing)}: name another file with --out, or remove this one"
        )
    return overlay


def _validity(stamp: OverlayStamp, sizes: ModelShape) -> dict[str, str]:
    """The machine, the versions and the model that results are valid for, by name, to be printed. The head, which is
    one of the products, has a separate name.
    """
    products = sizes.every_product
    head = ", ".join(each.format for each in products if each.role == "head")
    others = ", ".join(
        f"{each.role} [{each.outputs}, {each.inputs}] {each.format}" for each in products if each.role != "head"
    )
    shown = {**stamp.model_dump(exclude={"power"}), "power_mode": stamp.power.get("power_mode", "")}
    return {**shown, **asdict(sizes), "products": others, "head": head}


def _entries(together: Sequence[Tuned]) -> list[OverlayEntry]:
    """An entry for each problem; for a quantised weight one more, which serves all other numbers of rows."""
    found = [_entry(tuned) for tuned in together]
    key = together[0].key
    if not _is_quantised(key.weight):
        return found
    other_rows: dict[str, Any] = {
        "shape_sig": _without_rows(key.shape_sig),
        "impl_params": {},
        "us": None,
        "default_us": None,
    }
    return [*found, found[0].model_copy(update=other_rows)]


def _entry(tuned: Tuned) -> OverlayEntry:
    named = {name: getattr(tuned.key, name) for name in DIMENSIONS}
    times = {"us": round(tuned.us, 3), "default_us": round(tuned.default_us, 3)}
    return OverlayEntry(**named, impl_id=tuned.impl_id, impl_params=tuned.params, **times)
