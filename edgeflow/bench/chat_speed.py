"""Section: one chat request at a time in the shapes of Qwen2.5, prompts of 512, 1024 and 2048 rows, 32 decode steps.

The way of the service: whole prompts in one pass, then a pass a token, each sampled and read by the host. Times are
medians of several requests; floors count a decode step's bytes (weights once, keys and values) and a prefill's FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from edgeflow.bench.edgefm import DECODE_STEPS, PREFILL_ROWS, scaled_ms
from edgeflow.bench.floors import text_work
from edgeflow.bench.order import Found
from edgeflow.bench.random_chat import CHAT_SIZES, TINY, pass_times, random_chat, random_request, runner
from edgeflow.bench.setting import Setting
from edgeflow.engine.generate import RunPass
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import Span
from edgeflow.models.chat import ChatModel

REQUESTS = 5


def chat(setting: Setting) -> Found:
    """A row a model and prompt length."""
    rows: list[Found] = []
    for name in models(setting):
        rows += _rows(setting, name)
        setting.tell({"requests": rows})
        setting.release()
    return {"requests": rows}


def models(setting: Setting) -> list[str]:
    """The smallest first; the tiny one is for the suite's own tests."""
    return [TINY] if setting.small else [name for name in CHAT_SIZES if name != TINY]


def lengths(setting: Setting) -> tuple[int, ...]:
    """Rows of the prompts."""
    return (16, 32, 64) if setting.small else PREFILL_ROWS


def _rows(setting: Setting, name: str) -> Iterator[Found]:
    model = random_chat(CHAT_SIZES[name], setting.device, setting.dtype, table=setting.table(name))
    kv = model.decoder.kv_slots(1, max(lengths(setting)) + DECODE_STEPS)
    run = runner(kv, graphs=setting.graphs)
    for prompt in lengths(setting):
        _request(run, model, kv, prompt)  # compiles, records
        times = [_request(run, model, kv, prompt) for _ in range(REQUESTS)]
        prefill_s, decode_s = (median(each[index] for each in times) for index in range(2))
        row = {
            "model": name,
            "prompt": prompt,
            "graphs": setting.graphs,
            "prefill ms": 1e3 * prefill_s,
            f"{DECODE_STEPS} steps ms": 1e3 * decode_s,
        }
        row |= _shares(setting, model, prompt, prefill_s, decode_s / DECODE_STEPS)
        yield row | _paper(setting, name, prompt)


def _request(run: RunPass, model: ChatModel, kv: KVSlots, rows: int) -> tuple[float, float]:
    """Seconds to the first token, and of the steps after it."""
    first, *steps = pass_times(run, kv, random_request(model, kv, rows, DECODE_STEPS + 1))
    return first, sum(steps)


def _shares(setting: Setting, model: ChatModel, prompt: int, prefill_s: float, step_s: float) -> Found:
    if setting.measured is None:
        return {}
    prefill = text_work(model.config, [Span(0, 0, prompt)])
    step = text_work(model.config, [Span(0, prompt + DECODE_STEPS // 2, 1)])
    return {
        "share of matrix rate": prefill.flops / prefill_s / setting.measured.matrix_rate,
        "share of copy bandwidth": step.bytes / step_s / setting.measured.bandwidth,
    }


def _paper(setting: Setting, name: str, prompt: int) -> Found:
    scaled = scaled_ms(name, prompt, setting.measured.bandwidth) if setting.measured else None
    return {"EdgeFM scaled: prefill ms": scaled[0], f"{DECODE_STEPS} steps ms, EdgeFM": scaled[1]} if scaled else {}
