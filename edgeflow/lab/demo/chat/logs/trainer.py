"""`train_logs` trains the embedded chat model further, on logs and on single states. A run can be resumed at any
point.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from edgeflow.engine.placement import choose_device
from edgeflow.lab.demo.chat.batches import Batcher, ChatBatch
from edgeflow.lab.demo.chat.dialogs import Dialog, DialogSource
from edgeflow.lab.demo.chat.export import write_chat_checkpoint
from edgeflow.lab.demo.chat.logs.dialogs import draw_dialog
from edgeflow.lab.demo.chat.network import ChatNetwork, ChatSize
from edgeflow.lab.demo.chat.trainer import answer_loss, optimisers_of, rate_share
from edgeflow.lab.outputs import make_folder
from edgeflow.lab.training.learner import Learner
from edgeflow.lab.training.run import budget_share, cpu_seconds, run_training, training_progress
from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_CHAT_MODEL, resolve_model
from edgeflow.models.checkpoint import read_tensors
from edgeflow.models.memory_gate import base_fingerprint
from edgeflow_client.errors import ConfigError

FULL_MINUTES: Final = 50.0  # CPU minutes that STEPS take; another budget scales them
STEPS: Final = 2_000
LONGEST: Final = 2_040  # tokens of a conversation about a log
_BATCH_TOKENS: Final = 4_096
_STATES: Final = 1 / 3  # share of the batches that are about single states, like those of the first training
_SHORTEST, _SHORT, _SHORT_SHARE = 160, 700, 0.65  # most batches are of short logs, which teach more per second
_ROWS, _TURNS, _NEAR_MISSES = 8, 8, 0.2  # of those batches
_RATE: Final = 0.5  # the peak learning rates as a share of those of the first training
_CURRICULUM: Final = ((0.12, 320), (0.3, 640), (0.5, 1_200), (1.0, LONGEST))  # longest conversation up to a share


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The length of the training, and of its longest conversations."""

    steps: int = STEPS
    longest: int = LONGEST
    batch_tokens: int = _BATCH_TOKENS


class LogTrainer:
    """The network in training (lab/training/run.Trainer).

    begin: folder of the checkpoint that is trained further.
    """

    def __init__(self, plan: LogPlan, seed: int, device: str, begin: Path = EMBEDDED_CHAT_MODEL) -> None:
        self.tokenizer = Tokenizer.from_file(str(EMBEDDED_CHAT_MODEL / "tokenizer.json"))
        self.network = ChatNetwork(ChatSize())
        _load(self.network, begin)
        self.network.to(device)
        self._plan, self._seed, self._device = plan, seed, torch.device(device)
        self._batcher = Batcher(self.tokenizer)
        named = dict(self.network.named_parameters())
        contents = {"begin": base_fingerprint(begin)}
        self.learner = Learner(named, optimisers_of(named, _RATE), seed, contents=contents)

    def step(self) -> tuple[float, str]:
        """Train on one batch; return its loss and what it was about."""
        step = self.learner.done_steps
        rng = random.Random(f"{self._seed} logs {step}")
        if rng.random() < _STATES:
            batch, note = self._states(rng), "states"
        else:
            dialogs = self._dialogs(rng, step / self._plan.steps)
            batch, note = self._batcher.pack(dialogs), "logs"
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = answer_loss(self.network, batch, self._device)
        length = "x".join(map(str, batch.ids.shape))
        return self.learner.update(loss, rate_share(step, self._plan.steps)), f"{note} {length}"

    def _states(self, rng: random.Random) -> ChatBatch:
        source = DialogSource(rng.randrange(2**62), near_misses=_NEAR_MISSES)
        return self._batcher.pack([source.draw(_TURNS) for _ in range(_ROWS)])

    def _dialogs(self, rng: random.Random, share: float) -> list[Dialog]:
        """Conversations of similar length that fill a batch."""
        longest = min(self._plan.longest, next(tokens for until, tokens in _CURRICULUM if share < until))
        tokens = rng.randint(_SHORTEST, min(longest, _SHORT) if rng.random() < _SHORT_SHARE else longest)
        return [draw_dialog(rng, tokens) for _ in range(max(1, self._plan.batch_tokens // tokens))]


def _load(network: ChatNetwork, folder: Path) -> None:
    path, needed = folder / "model.safetensors", network.state_dict()
    if not path.is_file():
        raise ConfigError(f"begin: {folder} has no model.safetensors")
    weights = read_tensors(path)
    if {name: each.shape for name, each in weights.items()} != {name: each.shape for name, each in needed.items()}:
        raise ConfigError(f"begin: {folder} has other tensors than the embedded chat model")
    network.load_state_dict({name: weight.float() for name, weight in weights.items()})


def plan_for(minutes: float | None) -> LogPlan:
    """The full plan, or one scaled to a budget in minutes of one core."""
    return LogPlan(steps=max(1, round(STEPS * budget_share(minutes, FULL_MINUTES))))


def train_logs(
    out: Path, minutes: float | None, seed: int, resume: bool, device: str, begin: str | None = None
) -> Path:
    """Train the embedded chat model on logs; return the checkpoint's folder, `out/log-chat`.

    minutes: budget of CPU minutes, None for the full plan.

    resume: continue from `out/log-chat-state.safetensors`.

    begin: the checkpoint to train further, a folder or an embedded model's name, None for demo-chat; ConfigError for
    one of another layout.
    """
    cpu_before = cpu_seconds()
    plan, state = plan_for(minutes), out / "log-chat-state.safetensors"
    make_folder(out)
    folder = resolve_model(begin or EMBEDDED_CHAT, chat=True)
    trainer = LogTrainer(plan, seed, str(choose_device(device)), folder)
    with training_progress() as progress:
        run_training(trainer, plan.steps, state=state, resume=resume, progress=progress, cpu_before=cpu_before)
    return write_chat_checkpoint(out / "log-chat", trainer.network, trainer.tokenizer)
