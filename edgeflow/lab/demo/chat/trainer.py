"""`train_chat` generates conversations, trains one network and writes its checkpoint. A run can be resumed at any
point.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeflow.engine.placement import choose_device
from edgeflow.lab.demo.chat.batches import ASIDE, Batcher, ChatBatch
from edgeflow.lab.demo.chat.dialogs import DialogSource
from edgeflow.lab.demo.chat.export import write_chat_checkpoint
from edgeflow.lab.demo.chat.network import ChatNetwork, ChatSize
from edgeflow.lab.demo.chat.robot_state import MAX_OBJECTS
from edgeflow.lab.demo.chat.tokenizer import train_tokenizer
from edgeflow.lab.outputs import make_folder
from edgeflow.lab.training.learner import Learner
from edgeflow.lab.training.run import budget_share, cpu_seconds, run_training, training_progress

FULL_MINUTES: Final = 47.0  # CPU minutes that STEPS take; another budget scales them
STEPS: Final = 7_500
ROWS: Final = 8
TURNS: Final = 8
POOL: Final = 8  # batches generated together
_MATRIX_RATE, _VECTOR_RATE = 0.02, 2e-3  # peak learning rates: Muon's for hidden matrices, AdamW's for all others
_WARM_UP, _DECAY = 30, 0.5  # steps; share of the run over which the rate falls to nothing
_SHORT: Final = 0.1  # share of the run with few objects and repeated states
_HARD: Final = 1 / 3  # the last share of the run, which asks about near misses
_NEAR_MISSES: Final = 0.2


@dataclass(frozen=True, slots=True)
class ChatTrainingPlan:
    """The length of the training."""

    steps: int = STEPS
    rows: int = ROWS
    turns: int = TURNS


def plan_for(minutes: float | None) -> ChatTrainingPlan:
    """The full plan, or one scaled to a budget in minutes of one core."""
    return ChatTrainingPlan(steps=max(1, round(STEPS * budget_share(minutes, FULL_MINUTES))))


class ChatTrainer:
    """The network in training (lab/training/run.Trainer); its batches depend on the plan too."""

    def __init__(self, plan: ChatTrainingPlan, seed: int, size: ChatSize, device: str) -> None:
        torch.manual_seed(seed)
        self.tokenizer = train_tokenizer(seed)
        self.network = ChatNetwork(size).to(device)
        self._plan, self._seed, self._device = plan, seed, torch.device(device)
        self._batcher = Batcher(self.tokenizer)
        self._waiting: list[ChatBatch] = []
        named = dict(self.network.named_parameters())
        self.learner = Learner(named, optimisers_of(named), seed)

    def step(self) -> tuple[float, str]:
        """Train on one batch; return its loss and no note."""
        batch = self._batch()
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = answer_loss(self.network, batch, self._device)
        return self.learner.update(loss, rate_share(self.learner.done_steps, self._plan.steps)), ""

    def _batch(self) -> ChatBatch:
        """The next batch of the pool, in random order; also after `load`."""
        pool, place = divmod(self.learner.done_steps, POOL)
        if not self._waiting or place == 0:
            begins = pool * POOL < _SHORT * self._plan.steps
            ends = pool * POOL >= (1 - _HARD) * self._plan.steps
            source = DialogSource(
                f"{self._seed} {pool}",
                most_objects=2 if begins else MAX_OBJECTS,
                recite=begins,
                near_misses=_NEAR_MISSES if ends else 0.0,
            )
            self._waiting = self._batcher.draw(source, POOL, self._plan.rows, self._plan.turns)
            random.Random(pool).shuffle(self._waiting)
        return self._waiting[place]


def optimisers_of(named: Mapping[str, nn.Parameter], share: float = 1.0) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for everything else.

    share: of the peak learning rates.
    """
    hidden = [value for name, value in named.items() if ".layers." in name and value.ndim == 2]
    others = [value for name, value in named.items() if not (".layers." in name and value.ndim == 2)]
    matrices = torch.optim.Muon(hidden, weight_decay=0.01, adjust_lr_fn="original")
    vectors = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    matrices.param_groups[0]["peak"], vectors.param_groups[0]["peak"] = _MATRIX_RATE * share, _VECTOR_RATE * share
    return [matrices, vectors]


def answer_loss(network: ChatNetwork, batch: ChatBatch, device: torch.device) -> Tensor:
    """Mean cross-entropy of the tokens of answers."""
    targets = batch.targets.to(device)
    learned = targets != ASIDE
    logits = network.logits(network.hidden(batch.ids.to(device))[learned])
    return F.cross_entropy(logits.float(), targets[learned])


def rate_share(step: int, steps: int) -> float:
    """Share of the peak learning rate: a warm-up, a plateau, a straight fall."""
    return min(1.0, (step + 1) / _WARM_UP, (steps - step) / max(1.0, _DECAY * steps))


def train_chat(out: Path, minutes: float | None, seed: int, resume: bool, device: str) -> Path:
    """Train the demo chat model from scratch; return the checkpoint's folder, `out/chat`.

    minutes: budget of CPU minutes, None for the full plan.

    resume: continue from `out/chat-state.safetensors`.
    """
    cpu_before = cpu_seconds()
    plan, state = plan_for(minutes), out / "chat-state.safetensors"
    make_folder(out)
    trainer = ChatTrainer(plan, seed, ChatSize(), str(choose_device(device)))
    with training_progress() as progress:
        run_training(trainer, plan.steps, state=state, resume=resume, progress=progress, cpu_before=cpu_before)
    return write_chat_checkpoint(out / "chat", trainer.network, trainer.tokenizer)
