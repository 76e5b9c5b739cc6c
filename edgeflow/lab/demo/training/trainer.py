"""`train_demo` renders, trains vision, trains the whole policy and writes the checkpoint. It can be resumed at any
point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from edgeflow.engine.placement import choose_device
from edgeflow.lab.demo.training.batches import Batch, Prompts, draw_batch, make_prompts
from edgeflow.lab.demo.training.data import Dataset, make_dataset
from edgeflow.lab.demo.training.export import write_checkpoint
from edgeflow.lab.demo.training.losses import TrainingHeads, language_loss, vision_loss
from edgeflow.lab.demo.training.network import NetworkSize, PolicyNetwork
from edgeflow.lab.demo.training.tokenizer import prompt_ids, train_tokenizer
from edgeflow.lab.outputs import make_folder
from edgeflow.lab.training.learner import Learner
from edgeflow.lab.training.run import Phase, budget_share, cpu_seconds, rate_share, run_training, training_progress

FULL_MINUTES: Final = 30.0  # minutes of two cores that the counts below take; another budget scales them
STATES: Final = 60_000
VISION_STEPS: Final = 4_000
LANGUAGE_STEPS: Final = 2_600
BATCH: Final = 64
_PEAK_RATE, _VISION_FLOOR = 1.2e-3, 0.3  # learning rate, and its share at the end of the first phase
_WEIGHT_DECAY: Final = 0.02


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How much to render and how long to train."""

    states: int = STATES
    vision_steps: int = VISION_STEPS
    language_steps: int = LANGUAGE_STEPS
    batch: int = BATCH

    @property
    def phases(self) -> tuple[Phase, Phase]:
        """Vision, then the whole policy."""
        return Phase(self.vision_steps, floor=_VISION_FLOOR), Phase(self.language_steps)

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


def plan_for(minutes: float | None) -> TrainingPlan:
    """The full plan, or one scaled to a budget in minutes of two cores."""
    share = budget_share(minutes, FULL_MINUTES)
    return TrainingPlan(
        states=max(250, round(STATES * min(1.0, share))),
        vision_steps=max(1, round(VISION_STEPS * share)),
        language_steps=max(1, round(LANGUAGE_STEPS * share)),
    )


class TokenTrainer:
    """The network with its auxiliary heads, in training (lab/training/run.Trainer)."""

    def __init__(self, data: Dataset, plan: TrainingPlan, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        size = NetworkSize()
        self.tokenizer = train_tokenizer(size.text_vocab)
        self.network = PolicyNetwork(size).to(device)
        self.heads = TrainingHeads(size).to(device)
        self._data, self._plan, self._seed, self._device = data, plan, seed, torch.device(device)
        self._prompts: Prompts = make_prompts(partial(prompt_ids, self.tokenizer), sharing=True)
        named = dict([*self.network.named_parameters(), *self.heads.named_parameters(prefix="heads")])
        optimiser = torch.optim.AdamW(named.values(), betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY, fused=True)
        optimiser.param_groups[0]["peak"] = _PEAK_RATE
        self.learner = Learner(named, [optimiser], seed)

    def step(self) -> tuple[float, str]:
        """Train on one batch; return the loss and a note: in the language phase, the share of tokens within one bin."""
        rng = np.random.default_rng([self._seed, self.learner.done_steps])
        batch = draw_batch(self._data, self._prompts, self._plan.batch, rng).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss, note = self._loss(batch)
        return self.learner.update(loss, rate_share(self.learner.done_steps, self._plan.phases)), note

    def _loss(self, batch: Batch) -> tuple[Tensor, str]:
        tokens = self.network.image_tokens(batch.frames)
        vision = vision_loss(self.heads, tokens, batch, self.network.size.towers[0])
        if self.learner.done_steps < self._plan.vision_steps:
            return vision, "vision"
        language = language_loss(self.network, self.heads, tokens, batch, self._prompts)
        return vision + language.total, f"tokens near {float(language.near.mean()):.0%}"


def train_demo(out: Path, minutes: float | None, seed: int, resume: bool, device: str) -> Path:
    """Train the demo policy from scratch; return the checkpoint's folder, `out/policy`.

    minutes: budget in minutes of two cores, None for the full plan.

    resume: continue from `out/state.safetensors`.

    device: auto, cpu or cuda.

    Needs about 2 GB under `out` for rendered frames.
    """
    cpu_before, where = cpu_seconds(), str(choose_device(device))
    plan, state = plan_for(minutes), out / "state.safetensors"
    make_folder(out)
    with training_progress() as progress:
        bar = progress.add_task("frames", total=plan.states, note="")
        data = make_dataset(out / "data", plan.states, seed, lambda count: progress.advance(bar, count))
        trainer = TokenTrainer(data, plan, seed, where)
        run_training(trainer, plan.steps, state=state, resume=resume, progress=progress, cpu_before=cpu_before)
    return write_checkpoint(out / "policy", trainer.network, trainer.tokenizer, data)
