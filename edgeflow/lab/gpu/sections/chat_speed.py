"""Section: chat requests in the shapes of Qwen2.5, one at a time, in the passes that the service runs for them.

A prompt enters in chunks of as many rows as the service's `chat.prefill_chunk`. Chunks and decode rows are replayed,
and tokens are read by the host, through the service's own objects. Not in these times: HTTP, tokens to text, and
control passes between steps. Floors count the bytes of a decode step (weights once, keys and values) and the FLOPs of a
prefill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median, quantiles
from time import monotonic, perf_counter

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.layout import Span
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.subjects.floors import DECODE_STEPS, PREFILL_ROWS, scaled_ms, text_work
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, TINY, random_chat, random_request
from edgeflow.models.chat import ChatModel

REQUESTS = 5
PREFILL_CHUNK, SMALL_CHUNK = 256, 16
UNEVEN = 1000  # rows that leave a remainder after their whole chunks
GROWTH = 2.0  # the most time that a model may take relative to the one before it
TOKENS = DECODE_STEPS + 1  # the first token comes with the prefill
GREEDY = SamplingParams(max_tokens=TOKENS)
SAMPLED = SamplingParams(max_tokens=TOKENS, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, seed=1)
"""The sampling that Qwen2.5's instruction-tuned checkpoints ask for."""


def chat(setting: SectionSetting) -> Found:
    """A row per model and prompt length; models without enough time are listed."""
    rows: list[Found] = []
    found: Found = {"chunk": _chunk(setting), "requests": rows}
    last_s = 0.0
    for name in models(setting):
        if setting.left_s < GROWTH * last_s:
            found.setdefault(LEFT_OUT, []).append(name)
            continue
        started = monotonic()
        for row in _rows(setting, name):
            rows.append(row)
            setting.publish(found)
        setting.release()
        last_s = monotonic() - started
    return found


def models(setting: SectionSetting) -> list[str]:
    """Names of the models, the smallest first; the tiny one is for the suite's own tests."""
    return [TINY] if setting.small else [name for name in CHAT_SIZES if name != TINY]


def lengths(setting: SectionSetting) -> tuple[int, ...]:
    """Rows of the prompts."""
    return (16, 24, 32, 64) if setting.small else (*PREFILL_ROWS, UNEVEN)


def _chunk(setting: SectionSetting) -> int:
    return SMALL_CHUNK if setting.small else PREFILL_CHUNK


def _rows(setting: SectionSetting, name: str) -> Iterator[Found]:
    model = random_chat(CHAT_SIZES[name], setting.device, setting.dtype, table=setting.table(name))
    chunk = _chunk(setting)
    kv = model.decoder.kv_slots(1 + setting.graphs, max(lengths(setting)) + DECODE_STEPS + chunk)
    engine = ChatEngine(model, kv, chunk=chunk, graphs=setting.graphs)
    engine.record_all(lambda *_: None)
    engine.seal()
    for prompt in lengths(setting):
        requests = _Requests(engine, prompt, chunk)
        requests.times(GREEDY)  # compiles
        greedy = [requests.times(GREEDY) for _ in range(REQUESTS)]
        sampled = [gap for _ in range(REQUESTS) for gap in requests.times(SAMPLED)[1]]
        first_s, gaps = median(first for first, _ in greedy), [*chain(*(gaps for _, gaps in greedy))]
        row = {
            "model": name,
            "prompt": prompt,
            "graphs": setting.graphs,
            "first token ms": 1e3 * first_s,
            "ms/token p50": 1e3 * median(gaps),
            "ms/token p99": 1e3 * quantiles(gaps, n=100, method="inclusive")[98],
            "sampled: ms/token p50": 1e3 * median(sampled),
        }
        yield row | _shares(setting, model, prompt, first_s, median(gaps)) | _paper(setting, name, prompt, row)


@dataclass(frozen=True, slots=True)
class _Requests:
    """Requests with prompts of `rows` ids, one after another, in chunks of at most `chunk` rows."""

    engine: ChatEngine
    rows: int
    chunk: int

    def times(self, params: SamplingParams) -> tuple[float, list[float]]:
        """Seconds from the prompt's ids to the first token on the host, and from each token to the next."""
        stamps = [perf_counter()]
        request = random_request(self.engine, self.rows, params)
        for sampled in generate(self.engine, request, self.chunk):
            if sampled is not None:
                stamps.append(perf_counter())
        first, *gaps = (after - before for before, after in pairwise(stamps))
        return first, gaps


def _shares(setting: SectionSetting, model: ChatModel, prompt: int, prefill_s: float, step_s: float) -> Found:
    if setting.measured is None:
        return {}
    prefill = text_work(model.config, [Span(0, 0, prompt)])
    step = text_work(model.config, [Span(0, prompt + DECODE_STEPS // 2, 1)])
    return {
        "share of matrix rate": prefill.flops / prefill_s / setting.measured.matrix_rate,
        "share of copy bandwidth": step.bytes / step_s / setting.measured.bandwidth,
    }


def _paper(setting: SectionSetting, name: str, prompt: int, row: Found) -> Found:
    """EdgeFM's times next to edgeflow's: a prefill, and as many steps as in the paper."""
    scaled = scaled_ms(name, prompt, setting.measured.bandwidth) if setting.measured else None
    if scaled is None:
        return {}
    ours = DECODE_STEPS * row["ms/token p50"]
    return {"EdgeFM scaled: prefill ms": scaled[0], f"{DECODE_STEPS} steps ms": ours, "EdgeFM scaled": scaled[1]}
