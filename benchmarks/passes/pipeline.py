"""Frames per second of one policy in five systems, side by side in one run.

1. transformers: the same weights through `LlamaForCausalLM.generate`, one frame at a time (our towers and projector)
2. serial: our packed forward, one segment per pass
3. naive pipe: pipelined, the caches of all stages gathered into a fresh buffer in every layer and pass
4. pipelined, copy shift
5. pipelined, rotate shift

The systems take turns (A B C D E A B C D E …), so that a machine that slows down slows all of them; ratios are taken
round by round, and stand beside the bound that the pass times allow. The gain of each part of the scheme over the naive
pipe follows, and whether it is inside the scatter of the rounds. Every system's tokens are compared with serial
decoding's.

    .venv/bin/python -m benchmarks.passes.pipeline --json FILE
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from edgeflow.contract import PassTimes
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.packed_attention import naive_gather
from edgeflow.kernels.slots_in_place import slots_in_place
from edgeflow.lab.openvla_policy import embed_prefill, load_openvla
from edgeflow.model_paths import resolve_model
from edgeflow.models.checkpoint import Weights
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow.worker.calibrate import calibrate
from edgeflow_client.loadtest.terminal import table_console
from edgeflow_client.types import Mode

CPU = torch.device("cpu")
INSTRUCTION = "grasp the red handle"
Tokens = list[tuple[int, ...]]
System = Callable[[list[PreparedFrame]], tuple[Tokens, float]]


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """One system: fps over rounds; ratio to edgeflow's serial mode, round by round."""

    system: str
    fps_mean: float
    fps_std: float
    ratio_median: float
    ratio_min: float
    ratio_max: float
    full: float
    """Share of passes with all K stages."""
    tokens_equal: bool


@dataclass(frozen=True, slots=True)
class SpeedGain:
    """The speed of one system relative to another, round by round."""

    system: str
    over: str
    median: float
    least: float
    most: float
    clear: bool
    """True if it was faster in every round."""

    @property
    def line(self) -> str:
        said = "faster in every round" if self.clear else "inside the scatter: not faster in every round"
        return f"{self.system} / {self.over}: {self.median:.2f} ({self.least:.2f} .. {self.most:.2f}), {said}"


def main() -> None:
    """Measure and print; exit code 1 when tokens differ."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    path = resolve_model(arguments.model)
    policy = load_openvla(path, torch.float32, CPU)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (arguments.frames, 96, 96, 3), np.uint8)
    ids = policy.prompt_ids(INSTRUCTION)
    frames = [PreparedFrame(policy.preprocess(image), ids) for image in images]
    systems = _systems(path, policy, len(ids))
    rounds = _measure(systems, frames, arguments.rounds)
    rows = _rows(systems, rounds)
    engine = PolicyEngine(policy, policy.K, policy.fixed_rows + len(ids) + policy.K)
    times = calibrate(engine, instruction=INSTRUCTION)
    gains, bound = gains_of(rounds), bound_of(times)
    _print(rows, arguments, policy.fixed_rows + len(ids), bound)
    for gain in gains:
        print(gain.line)
    print(
        f"passes: prefill {times.prefill_ns / 1e6:.2f} ms, decode {times.decode_ns / 1e6:.2f} ms,"
        f" packed {times.packed_ns / 1e6:.2f} ms: bound of the ratio {bound:.2f}"
    )
    asked = {key: str(value) for key, value in vars(arguments).items() if key != "json"}
    found = {"pass_times": asdict(times), "bound": bound, "rows": [asdict(row) for row in rows]}
    found |= {"gains": [asdict(gain) for gain in gains]}
    facts = {**machine_facts(), "instructions": torch.backends.cpu.get_cpu_capability()}
    keep(arguments.json, {**facts, **asked, **found})
    raise SystemExit(0 if all(row.tokens_equal for row in rows) else 1)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--model", default="demo", help="checkpoint directory, or demo (the embedded policy)")
    parser.add_argument("--frames", type=int, default=60, help="frames a system runs in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def _systems(path: Path, policy: OpenVLAPolicy, prompt: int) -> dict[str, System]:
    naive = load_openvla(path, torch.float32, CPU, attention=naive_gather)
    ours = load_openvla(path, torch.float32, CPU, attention=slots_in_place)

    def packed(served: OpenVLAPolicy, mode: Mode, shift: Shift) -> System:
        engine = PolicyEngine(served, served.K, served.fixed_rows + prompt + served.K)

        def run(frames: list[PreparedFrame]) -> tuple[Tokens, float]:
            scheduler = Scheduler(limits_for(served.K, shift=shift))
            (decoded,) = OfflineRun(engine, scheduler, [mode]).decode([frames])
            tokens = [each.sampled.token_ids for each in decoded]
            return tokens, scheduler.counts.full_passes / scheduler.counts.passes

        return run

    return {
        "transformers": _transformers(path, policy),
        "serial": packed(ours, Mode.SERIAL, Shift.ROTATE),
        "naive pipe": packed(naive, Mode.PIPELINED, Shift.ROTATE),
        "pipelined, copy": packed(ours, Mode.PIPELINED, Shift.COPY),
        "pipelined, rotate": packed(ours, Mode.PIPELINED, Shift.ROTATE),
    }


def _transformers(path: Path, policy: OpenVLAPolicy) -> System:
    """The plain baseline: towers and projector are edgeflow's, the language model through `generate`."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    text = {key: getattr(policy.config.text, key) for key in policy.config.text.__dataclass_fields__}
    model = LlamaForCausalLM(LlamaConfig(**text)).eval()
    model.load_state_dict(Weights(path, torch.float32, CPU).under("language_model."))
    settings = GenerationConfig(max_new_tokens=policy.K, min_new_tokens=policy.K, do_sample=False, pad_token_id=0)

    @torch.inference_mode()
    def run(frames: list[PreparedFrame]) -> tuple[Tokens, float]:
        tokens = []
        for frame in frames:
            (hidden,) = embed_prefill(policy, frame.pixel_values[None], [frame.prompt_ids])
            out = model.generate(
                inputs_embeds=hidden[None],
                attention_mask=torch.ones(1, len(hidden), dtype=torch.long),
                generation_config=settings,
            )
            tokens.append(tuple(out[0, -policy.K :].tolist()))
        return tokens, 0.0

    return run


def _measure(systems: dict[str, System], frames: list[PreparedFrame], rounds: int) -> list[dict[str, tuple]]:
    results = []
    for index in track(range(rounds + 1), description="rounds (the first is not counted)"):
        outcome = {}
        for name, run in systems.items():
            started = time.perf_counter()
            tokens, full = run(frames)
            outcome[name] = (len(frames) / (time.perf_counter() - started), full, tokens)
        if index:
            results.append(outcome)
    return results


def _rows(systems: dict[str, System], rounds: list[dict[str, tuple]]) -> list[PipelineRow]:
    reference = rounds[0]["serial"][2]
    rows = []
    for name in systems:
        fps = np.array([outcome[name][0] for outcome in rounds])
        ratios = fps / np.array([outcome["serial"][0] for outcome in rounds])
        equal = all(outcome[name][2] == reference for outcome in rounds)
        ratio = [float(value) for value in (np.median(ratios), ratios.min(), ratios.max())]
        rows.append(
            PipelineRow(name, float(fps.mean()), float(fps.std()), *ratio, full=rounds[0][name][1], tokens_equal=equal)
        )
    return rows


def gains_of(rounds: list[dict[str, tuple]]) -> list[SpeedGain]:
    """The ablation: each way to pipeline over the naive pipe, and one shift over the other."""
    naive, copy, rotate = "naive pipe", "pipelined, copy", "pipelined, rotate"
    gains = []
    for system, over in ((copy, naive), (rotate, naive), (rotate, copy)):
        ratios = np.array([outcome[system][0] / outcome[over][0] for outcome in rounds])
        found = [float(value) for value in (np.median(ratios), ratios.min(), ratios.max())]
        gains.append(SpeedGain(system, over, *found, clear=bool(ratios.min() > 1)))
    return gains


def bound_of(times: PassTimes) -> float:
    """The ratio to serial that the pass times allow: (prefill + (K-1) decode) / packed."""
    return (times.prefill_ns + (times.stages - 1) * times.decode_ns) / times.packed_ns


def _print(rows: list[PipelineRow], arguments: argparse.Namespace, prefill: int, bound: float) -> None:
    title = f"{arguments.model}: {arguments.threads} threads, prefill of {prefill} rows, {arguments.frames} frames"
    columns = ("system", "FPS", "±", "ratio to serial", "min .. max", "bound", "full pipeline", "tokens")
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(
            row.system,
            f"{row.fps_mean:.1f}",
            f"{row.fps_std:.1f}",
            f"{row.ratio_median:.2f}",
            f"{row.ratio_min:.2f} .. {row.ratio_max:.2f}",
            f"{bound:.2f}" if "pipe" in row.system else "",
            f"{row.full:.0%}",
            "equal" if row.tokens_equal else "[red]DIFFER[/]",
        )
    table_console().print(table)


if __name__ == "__main__":
    main()
