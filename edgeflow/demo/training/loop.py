"""`train_demo`: render, train vision, train the whole policy, write the checkpoint. Resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from rich.progress import Progress, TaskID
from torch import Tensor

from edgeflow.demo.training.batches import Batch, Prompts, draw_batch, make_prompts
from edgeflow.demo.training.data import Dataset, make_dataset
from edgeflow.demo.training.export import write_checkpoint
from edgeflow.demo.training.losses import TrainingHeads, language_loss, vision_loss
from edgeflow.demo.training.network import NetworkSize, PolicyNetwork
from edgeflow.demo.training.progress import cpu_seconds, training_progress
from edgeflow.demo.training.tokenizer import train_tokenizer
from edgeflow.demo.training_state import read_state, restore, training_tensors, write_state
from edgeflow.engine.device import choose_device
from edgeflow.errors import ConfigError

FULL_MINUTES: Final = 30.0  # of two cores, what the counts below take; another budget scales them
STATES: Final = 60_000
VISION_STEPS: Final = 4_000
LANGUAGE_STEPS: Final = 2_600
BATCH: Final = 64
_PEAK_RATE, _WARM_UP, _FLOOR = 1.2e-3, 100, 0.02  # learning rate; steps; share of the peak at the end
_WEIGHT_DECAY, _MAX_NORM = 0.02, 1.0
_SAVE_EVERY: Final = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to render and how long to train."""

    states: int = STATES
    vision_steps: int = VISION_STEPS
    language_steps: int = LANGUAGE_STEPS
    batch: int = BATCH

    @property
    def steps(self) -> int:
        return self.vision_steps + self.language_steps


def plan_for(minutes: float | None) -> Plan:
    """The full plan, or one scaled to a budget in minutes of two cores."""
    if minutes is None:
        return Plan()
    if minutes <= 0:
        raise ConfigError(f"minutes must be above 0, got {minutes}")
    share = minutes / FULL_MINUTES
    return Plan(
        states=max(250, round(STATES * min(1.0, share))),
        vision_steps=max(1, round(VISION_STEPS * share)),
        language_steps=max(1, round(LANGUAGE_STEPS * share)),
    )


class Trainer:
    """Network, heads and optimiser; one `step` is one batch, the same for the same seed and step number."""

    def __init__(self, data: Dataset, plan: Plan, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        size = NetworkSize()
        self.tokenizer = train_tokenizer(size.text_vocab)
        self.network = PolicyNetwork(size).to(device)
        self.heads = TrainingHeads(size).to(device)
        self.done_steps, self.cpu_seconds = 0, 0.0
        self._data, self._plan, self._seed, self._device = data, plan, seed, torch.device(device)
        self._prompts: Prompts = make_prompts(self.tokenizer)
        self._named = dict([*self.network.named_parameters(), *self.heads.named_parameters(prefix="heads")])
        self._optimiser = torch.optim.AdamW(
            self._named.values(), betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY, fused=True
        )

    def step(self) -> tuple[float, list[float]]:
        """Train on one batch; return the loss and, in the language phase, each token's share within one bin."""
        rng = np.random.default_rng([self._seed, self.done_steps])
        batch = draw_batch(self._data, self._prompts, self._plan.batch, rng).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss, close = self._loss(batch)
        for group in self._optimiser.param_groups:
            group["lr"] = _PEAK_RATE * rate_share(self.done_steps, self._plan)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._named.values(), _MAX_NORM)
        self._optimiser.step()
        self.done_steps += 1
        return float(loss.detach()), close

    def _loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        tokens = self.network.image_tokens(batch.frames)
        vision = vision_loss(self.heads, tokens, batch, self.network.size.towers[0])
        if self.done_steps < self._plan.vision_steps:
            return vision, []
        language = language_loss(self.network, self.heads, tokens, batch, self._prompts)
        return vision + language.total, language.near.tolist()

    def save(self, path: Path) -> None:
        """Everything `load` needs, in one safetensors file, replaced as a whole."""
        tensors = training_tensors(self._named, [self._optimiser])
        write_state(path, tensors, steps=self.done_steps, cpu_seconds=self.cpu_seconds, seed=self._seed)

    def load(self, path: Path) -> None:
        """Continue from the state that `save` wrote."""
        saved, self.done_steps, self.cpu_seconds = read_state(path, self._seed)
        restore(self._named, [self._optimiser], saved)


def rate_share(step: int, plan: Plan) -> float:
    """Share of the peak learning rate: a warm-up at the start of each phase, a cosine over each."""
    into, length = step, plan.vision_steps
    if step >= plan.vision_steps:
        into, length = step - plan.vision_steps, plan.language_steps
    floor = 0.3 if step < plan.vision_steps else _FLOOR
    cosine = floor + (1.0 - floor) * 0.5 * (1.0 + np.cos(np.pi * into / length))
    return float(min(1.0, (into + 1) / _WARM_UP) * cosine)


def train_demo(out: Path, minutes: float | None, seed: int, resume: bool, device: str) -> Path:
    """Train the demo policy from scratch; return the checkpoint's folder, `out/policy`.

    minutes: budget of two cores, None for the full plan. resume: continue from `out/state.safetensors`.
    device: auto, cpu or cuda. Needs about 2 GB under `out` for rendered frames.
    """
    cpu_before, where = cpu_seconds(), str(choose_device(device))
    plan, state = plan_for(minutes), out / "state.safetensors"
    out.mkdir(parents=True, exist_ok=True)
    with training_progress() as progress:
        bar = progress.add_task("frames", total=plan.states, note="")
        data = make_dataset(out / "data", plan.states, seed, lambda count: progress.advance(bar, count))
        trainer = Trainer(data, plan, seed, where)
        if resume and state.exists():
            trainer.load(state)
        cpu_before -= trainer.cpu_seconds
        bar = progress.add_task("training", total=plan.steps, note="")
        _train(trainer, plan, state, cpu_before, _reporter(progress, bar))
    trainer.save(state)
    return write_checkpoint(out / "policy", trainer.network, trainer.tokenizer, data)


def _reporter(progress: Progress, bar: TaskID) -> Callable[[int, str], None]:
    def report(steps: int, note: str) -> None:
        progress.update(bar, completed=steps, note=note)

    return report


def _train(trainer: Trainer, plan: Plan, state: Path, cpu_before: float, report: Callable[[int, str], None]) -> None:
    saved_at = time.monotonic()
    while trainer.done_steps < plan.steps:
        loss, close = trainer.step()
        phase = "actions" if close else "vision"
        report(
            trainer.done_steps, f"{phase} loss {loss:.3f}" + (f", tokens near {np.mean(close):.0%}" if close else "")
        )
        trainer.cpu_seconds = cpu_seconds() - cpu_before
        if time.monotonic() - saved_at > _SAVE_EVERY:
            trainer.save(state)
            saved_at = time.monotonic()
