"""Training of a gate over batches of examples; the base's weights are only read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgeflow.kernels.kv.memory import GateLayer
from edgeflow.lab.training.gate.examples import Example, Group, grouped
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.whole_texts import run_whole_texts
from edgeflow.lab.training.learner import Learner
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import PARTS, GateRules, MemoryGate
from edgeflow_client.errors import ConfigError

Batches = Callable[[int], Sequence[Example]]
"""The examples of a step; the same step always has the same ones."""
LOGITS_AT_ONCE: Final = 1 << 26
WARM_UP: Final = 20  # steps
FLOOR: Final = 0.1  # of the peak rate, at the end
WIDTHS: Final = 4  # h / D
OPEN: Final = 0.0  # initial value of g: memory has a share of a half
NOISE: Final = 0.02  # deviation of the weights of spare hidden units


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """The length and the rates of a run."""

    steps: int
    rate: float = 0.005
    """The highest learning rate."""
    seed: int = 0
    checkpointing: bool = False
    """Compute layers twice, so that a long text needs little memory."""

    def share(self, step: int) -> float:
        """Share of the highest rate: a warm-up, then a cosine."""
        cosine = FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return min(1.0, (step + 1) / WARM_UP) * cosine


class GateTrainer:
    """A gate in training (lab/training/run.Trainer).

    gate: the initial gate; its tensors are copied. settings, contents: as in a `Learner`. last_loss: of the last step,
    None before the first.
    """

    def __init__(
        self,
        base: PlainBase,
        gate: MemoryGate,
        batches: Batches,
        plan: GatePlan,
        settings: Mapping[str, str] = MappingProxyType({}),
        contents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.last_loss: float | None = None
        self._base, self._batches, self.plan = base, batches, plan
        device = base.norm.device
        layers = [
            {part: nn.Parameter(each.detach().to(device, torch.float32, copy=True)) for part, each in own.items()}
            for own in (layer.tensors() for layer in gate.layers)
        ]
        self._gate = replace(gate, layers=tuple(GateLayer(**own) for own in layers))
        named = {f"{index}.{part}": own[part] for index, own in enumerate(layers) for part in PARTS}
        adam = torch.optim.Adam(named.values(), betas=(0.9, 0.98), foreach=True)
        adam.param_groups[0]["peak"] = plan.rate
        self.learner = Learner(named, [adam], plan.seed, settings, contents)

    @property
    def gate(self) -> MemoryGate:
        """A copy of the gate in its current state."""
        layers = (GateLayer(**{name: each.detach().clone() for name, each in own.items()}) for own in self._tensors())
        return replace(self._gate, layers=tuple(layers))

    def step(self) -> tuple[float, str]:
        """Train on one batch; return the mean loss of its learned tokens, and no note. A batch without learned tokens
        counts as a step.
        """
        groups = grouped(self._batches(self.learner.done_steps), self._gate.rules, self._base.norm.device)
        count, total = sum(len(group.targets) for group in groups), 0.0
        for group in groups:
            loss = self.loss(group) / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        if not math.isfinite(total):
            raise ConfigError(f"lr: the loss of step {self.learner.done_steps} is {total}: lower the learning rate")
        self.last_loss = total
        self.learner.apply(self.plan.share(self.learner.done_steps))
        return total, ""

    def loss(self, group: Group) -> Tensor:
        """The sum of the cross-entropies of a group's learned tokens."""
        whole = run_whole_texts(
            self._base,
            self._gate,
            group.ids,
            group.segments,
            needed=group.first,
            checkpointing=self.plan.checkpointing,
        )
        rows = whole.gated[group.texts, group.places - whole.skipped]
        at_once = max(1, LOGITS_AT_ONCE // self._base.config.vocab_size)
        if len(rows) <= at_once:
            return self._part_loss(rows, group.targets)
        parts = zip(torch.split(rows, at_once), torch.split(group.targets, at_once), strict=True)
        losses = [checkpoint(self._part_loss, *part, use_reentrant=False) for part in parts]
        return torch.stack(losses).sum()

    def _part_loss(self, rows: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self._base.logits(rows).float(), targets, reduction="sum")

    def _tensors(self) -> list[dict[str, Tensor]]:
        return [layer.tensors() for layer in self._gate.layers]


def initial_gate(config: LlamaConfig, rules: GateRules, seed: int, base_fingerprint: str = "") -> MemoryGate:
    """A gate in float32 with one MLP for all heads of a layer and g for each query head.

    Memory returns a mean of values, which the base's output projection can read. So the MLP starts as the identity:
    its first hidden units are relu(x) and relu(-x), whose difference is x. The others start at random, with almost no
    influence.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = tuple(_layer(config, generator) for _ in range(config.num_hidden_layers))
    return MemoryGate(
        rules=rules, layers=layers, mlp_hidden=WIDTHS * config.head_dim, base_fingerprint=base_fingerprint
    )


def _layer(config: LlamaConfig, generator: torch.Generator) -> GateLayer:
    width, spare = config.head_dim, (WIDTHS - 2) * config.head_dim
    same = torch.eye(width)
    w1 = torch.cat((same, -same, torch.randn(spare, width, generator=generator) / width**0.5))
    w2 = torch.cat((same, -same, NOISE * torch.randn(width, spare, generator=generator)), 1)
    return GateLayer(
        w1=w1[None],
        b1=torch.zeros(1, len(w1)),
        w2=w2[None],
        b2=torch.zeros(1, width),
        g=torch.full((config.num_attention_heads, width), OPEN),
    )
