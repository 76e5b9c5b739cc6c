"""Section: projections in 4 bits: their correctness, the bandwidth that a row reaches, and the cost of a pass.

Weights are random codes in groups of 128, as in the published AWQ checkpoints of this size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import generate
from edgeflow.engine.graphs import CudaRecord, Record
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.table.implementations import REFERENCE, Hardware
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import Choice, OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.timing import last_level_cache, median_us
from edgeflow.lab.gpu.section_order import INT4_MODELS, LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting
from edgeflow.lab.gpu.sections.kernel_checks import model_shape, policy_shape
from edgeflow.lab.gpu.sections.policy_speed import pipelined, timed, ways
from edgeflow.lab.gpu.subjects.engines import engine_of, policy_of
from edgeflow.lab.gpu.subjects.floors import awq_weight_bytes, awq_work
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, TINY, pass_times, random_chat, random_request
from edgeflow.lab.gpu.subjects.random_policy import random_frames
from edgeflow.lab.trials.cases import TrialCase
from edgeflow.lab.trials.compare import ReferenceOutputs, tolerance
from edgeflow.lab.trials.model_cases import linear_cases, preset
from edgeflow.models.chat import ChatModel
from edgeflow.scheduler.session import Shift

SAMPLES = 9
CALLS = 24  # least duration of a sample: a projection takes less time than a launch
GROUP, SMALL_GROUP = 128, 32
CHAT, PROMPT, SMALL_PROMPT = "qwen2.5-7b", 256, 16
STEPS = 32
WARM_UP = 4


@torch.inference_mode()
def int4(setting: SectionSetting) -> Found:
    """Each projection for one row and for a packed pass, then a pipeline and a chat request.

    OffError if products deviate, or if replayed tokens differ from launched ones.
    """
    projections: list[Found] = []
    found: Found = {"group": _group(setting), "projections": projections}
    for row in _projections(setting):
        projections.append(row)
        setting.publish(found)
    found["models"] = [_model_row(setting, name, projections) for name in _models(setting)]
    if off := [row for row in projections if not row["ok"]]:
        raise OffError(f"{len(off)} of {len(projections)} projections in 4 bits deviate", found)
    found |= _pipeline(setting) if setting.left_s > 0 else {LEFT_OUT: ["pipeline"]}
    setting.publish(found)
    setting.release()
    if setting.left_s > 0:
        found |= _chat(setting)
    else:
        found.setdefault(LEFT_OUT, []).append("chat")
    if found.get("replayed tokens equal launched ones") is False:
        raise OffError("replayed tokens of a chat in 4 bits differ from launched ones", found)
    return found


def _group(setting: SectionSetting) -> int:
    return SMALL_GROUP if setting.small else GROUP


def _models(setting: SectionSetting) -> dict[str, ModelShape]:
    if setting.small:
        return {setting.size.name: policy_shape(setting.size), TINY: model_shape(CHAT_SIZES[TINY], SMALL_PROMPT, 1)}
    return {name: preset(name) for name in INT4_MODELS}


def _projections(setting: SectionSetting) -> Iterator[Found]:
    """A row per model, projection and number of rows: one, and those of the policy's steady pass."""
    table = built_in_table()
    record = CudaRecord(setting.device) if setting.graphs else None
    for name, shape in _models(setting).items():
        for rows in (1, setting.size.rows + setting.size.stages - 1):
            floats = linear_cases(shape, rows)
            small = linear_cases(replace(shape, group=_group(setting)), rows)
            for plain, case in zip(floats, small, strict=True):
                row = {"model": name, "projection": case.layer_role, "rows": rows}
                yield row | _measured(setting, table, record, case, plain)


def _measured(
    setting: SectionSetting, table: OperatorTable, record: Record | None, case: TrialCase, plain: TrialCase
) -> Found:
    """The implementation that serves a projection here, its deviation from the reference, and its time; also the time
    of a float weight.
    """
    device, dtype = setting.device, setting.dtype
    choice = _choice(setting, table, case)
    reference = table.implementation("linear", REFERENCE).load()
    off = ReferenceOutputs.of(case, reference, device, dtype).deviation(choice.load())
    kinds = {"µs": case, "float µs": plain}
    times = {name: _us(setting, each, _choice(setting, table, each), record) for name, each in kinds.items()}
    sizes = dict(part.split("=") for part in case.signed()[1].split("|"))
    weights = int(sizes["n"]) * int(sizes["e"])
    return {
        "implementation": choice.implementation.impl_id,
        "deviation": off,
        "ok": off <= tolerance(case, dtype, AWQ, choice.implementation.deviation),
        **times,
        "bytes": awq_weight_bytes(_group(setting)) * weights,
    }


def _choice(setting: SectionSetting, table: OperatorTable, case: TrialCase) -> Choice:
    key = OperatorKey(op_name="linear", weight=case.weight, shape_sig=case.signed()[1])
    return table.choose(key, Hardware.of(setting.device), setting.dtype)


def _us(setting: SectionSetting, case: TrialCase, choice: Choice, record: Record | None) -> float:
    """Microseconds of a call whose weight is not cached, replayed if passes are."""
    ring = case.ring(setting.device, setting.dtype, last_level_cache(setting.device))
    calls = [problem.given_to(choice.load()) for problem in ring]
    rounds = -(-CALLS // len(calls))

    def run() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    replay = run if record is None else record(run)[0]
    return median_us({"calls": replay}, setting.device, SAMPLES)["calls"] / (rounds * len(calls))


def _model_row(setting: SectionSetting, name: str, projections: list[Found]) -> Found:
    """The projections of a layer together."""
    mine = [row for row in projections if row["model"] == name]
    one, packed = ([row for row in mine if (row["rows"] == 1) is alone] for alone in (True, False))
    row: Found = {"model": name, "group": _group(setting)}
    if setting.measured is not None:
        rate = sum(each["bytes"] for each in one) / (1e-6 * sum(each["µs"] for each in one))
        row["one row, share of copy bandwidth"] = rate / setting.measured.bandwidth
    ratio = sum(each["float µs"] for each in packed) / sum(each["µs"] for each in packed)
    return row | {"packed, model's dtype / 4 bits": ratio}


def _pipeline(setting: SectionSetting) -> Found:
    """Frames per second with projections in the model's dtype and in 4 bits."""
    size, group = setting.size, _group(setting)
    models = {"model's dtype": policy_of(setting, size), "4 bits": policy_of(setting, size, group=group)}
    systems = {}
    for name, model in models.items():
        frames = random_frames(size, model, setting.frames)
        systems[name] = pipelined(engine_of(model, size, setting, graphs=ways(setting)[0]), frames, Shift.ROTATE)
    return timed(setting, size, systems)


def _chat(setting: SectionSetting) -> Found:
    """A greedy answer: milliseconds per token, and whether it is the same replayed and launched."""
    name, prompt = (TINY, SMALL_PROMPT) if setting.small else (CHAT, PROMPT)
    group = _group(setting)
    model = random_chat(CHAT_SIZES[name], setting.device, setting.dtype, group=group, table=setting.table(name))
    answers = {graphs: _answer(model, prompt, graphs=graphs) for graphs in ways(setting)}
    step_s = answers[ways(setting)[0]][1]
    found: Found = {"chat": name, "ms/token": 1e3 * step_s}
    if setting.measured is not None:
        work = awq_work(model.config, [Span(0, prompt + STEPS // 2, 1)], group)
        found["share of copy bandwidth"] = work.bytes / step_s / setting.measured.bandwidth
    if len(answers) > 1:
        found["replayed tokens equal launched ones"] = answers[True][0] == answers[False][0]
    return found


def _answer(model: ChatModel, prompt: int, *, graphs: bool) -> tuple[list[int], float]:
    """The tokens of a greedy answer, and seconds per token after the first."""
    engine = ChatEngine(model, model.decoder.kv_slots(1 + graphs, prompt + STEPS), chunk=prompt, graphs=graphs)
    greedy = SamplingParams(max_tokens=STEPS)
    request = random_request(engine, prompt, greedy)
    for _ in generate(engine, request, prompt):
        pass
    again = random_request(engine, prompt, greedy)
    return request.tokens, median(pass_times(engine, again)[WARM_UP:])
