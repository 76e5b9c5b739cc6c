"""`train_flow`: render, train vision, train the whole flow policy, write the checkpoint. Resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from edgeflow.demo.flow_training.batches import Batch, Normaliser, Prompts, draw_batch, make_prompts
from edgeflow.demo.flow_training.chunks import Labels, label_all
from edgeflow.demo.flow_training.data import FlowDataset, make_flow_dataset
from edgeflow.demo.flow_training.export import write_flow_checkpoint
from edgeflow.demo.flow_training.losses import FlowHeads, expert_loss, flow_loss, grid_of
from edgeflow.demo.flow_training.network import FlowNetwork
from edgeflow.demo.flow_training.size import FlowSize
from edgeflow.demo.flow_training.tokenizer import train_tokenizer
from edgeflow.demo.training.losses import vision_loss
from edgeflow.demo.training.progress import cpu_seconds, training_progress
from edgeflow.demo.training_state import read_state, restore, training_tensors, write_state
from edgeflow.engine.device import choose_device
from edgeflow.errors import ConfigError

FULL_MINUTES: Final = 40.0  # of two cores, what the counts below take; another budget scales them
STATES: Final = 72_000
VISION_STEPS: Final = 2_600
FLOW_STEPS: Final = 1_600
CONTINUING_STEPS: Final = 700
FRAMES: Final = 64  # per batch
BRANCHES: Final = 2  # instructions per frame
_MATRIX_RATE, _VECTOR_RATE = 0.02, 1.2e-3  # peak learning rates: Muon's of hidden matrices, AdamW's of all else
_SCALED_SHARE: Final = 0.1  # of AdamW's rate, for what is multiplied by the root of the width
_WARM_UP: Final = 100  # steps
_VISION_FLOOR, _FLOOR = 0.3, 0.02  # share of the peak rate at the end of each phase
_CONTINUING_PEAK: Final = 0.5  # of the peak rate, for an expert that is trained already
_WEIGHT_DECAY, _MAX_NORM = 0.02, 1.0
_SAVE_EVERY: Final = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """How much to render, and how long to train: vision, then the whole policy, then the expert to continue chunks."""

    states: int = STATES
    vision_steps: int = VISION_STEPS
    flow_steps: int = FLOW_STEPS
    continuing_steps: int = CONTINUING_STEPS
    frames: int = FRAMES
    branches: int = BRANCHES

    @property
    def steps(self) -> int:
        return self.vision_steps + self.flow_steps + self.continuing_steps


def plan_for(minutes: float | None) -> FlowPlan:
    """The full plan, or one scaled to a budget in minutes of two cores."""
    if minutes is None:
        return FlowPlan()
    if minutes <= 0:
        raise ConfigError(f"minutes must be above 0, got {minutes}")
    share = minutes / FULL_MINUTES
    return FlowPlan(
        states=max(250, round(STATES * min(1.0, share))),
        vision_steps=max(1, round(VISION_STEPS * share)),
        flow_steps=max(1, round(FLOW_STEPS * share)),
        continuing_steps=max(1, round(CONTINUING_STEPS * share)),
    )


class FlowTrainer:
    """Network, heads and optimisers; one `step` is one batch, the same for the same seed and step number."""

    def __init__(self, data: FlowDataset, plan: FlowPlan, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        size = FlowSize()
        self.tokenizer = train_tokenizer(size.vocab)
        self.network, self.heads = FlowNetwork(size).to(device), FlowHeads(size).to(device)
        self.labels: Labels = label_all(data, size.chunk)
        self.normaliser = Normaliser.of(size, data, self.labels)
        self.done_steps, self.cpu_seconds = 0, 0.0
        self._data, self._plan, self._seed, self._device = data, plan, seed, torch.device(device)
        self._prompts: Prompts = make_prompts(self.tokenizer)
        heads = self.heads.named_parameters(prefix="heads")
        self._named: dict[str, nn.Parameter] = {**dict(self.network.named_parameters()), **dict(heads)}
        self._optimisers = _optimisers(self._named)

    def step(self) -> tuple[float, str]:
        """Train on one batch; return the loss, and what else there is to tell."""
        rng = np.random.default_rng([self._seed, self.done_steps])
        batch = draw_batch(
            self._data,
            self.labels,
            normaliser=self.normaliser,
            prompts=self._prompts,
            shape=(self._plan.frames, self._plan.branches),
            rng=rng,
            continuing=self._continuing,
        ).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss, note = self._loss(batch, torch.Generator().manual_seed(int(rng.integers(2**62))))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._named.values(), _MAX_NORM)
        share = rate_share(self.done_steps, self._plan)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * share
            optimiser.step()
            optimiser.zero_grad()
        self.done_steps += 1
        return float(loss.detach()), note

    @property
    def _continuing(self) -> bool:
        return self.done_steps >= self._plan.vision_steps + self._plan.flow_steps

    def _loss(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, str]:
        if self._continuing:
            loss, off_m = expert_loss(self.network, batch, normaliser=self.normaliser, generator=generator)
            return loss, f"continuing, off {1000 * float(off_m):.1f} mm"
        tokens = self.network.image_tokens(batch.frames)
        vision = vision_loss(self.heads, tokens, batch, grid_of(self.network.size))
        if self.done_steps < self._plan.vision_steps:
            return vision, ""
        flow = flow_loss(self.network, self.heads, tokens, batch, normaliser=self.normaliser, generator=generator)
        return vision + flow.total, f"flow {float(flow.flow.detach()):.3f}, off {1000 * float(flow.off_m):.1f} mm"

    def save(self, path: Path) -> None:
        """Everything `load` needs, in one safetensors file, replaced as a whole."""
        tensors = training_tensors(self._named, self._optimisers)
        write_state(path, tensors, steps=self.done_steps, cpu_seconds=self.cpu_seconds, seed=self._seed)

    def load(self, path: Path) -> None:
        """Continue from the state that `save` wrote."""
        saved, self.done_steps, self.cpu_seconds = read_state(path, self._seed)
        restore(self._named, self._optimisers, saved)


def _optimisers(named: dict[str, nn.Parameter]) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of layers, AdamW for the rest, slower for what is multiplied by the root of the width."""
    matrices = {name: each for name, each in named.items() if ".layers." in name and each.dim() == 2}
    rest = {name: each for name, each in named.items() if name not in matrices}
    scaled = {name for name in rest if "embed_tokens" in name or "modality_projection" in name}
    groups = [
        {"params": [each for name, each in rest.items() if name not in scaled], "peak": _VECTOR_RATE},
        {"params": [rest[name] for name in sorted(scaled)], "peak": _SCALED_SHARE * _VECTOR_RATE},
    ]
    muon = torch.optim.Muon(matrices.values(), weight_decay=0.01, adjust_lr_fn="original")
    muon.param_groups[0]["peak"] = _MATRIX_RATE
    return muon, torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY, fused=True)


def rate_share(step: int, plan: FlowPlan) -> float:
    """Share of the peak learning rate: a warm-up at the start of each phase, a cosine over each."""
    into, length, peak, floor = step, plan.vision_steps, 1.0, _VISION_FLOOR
    if into >= length:
        into, length, floor = into - length, plan.flow_steps, _FLOOR
        if into >= length:
            into, length, peak = into - length, plan.continuing_steps, _CONTINUING_PEAK
    cosine = floor + (peak - floor) * 0.5 * (1.0 + np.cos(np.pi * into / length))
    return float(min(1.0, (into + 1) / _WARM_UP) * cosine)


def train_flow(out: Path, minutes: float | None, seed: int, resume: bool, device: str) -> Path:
    """Train the flow policy from scratch; return the checkpoint's folder, `out/flow_policy`.

    minutes: budget of two cores, None for the full plan. resume: continue from `out/flow-state.safetensors`.
    device: auto, cpu or cuda. Needs about 2 GB under `out` for rendered frames, and as much memory.
    """
    cpu_before, where = cpu_seconds(), str(choose_device(device))
    plan, state = plan_for(minutes), out / "flow-state.safetensors"
    out.mkdir(parents=True, exist_ok=True)
    with training_progress() as progress:
        bar = progress.add_task("frames", total=plan.states, note="")
        data = make_flow_dataset(out / "flow-data", plan.states, seed, lambda count: progress.advance(bar, count))
        trainer = FlowTrainer(data, plan, seed, where)
        if resume and state.exists():
            trainer.load(state)
        cpu_before -= trainer.cpu_seconds
        bar = progress.add_task("training", total=plan.steps, note="")
        _train(trainer, plan, state, cpu_before, lambda steps, note: progress.update(bar, completed=steps, note=note))
    trainer.save(state)
    return write_flow_checkpoint(out / "flow_policy", trainer.network, trainer.tokenizer, trainer.normaliser)


def _train(
    trainer: FlowTrainer, plan: FlowPlan, state: Path, cpu_before: float, report: Callable[[int, str], None]
) -> None:
    saved_at = time.monotonic()
    while trainer.done_steps < plan.steps:
        loss, note = trainer.step()
        phase = "actions" if note else "vision"
        report(trainer.done_steps, f"{phase} loss {loss:.3f}" + (f", {note}" if note else ""))
        trainer.cpu_seconds = cpu_seconds() - cpu_before
        if time.monotonic() - saved_at > _SAVE_EVERY:
            trainer.save(state)
            saved_at = time.monotonic()
