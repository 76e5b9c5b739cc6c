"""`train_chat`: generates conversations, trains one network and writes its checkpoint. Resumable at any point."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from edgeflow.demo.chat.batches import ASIDE, Batcher, ChatBatch
from edgeflow.demo.chat.dialogs import DialogSource
from edgeflow.demo.chat.export import write_chat_checkpoint
from edgeflow.demo.chat.network import ChatNetwork, ChatSize
from edgeflow.demo.chat.state import MAX_OBJECTS
from edgeflow.demo.chat.tokenizer import train_tokenizer
from edgeflow.demo.training_state import read_state, restore, training_tensors, write_state
from edgeflow.engine.device import choose_device
from edgeflow.errors import ConfigError

FULL_MINUTES: Final = 47.0  # of one core, what STEPS take; another budget scales them
STEPS: Final = 7_500
ROWS: Final = 8
TURNS: Final = 8
POOL: Final = 8  # batches drawn together
_MATRIX_RATE, _VECTOR_RATE = 0.02, 2e-3  # peak learning rates: Muon's of hidden matrices, AdamW's of all else
_WARM_UP, _DECAY = 30, 0.5  # steps; share of the run over which the rate falls to nothing
_SHORT: Final = 0.1  # share of the run with few objects, and states repeated
_HARD: Final = 1 / 3  # share of the run, its end, that asks for what is nearly there
_NEAR_MISSES: Final = 0.2
_MAX_NORM: Final = 1.0
_SAVE_EVERY: Final = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """The length of the training."""

    steps: int = STEPS
    rows: int = ROWS
    turns: int = TURNS


def plan_for(minutes: float | None) -> ChatPlan:
    """The full plan, or one scaled to a budget in minutes of one core."""
    if minutes is None:
        return ChatPlan()
    if minutes <= 0:
        raise ConfigError(f"minutes must be above 0, got {minutes}")
    return ChatPlan(steps=max(1, round(STEPS * minutes / FULL_MINUTES)))


class ChatTrainer:
    """Network and optimisers; one `step` is one batch, the same for the same seed, plan and step number."""

    def __init__(self, plan: ChatPlan, seed: int, size: ChatSize, device: str) -> None:
        torch.manual_seed(seed)
        self.tokenizer = train_tokenizer(seed)
        self.network = ChatNetwork(size).to(device)
        self.done_steps, self.cpu_seconds = 0, 0.0
        self._plan, self._seed, self._device = plan, seed, torch.device(device)
        self._batcher = Batcher(self.tokenizer)
        self._waiting: list[ChatBatch] = []
        self._named = dict(self.network.named_parameters())
        hidden = [value for name, value in self._named.items() if ".layers." in name and value.ndim == 2]
        others = [value for name, value in self._named.items() if not (".layers." in name and value.ndim == 2)]
        self._optimisers: dict[float, torch.optim.Optimizer] = {
            _MATRIX_RATE: torch.optim.Muon(hidden, weight_decay=0.01, adjust_lr_fn="original"),
            _VECTOR_RATE: torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
        }

    def step(self) -> float:
        """Train on one batch; its loss."""
        batch = self._batch()
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = answer_loss(self.network, batch, self._device)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), _MAX_NORM)
        for rate, optimiser in self._optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = rate * rate_share(self.done_steps, self._plan.steps)
            optimiser.step()
            optimiser.zero_grad()
        self.done_steps += 1
        return float(loss.detach())

    def _batch(self) -> ChatBatch:
        """The next batch of the pool, in random order; also after `load`."""
        pool, place = divmod(self.done_steps, POOL)
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

    def save(self, path: Path) -> None:
        """Everything `load` needs, in one safetensors file, replaced as a whole."""
        tensors = training_tensors(self._named, self._optimisers.values())
        write_state(path, tensors, steps=self.done_steps, cpu_seconds=self.cpu_seconds, seed=self._seed)

    def load(self, path: Path) -> None:
        """Continue from the state that `save` wrote."""
        saved, self.done_steps, self.cpu_seconds = read_state(path, self._seed)
        restore(self._named, self._optimisers.values(), saved)


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
    """Make the demo chat model from nothing; the folder of the checkpoint, `out/chat`.

    minutes: budget of one core, None for the full plan. resume: go on from `out/chat-state.safetensors`.
    """
    plan, state = plan_for(minutes), out / "chat-state.safetensors"
    out.mkdir(parents=True, exist_ok=True)
    trainer = ChatTrainer(plan, seed, ChatSize(), str(choose_device(device)))
    if resume and state.exists():
        trainer.load(state)
    _train(trainer, plan, state)
    trainer.save(state)
    return write_chat_checkpoint(out / "chat", trainer.network, trainer.tokenizer)


def _train(trainer: ChatTrainer, plan: ChatPlan, state: Path) -> None:
    cpu_before, saved_at = time.process_time() - trainer.cpu_seconds, time.monotonic()
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}")) as progress:
        bar = progress.add_task("training", total=plan.steps, note="", completed=trainer.done_steps)
        while trainer.done_steps < plan.steps:
            loss = trainer.step()
            trainer.cpu_seconds = time.process_time() - cpu_before
            progress.update(bar, completed=trainer.done_steps, note=f"loss {loss:.4f}")
            if time.monotonic() - saved_at > _SAVE_EVERY:
                trainer.save(state)
                saved_at = time.monotonic()
