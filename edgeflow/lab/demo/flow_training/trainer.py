"""`train_flow` renders, trains vision, trains the whole flow policy and writes the checkpoint. It can be resumed at
any point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from edgeflow.engine.placement import choose_device
from edgeflow.lab.demo.flow_training.batches import BatchNormaliser, FlowBatch, draw_flow_batch
from edgeflow.lab.demo.flow_training.chunks import ChunkLabels, label_all
from edgeflow.lab.demo.flow_training.data import FlowDataset, make_flow_dataset
from edgeflow.lab.demo.flow_training.export import write_flow_checkpoint
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.losses import FlowHeads, expert_loss, flow_loss, grid_of
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids, train_tokenizer
from edgeflow.lab.demo.training.batches import Prompts, make_prompts
from edgeflow.lab.demo.training.losses import vision_loss
from edgeflow.lab.outputs import make_folder
from edgeflow.lab.training.learner import Learner
from edgeflow.lab.training.run import Phase, budget_share, cpu_seconds, rate_share, run_training, training_progress

FULL_MINUTES: Final = 45.0  # minutes of two cores that the counts below take; another budget scales them
STATES: Final = 72_000
VISION_STEPS: Final = 2_600
FLOW_STEPS: Final = 1_600
CONTINUING_STEPS: Final = 750
FRAMES: Final = 64  # per batch
BRANCHES: Final = 2  # instructions per frame
_MATRIX_RATE, _VECTOR_RATE = 0.02, 1.2e-3  # peak learning rates: Muon's for hidden matrices, AdamW's for all others
_SCALED_SHARE: Final = 0.1  # share of AdamW's rate for weights that are multiplied by the root of the width
_VISION_FLOOR, _CONTINUING_PEAK = 0.3, 0.5  # shares of the peak rates
_WEIGHT_DECAY: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """How much to render and how long to train: vision, then the whole policy, then the expert continuing chunks."""

    states: int = STATES
    vision_steps: int = VISION_STEPS
    flow_steps: int = FLOW_STEPS
    continuing_steps: int = CONTINUING_STEPS
    frames: int = FRAMES
    branches: int = BRANCHES

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        """Vision, the whole policy, and only the trained expert."""
        return (
            Phase(self.vision_steps, floor=_VISION_FLOOR),
            Phase(self.flow_steps),
            Phase(self.continuing_steps, peak=_CONTINUING_PEAK),
        )

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


def plan_for(minutes: float | None) -> FlowPlan:
    """The full plan, or one scaled to a budget in minutes of two cores."""
    share = budget_share(minutes, FULL_MINUTES)
    return FlowPlan(
        states=max(250, round(STATES * min(1.0, share))),
        vision_steps=max(1, round(VISION_STEPS * share)),
        flow_steps=max(1, round(FLOW_STEPS * share)),
        continuing_steps=max(1, round(CONTINUING_STEPS * share)),
    )


class FlowTrainer:
    """The network with its auxiliary heads, in training (lab/training/run.Trainer)."""

    def __init__(self, data: FlowDataset, plan: FlowPlan, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        size = FlowSize()
        self.tokenizer = train_tokenizer(size.vocab)
        self.network, self.heads = TrainedFlowNetwork(size).to(device), FlowHeads(size).to(device)
        self.labels: ChunkLabels = label_all(data, size.chunk)
        self.normaliser = BatchNormaliser.of(size, data, self.labels)
        self._data, self._plan, self._seed, self._device = data, plan, seed, torch.device(device)
        self._prompts: Prompts = make_prompts(partial(prompt_ids, self.tokenizer), sharing=False)
        heads = self.heads.named_parameters(prefix="heads")
        named: dict[str, nn.Parameter] = {**dict(self.network.named_parameters()), **dict(heads)}
        self.learner = Learner(named, _optimisers(named), seed)

    def step(self) -> tuple[float, str]:
        """Train on one batch; return the loss and a note."""
        rng = np.random.default_rng([self._seed, self.learner.done_steps])
        batch = draw_flow_batch(
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
        return self.learner.update(loss, rate_share(self.learner.done_steps, self._plan.phases)), note

    @property
    def _continuing(self) -> bool:
        return self.learner.done_steps >= self._plan.vision_steps + self._plan.flow_steps

    def _loss(self, batch: FlowBatch, generator: torch.Generator) -> tuple[Tensor, str]:
        if self._continuing:
            loss, off_m = expert_loss(self.network, batch, normaliser=self.normaliser, generator=generator)
            return loss, f"continuing, off {1000 * float(off_m):.1f} mm"
        tokens = self.network.image_tokens(batch.frames)
        vision = vision_loss(self.heads, tokens, batch, grid_of(self.network.size))
        if self.learner.done_steps < self._plan.vision_steps:
            return vision, "vision"
        flow = flow_loss(self.network, self.heads, tokens, batch, normaliser=self.normaliser, generator=generator)
        return vision + flow.total, f"flow {float(flow.flow.detach()):.3f}, off {1000 * float(flow.off_m):.1f} mm"


def _optimisers(named: dict[str, nn.Parameter]) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of layers; AdamW for the rest, slower for weights that are multiplied by the root of the
    width.
    """
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


def train_flow(out: Path, minutes: float | None, seed: int, resume: bool, device: str) -> Path:
    """Train the flow policy from scratch; return the checkpoint's folder, `out/flow_policy`.

    minutes: budget in minutes of two cores, None for the full plan.

    resume: continue from `out/flow-state.safetensors`.

    device: auto, cpu or cuda.

    Needs about 2 GB under `out` for rendered frames, and as much memory.
    """
    cpu_before, where = cpu_seconds(), str(choose_device(device))
    plan, state = plan_for(minutes), out / "flow-state.safetensors"
    make_folder(out)
    with training_progress() as progress:
        bar = progress.add_task("frames", total=plan.states, note="")
        data = make_flow_dataset(out / "flow-data", plan.states, seed, lambda count: progress.advance(bar, count))
        trainer = FlowTrainer(data, plan, seed, where)
        run_training(trainer, plan.steps, state=state, resume=resume, progress=progress, cpu_before=cpu_before)
    return write_flow_checkpoint(out / "flow_policy", trainer.network, trainer.tokenizer, trainer.normaliser)
