"""Section: decode steps of a chat with a long context, with keys and values in each format that the device supports."""

from __future__ import annotations

from statistics import median

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.formats import DENSE, FP8, INT4, INT8, KVFormat
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting, named
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, TINY, pass_times, random_chat, random_request
from edgeflow.models.chat import ChatModel

MODEL = "qwen2.5-7b"
CONTEXTS = (8192, 32000)
SMALL_CONTEXTS = (64,)
STEPS = 32
WARM_UP = 4


def long_context(setting: SectionSetting) -> Found:
    """Median milliseconds per step. The context is not computed: a step's time does not depend on the
    values it reads.
    """
    name = TINY if setting.small else MODEL
    model = random_chat(CHAT_SIZES[name], setting.device, setting.dtype, table=setting.table(name))
    rows: list[Found] = []
    found: Found = {"steps": rows}
    for context in SMALL_CONTEXTS if setting.small else CONTEXTS:
        for kv_format in _formats(setting):
            kind = named(setting.dtype) if kv_format is DENSE else kv_format.name
            if setting.left_s < 0:
                found.setdefault(LEFT_OUT, []).append(f"{context} rows, {kind}")
                continue
            kv = model.decoder.kv_slots(1 + setting.graphs, context + STEPS + WARM_UP, kv_format)
            row = {"model": name, "context": context, "KV": kind, "KV MiB": kv.nbytes / 2**20}
            rows.append(row | {"ms/step": 1e3 * _step_s(setting, model, kv, context)})
            setting.publish(found)
    return found


def _formats(setting: SectionSetting) -> list[KVFormat]:
    kernel = built_in_table().implementation("packed_attention", "triton", FP8.name)
    lacks_fp8 = setting.device.type != "cuda" or Hardware.of(setting.device).arch < kernel.least_arch
    return [DENSE, INT8, INT4] if lacks_fp8 else [DENSE, INT8, FP8, INT4]


def _step_s(setting: SectionSetting, model: ChatModel, kv: KVSlots, context: int) -> float:
    engine = ChatEngine(model, kv, chunk=1, graphs=setting.graphs)
    request = random_request(engine, context, SamplingParams(max_tokens=STEPS + WARM_UP), known=context - 1)
    return median(pass_times(engine, request)[WARM_UP:])
