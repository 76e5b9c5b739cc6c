"""Sections: frames per second of a policy.

Systems are timed in turns, after one run of each that compiles and records. A system without enough time is left out,
and so are rounds after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from time import monotonic

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.packed_attention import naive_gather
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting, SkipError
from edgeflow.lab.gpu.sections.token_checks import differing
from edgeflow.lab.gpu.subjects.engines import engine_of, frames_per_s, passes_per_s, policy_of
from edgeflow.lab.gpu.subjects.floors import pipelined_floor_s, serial_floor_s
from edgeflow.lab.gpu.subjects.random_policy import PolicySize, random_frames
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode

ROUNDS = 3
LONG = 32  # action tokens of the long setting
OTHER_WEIGHTS = ("fp8", "4 bits")
"""Systems whose weights are not in the model's dtype."""
Systems = Mapping[str, Callable[[], float]]


def policy(setting: SectionSetting) -> Found:
    """Serial, pipelined with both shifts, speculative, and the naive pipeline; with graphs and without.

    With random weights drafts are right only by chance: `speculative` shows the cost of its passes, not their number.
    """
    size = setting.size
    model = policy_of(setting, size)
    naive = policy_of(setting, size, attention=naive_gather)
    frames = random_frames(size, model, setting.frames)
    systems: dict[str, Callable[[], float]] = {}
    engines = {graphs: engine_of(model, size, setting, graphs=graphs) for graphs in ways(setting)}
    for graphs, engine in engines.items():
        kind = ", graphs" if graphs else ""
        systems[f"serial{kind}"] = _serial(engine, frames)
        for shift in Shift:
            systems[f"pipelined, {shift.value}{kind}"] = pipelined(engine, frames, shift)
        systems[f"speculative{kind}"] = _speculative(engine, frames)
    systems["naive pipe"] = pipelined(engine_of(naive, size, setting, graphs=False), frames, Shift.ROTATE)
    found = timed(setting, size, systems)
    if True in engines and (recorded := engines[True].graphs) is not None:
        found |= {"recordings": len(recorded), "passes without a recording": recorded.eager_passes}
    return found


def long_actions(setting: SectionSetting) -> Found:
    """Serial and pipelined with LONG action tokens."""
    size = replace(setting.size, stages=LONG)
    model = policy_of(setting, size)
    frames = random_frames(size, model, max(setting.frames, LONG + 8))
    engine = engine_of(model, size, setting, graphs=ways(setting)[0])
    serial, shared = _serial(engine, frames[:16]), pipelined(engine, frames, Shift.ROTATE)
    return {"action tokens": LONG} | timed(setting, size, {"serial": serial, "pipelined, rotate": shared})


def fp8(setting: SectionSetting) -> Found:
    """Pipelined with GEMMs in FP8 and in the model's dtype, and the share of tokens that FP8 changes."""
    size = setting.size
    plain, small = policy_of(setting, size), policy_of(setting, size, table=_fp8_table(setting))
    frames = random_frames(size, plain, setting.frames)
    systems: dict[str, Callable[[], float]] = {}
    for name, model in {"model's dtype": plain, "fp8": small}.items():
        systems[name] = pipelined(engine_of(model, size, setting, graphs=ways(setting)[0]), frames, Shift.ROTATE)
    found = timed(setting, size, systems)
    engines = (engine_of(model, size, setting, graphs=False) for model in (plain, small))
    right, other = ([each.sampled for each in decode_serially(one, frames[: size.stages])] for one in engines)
    return found | {"share of tokens that FP8 changes": differing(right, other)}


def ways(setting: SectionSetting) -> tuple[bool, ...]:
    """The values of `graphs` to measure: with graphs first, if the device has them."""
    return (True, False) if setting.graphs else (False,)


def _fp8_table(setting: SectionSetting) -> OperatorTable:
    table = setting.table(setting.size.name, "fp8")
    context = OperatorKey(op_name="linear", model_name="llama", layer_role="gate_up")
    chosen = table.choose(context, Hardware.of(setting.device), setting.dtype)
    if chosen.implementation.weight != "fp8":
        raise SkipError("; ".join(chosen.passed_over) or "no FP8 implementation serves this device")
    return table


def _serial(engine: PolicyEngine, frames: list[PreparedFrame]) -> Callable[[], float]:
    some = frames[: max(3, len(frames) // 4)]
    return lambda: frames_per_s(engine, Mode.SERIAL, Shift.ROTATE, some)


def pipelined(engine: PolicyEngine, frames: list[PreparedFrame], shift: Shift) -> Callable[[], float]:
    """A run that returns frames per second of a pipeline."""
    return lambda: frames_per_s(engine, Mode.PIPELINED, shift, frames)


def _speculative(engine: PolicyEngine, frames: list[PreparedFrame]) -> Callable[[], float]:
    """Passes per second, each of which receives a new frame."""
    return lambda: passes_per_s(engine, Mode.SPECULATIVE, frames)


def timed(setting: SectionSetting, size: PolicySize, systems: Systems) -> Found:
    """A row per system, kept after each round."""
    found: Found = {}
    kept = _warmed(setting, systems)
    if late := [name for name in systems if name not in kept]:
        found[LEFT_OUT] = late
    rounds: list[dict[str, float]] = []
    round_s = 0.0
    while len(rounds) < ROUNDS and (not rounds or setting.left_s > round_s):
        started = monotonic()
        rounds.append({name: run() for name, run in kept.items()})
        round_s = monotonic() - started
        fps = {name: median(each[name] for each in rounds) for name in kept}
        found |= {"rounds": len(rounds), "systems": [_row(setting, size, name, fps[name], rounds) for name in kept]}
        setting.publish(found)
    return found


def _warmed(setting: SectionSetting, systems: Systems) -> Systems:
    """The first systems that have run once and leave time for a round."""
    started = monotonic()
    kept: dict[str, Callable[[], float]] = {}
    for name, run in systems.items():
        if kept and setting.left_s < 2 * (monotonic() - started) / len(kept):
            break
        run()
        kept[name] = run
    return kept


def _row(setting: SectionSetting, size: PolicySize, name: str, fps: float, rounds: list[dict[str, float]]) -> Found:
    """One system; the floor is that of the model's dtype. Passes with drafts have none."""
    rates = [each[name] for each in rounds]
    row = {"system": name, "frames/s": fps, "ms/frame": 1e3 / fps, "least": min(rates), "most": max(rates)}
    if setting.measured is None or name in OTHER_WEIGHTS or name.startswith("speculative"):
        return row
    floor_s = (serial_floor_s if name.startswith("serial") else pipelined_floor_s)(size, setting.measured)
    return {**row, "floor ms": 1e3 * floor_s, "share of floor": floor_s * fps}
