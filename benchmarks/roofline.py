"""The tables of docs/benchmarks/predictions.md: FLOPs and bytes of passes, and their roofline bound on each device.

Nothing is measured here: `python -m benchmarks.pages` puts the tables into the page. Rates and bandwidths are the peaks
that vendors publish, without sparsity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeflow.kernels.kv.layout import Span
from edgeflow.lab.gpu.subjects.floors import (
    A800_BANDWIDTH,
    DECODE_STEPS,
    PREFILL_ROWS,
    TIMES_MS,
    Ceilings,
    PassFloor,
    attention_work,
    awq_work,
    decoder_work,
    linear_work,
    pipelined_floor_s,
    pipelined_spans,
    scaled_ms,
    serial_floor_s,
    text_work,
    vision_work,
)
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES
from edgeflow.lab.gpu.subjects.random_policy import SIZES, PolicySize

OPENVLA = SIZES["openvla-7b"]
LONG = replace(OPENVLA, stages=32)
CHATS = {name: CHAT_SIZES[name] for name in TIMES_MS}
NVIDIA = "https://www.nvidia.com/"
ORIN = f"{NVIDIA}content/dam/en-zz/Solutions/gtcf21/jetson-orin/nvidia-jetson-agx-orin-technical-brief.pdf"
ORIN_NX = "https://developer.download.nvidia.com/assets/embedded/secure/jetson/orin_nx/docs/"
BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Peaks of a device."""

    name: str
    bandwidth: float
    """GB/s."""
    bf16: float
    fp8: float | None
    """Both: dense TFLOP/s with fp32 accumulation; None where absent."""
    source: str

    @property
    def ceilings(self) -> Ceilings:
        return Ceilings(self.bandwidth * 1e9, self.bf16 * 1e12)


DEVICES = (
    DevicePeaks(
        "AGX Orin 64GB", 204.8, 42.5, None, f"[technical brief]({ORIN}): 170 sparse INT8 TOPS of the GPU, a quarter"
    ),
    DevicePeaks(
        "Orin NX 16GB", 102.4, 15.0, None, f"[data sheet]({ORIN_NX}jetson_orin_nx_series_modules_ds-10712.pdf)"
    ),
    DevicePeaks(
        "Thor T5000",
        273,
        258.5,
        517,
        f"[product page]({NVIDIA}en-us/autonomous-machines/embedded-systems/jetson-thor/): 2,070 sparse FP4, an eighth",
    ),
    DevicePeaks("RTX 5090", 1792, 209.5, 419, f"[architecture]({BLACKWELL}), appendix"),
    DevicePeaks(
        "H100 SXM", 3350, 989, 1979, f"[product page]({NVIDIA}en-us/data-center/h100/), half of the sparse rates"
    ),
    DevicePeaks(
        "H200 SXM", 4800, 989, 1979, f"[product page]({NVIDIA}en-us/data-center/h200/), half of the sparse rates"
    ),
)
GROUP = 128
"""Inputs of a group of weights in 4 bits, as in the published checkpoints of 7 billion parameters."""
NAMES = [device.name for device in DEVICES]
A800 = Ceilings(A800_BANDWIDTH, 312e12)
ACTIONFLOW_MS = {"AGX Orin 64GB": (803.0, 313.1), "RTX 5090": (131.2, 51.4)}
"""its Table 1, K = 7: baseline, ActionFlow"""


def tables() -> dict[str, str]:
    """The tables of the page, by name."""
    return {
        "devices": _devices(),
        "policy-work": _policy_work(),
        "policy-floors": _policy_floors(),
        "awq-floors": _awq_floors(),
        "actionflow": _actionflow(),
        "chat-work": _chat_work(),
        "chat-floors": _chat_floors(),
        "edgefm": _edgefm(),
    }


def fp8_floor_s(size: PolicySize, device: DevicePeaks) -> float | None:
    """Bound of a steady pass with the language model's matrix products in fp8; towers and attention stay bf16."""
    if device.fp8 is None:
        return None
    spans = pipelined_spans(size)
    small = linear_work(size.text, spans, weight_bytes=1)
    rest = vision_work(size) + attention_work(size.text, spans)
    arithmetic = small.flops / (device.fp8 * 1e12) + rest.flops / (device.bf16 * 1e12)
    return max(arithmetic, (small + rest).bytes / (device.bandwidth * 1e9))


def _devices() -> str:
    rows = []
    for each in DEVICES:
        knee = f"{each.bf16 * 1e3 / each.bandwidth:.0f}"  # FLOPs per byte below which a pass is memory-bound
        rates = f"{each.bandwidth:g}", f"{each.bf16:g}", _or_dash(each.fp8, "g")
        rows.append([each.name, *rates, knee, each.source])
    return _table(["device", "GB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "FLOP/byte", "from"], rows)


def _policy_work() -> str:
    rows, first = OPENVLA.rows, [Span(0, 0, OPENVLA.rows)]
    passes = {
        "vision: both towers and the projector": vision_work(OPENVLA),
        f"prefill, {rows} rows": decoder_work(OPENVLA, first),
        "decode, 1 row": decoder_work(OPENVLA, [Span(0, rows, 1)]),
        "a frame, serial, K = 7": _serial_work(OPENVLA),
        "a frame, pipelined, K = 7": vision_work(OPENVLA) + decoder_work(OPENVLA, pipelined_spans(OPENVLA)),
        "a frame, serial, K = 32": _serial_work(LONG),
        "a frame, pipelined, K = 32": vision_work(LONG) + decoder_work(LONG, pipelined_spans(LONG)),
    }
    return _table(["OpenVLA-7B, bf16", "GFLOP", "GB", "FLOP/byte"], [_work_row(*each) for each in passes.items()])


def _serial_work(size: PolicySize) -> PassFloor:
    work = vision_work(size) + decoder_work(size, [Span(0, 0, size.rows)])
    for stage in range(size.stages - 1):
        work += decoder_work(size, [Span(0, size.rows + stage, 1)])
    return work


def _policy_floors() -> str:
    rows = []
    for device in DEVICES:
        row = [device.name]
        for size in (OPENVLA, LONG):
            serial, pipelined = (floor(size, device.ceilings) for floor in (serial_floor_s, pipelined_floor_s))
            row += [_ms(serial), _ms(pipelined), f"{1 / pipelined:.1f}", f"{serial / pipelined:.2f}"]
        small = fp8_floor_s(OPENVLA, device)
        rows.append([*row, _or_dash(small and small * 1e3, ".1f")])
    heads = ["serial ms", "pipelined ms", "frames/s", "ratio"]
    names = [f"K = {size.stages}: {head}" for size in (OPENVLA, LONG) for head in heads]
    return _table(["predicted bound", *names, "K = 7, fp8: pipelined ms"], rows)


def _awq_floors() -> str:
    """Bounds with the projections in bf16 and in 4 bits."""
    row, chat = [Span(0, OPENVLA.rows, 1)], CHATS["qwen2.5-7b"]
    step = [Span(0, 1024, 1)]
    rows = []
    for device in DEVICES:
        ceilings = device.ceilings
        pairs = [
            [decoder_work(OPENVLA, row, group) for group in (0, GROUP)],
            [text_work(chat, step), awq_work(chat, step, GROUP)],
        ]
        decode, token = ([ceilings.floor_s(work) for work in pair] for pair in pairs)
        serial, pipelined = (
            [floor(OPENVLA, ceilings, group) for group in (0, GROUP)] for floor in (serial_floor_s, pipelined_floor_s)
        )
        rows.append([device.name, *(_ms(each) for pair in (decode, serial, pipelined, token) for each in pair)])
    heads = ["OpenVLA-7B, a decode row", "a frame, serial", "a frame, pipelined", "Qwen2.5-7B, a token at 1024"]
    names = [f"{head}: {kind}" for head in heads for kind in ("bf16", "4 bits")]
    return _table(["predicted bound, ms", *names], rows)


def _actionflow() -> str:
    rows = []
    for device in DEVICES:
        if device.name in ACTIONFLOW_MS:
            floors = [floor(OPENVLA, device.ceilings) * 1e3 for floor in (serial_floor_s, pipelined_floor_s)]
            for name, ms, floor in zip(("serial", "pipelined"), ACTIONFLOW_MS[device.name], floors, strict=True):
                rows.append([f"{device.name}, {name}", f"{ms:.1f}", f"{floor:.1f}", f"{floor / ms:.0%}"])
    return _table(["OpenVLA-7B, K = 7", "ActionFlow, ms", "bound, ms", "share of the bound"], rows)


def _chat_work() -> str:
    rows = []
    for name, text in CHATS.items():
        decode, prefill = text_work(text, [Span(0, 1024, 1)]), text_work(text, [Span(0, 0, 1024)])
        rows += [_work_row(f"{name}, decode at 1024", decode), _work_row(f"{name}, prefill 1024", prefill)]
    return _table(["bf16, one request", "GFLOP", "GB", "FLOP/byte"], rows)


def _chat_floors() -> str:
    rows = []
    for name in CHATS:
        for prompt in PREFILL_ROWS:
            floors = [_chat_floor_s(name, prompt, device.ceilings) for device in DEVICES]
            rows.append([name, f"{prompt}/{DECODE_STEPS}", *(f"{_ms(first)} + {_ms(rest)}" for first, rest in floors)])
    return _table(["predicted bound, prefill + decode, ms", "shape", *NAMES], rows)


def _chat_floor_s(name: str, prompt: int, ceilings: Ceilings) -> tuple[float, float]:
    """Bounds of the prefill and of all decode steps."""
    text = CHATS[name]
    steps = (text_work(text, [Span(0, prompt + step, 1)]) for step in range(DECODE_STEPS))
    return ceilings.floor_s(text_work(text, [Span(0, 0, prompt)])), sum(map(ceilings.floor_s, steps))


def _edgefm() -> str:
    rows = []
    for name in CHATS:
        for prompt in PREFILL_ROWS:
            prefill, decode = TIMES_MS[name][prompt]
            scaled = [scaled_ms(name, prompt, device.bandwidth * 1e9) for device in DEVICES]
            cells = [f"{each[0]:.1f} + {each[1]:.0f}" for each in scaled if each]
            first, rest = (floor * 1e3 for floor in _chat_floor_s(name, prompt, A800))
            share = f"{first / prefill:.0%} + {rest / decode:.0%}"
            rows.append([name, f"{prompt}/{DECODE_STEPS}", f"{prefill:.1f} + {decode:.0f}", share, *cells])
    head = ["EdgeFM, prefill + decode, ms", "shape", "A800, its authors measured", "share of the A800's bound"]
    return _table([*head, *NAMES], rows)


def _work_row(name: str, work: PassFloor) -> list[str]:
    return [name, f"{work.flops / 1e9:,.1f}", f"{work.bytes / 1e9:,.2f}", f"{work.flops / work.bytes:,.0f}"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _or_dash(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
