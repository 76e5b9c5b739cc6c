"""`train_flow` renders, trains vision, trains the whole flow policy on single frames, then on motion, and writes the
checkpoint. It can be resumed at any point.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from edgeflow.engine.placement import choose_device
from edgeflow.lab.demo.flow_training.batches import BatchNormaliser, draw_flow_batch
from edgeflow.lab.demo.flow_training.chunks import ChunkLabels, label_all
from edgeflow.lab.demo.flow_training.data import FlowDataset, make_flow_dataset
from edgeflow.lab.demo.flow_training.export import write_flow_checkpoint
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.losses import (
    FlowHeads,
    auxiliary_loss,
    flow_loss,
    grid_of,
    motion_loss,
    tracking_loss,
)
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from edgeflow.lab.demo.flow_training.sequences import SequenceData, make_sequences
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids, train_tokenizer
from edgeflow.lab.demo.flow_training.windows import MotionBatch, draw_windows, state_rows
from edgeflow.lab.demo.training.batches import Prompts, make_prompts
from edgeflow.lab.demo.training.losses import vision_loss
from edgeflow.lab.outputs import make_folder
from edgeflow.lab.training.learner import Learner
from edgeflow.lab.training.run import Phase, budget_share, cpu_seconds, rate_share, run_training, training_progress

FULL_MINUTES: Final = 85.0  # minutes of two cores that the counts below take; another budget scales them
STATES: Final = 72_000
SEQUENCES: Final = 12_000
VISION_STEPS: Final = 2_600
FLOW_STEPS: Final = 1_600
TRACKING_STEPS: Final = 2_000
MOTION_STEPS: Final = 2_800
WHOLE_STEPS: Final = 550
FRAMES: Final = 64  # per batch
WINDOWS: Final = 32  # per batch
BRANCHES: Final = 2  # instructions per frame or window
HALVES: Final = 2  # of a batch, each computed by a thread
TIMINGS: Final = 4  # delays and numbers of kept rows per instruction of a window
SINGLE_FRAMES, TRACKING, WHOLE = 1, 2, 4  # phases, counted from 0
FIRST_ROWS: Final = 16  # of the chunks of single frames
_MATRIX_RATE, _VECTOR_RATE = 0.02, 1.2e-3  # peak learning rates: Muon's for hidden matrices, AdamW's for all others
_SCALED_SHARE: Final = 0.1  # share of AdamW's rate for weights that are multiplied by the root of the width
_VISION_FLOOR, _TRACKING_PEAK, _TRACKING_FLOOR = 0.3, 0.8, 0.3  # shares of the peak rates, as the next two
_MOTION_PEAK, _WHOLE_PEAK = 0.6, 0.25
_WEIGHT_DECAY: Final = 0.02
_TOKENS_AT_ONCE: Final = 32  # sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """How much to render and how long to train: vision; the whole policy on single frames; then, on windows of frames,
    the language model, which learns to track handles; all but vision, with delays and kept rows; and vision with it.
    """

    states: int = STATES
    sequences: int = SEQUENCES
    vision_steps: int = VISION_STEPS
    flow_steps: int = FLOW_STEPS
    tracking_steps: int = TRACKING_STEPS
    motion_steps: int = MOTION_STEPS
    whole_steps: int = WHOLE_STEPS
    frames: int = FRAMES
    windows: int = WINDOWS

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Vision, single frames, tracking, motion, and the whole."""
        return (
            Phase(self.vision_steps, floor=_VISION_FLOOR),
            Phase(self.flow_steps),
            Phase(self.tracking_steps, peak=_TRACKING_PEAK, floor=_TRACKING_FLOOR),
            Phase(self.motion_steps, peak=_MOTION_PEAK),
            Phase(self.whole_steps, peak=_WHOLE_PEAK),
        )

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


def plan_for(minutes: float | None) -> FlowPlan:
    """The full plan, or one scaled to a budget in minutes of two cores."""
    share = budget_share(minutes, FULL_MINUTES)
    return FlowPlan(
        states=max(250, round(STATES * min(1.0, share))),
        sequences=max(250, round(SEQUENCES * min(1.0, share))),
        vision_steps=max(1, round(VISION_STEPS * share)),
        flow_steps=max(1, round(FLOW_STEPS * share)),
        tracking_steps=max(1, round(TRACKING_STEPS * share)),
        motion_steps=max(1, round(MOTION_STEPS * share)),
        whole_steps=max(1, round(WHOLE_STEPS * share)),
    )


class FlowTrainer:
    """The network with its auxiliary heads, in training (lab/training/run.Trainer)."""

    def __init__(self, data: FlowDataset, sequences: SequenceData, plan: FlowPlan, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        size = FlowSize()
        self.tokenizer = train_tokenizer(size.vocab)
        self.network, self.heads = TrainedFlowNetwork(size).to(device), FlowHeads(size).to(device)
        self.labels: ChunkLabels = label_all(data, FIRST_ROWS)
        states = state_rows(sequences, np.random.default_rng(seed))
        self.normaliser = BatchNormaliser.of(size, data, self.labels, states)
        self._data, self._sequences = data, sequences
        self._plan, self._seed, self._device = plan, seed, torch.device(device)
        self._prompts: Prompts = make_prompts(partial(prompt_ids, self.tokenizer), sharing=False)
        heads = self.heads.named_parameters(prefix="heads")
        named: dict[str, nn.Parameter] = {**dict(self.network.named_parameters()), **dict(heads)}
        self.learner = Learner(named, _optimisers(named), seed)
        self._pool = ThreadPoolExecutor(HALVES)
        self._tokens: Tensor | None = None  # of all frames of the sequences, once the vision tower learns no more

    def step(self) -> tuple[float, str]:
        """Train on one batch; return the loss and a note.

        Each half of the batch has a separate thread, since operators this small gain little from more.
        """
        share = rate_share(self.learner.done_steps, self._plan.phases)
        if self._tokens is None and TRACKING <= self._phase < WHOLE:
            self._tokens = _all_tokens(self.network, self._sequences)
        halves = list(self._pool.map(self._half, range(HALVES)))
        self.learner.apply(share)
        return sum(loss for loss, _ in halves) / HALVES, halves[0][1]

    @property
    def _phase(self) -> int:
        ends = accumulate(phase.steps for phase in self._plan.phases)
        return sum(end <= self.learner.done_steps for end in ends)

    def _half(self, half: int) -> tuple[float, str]:
        """Compute the gradients of half a batch; return its loss and a note."""
        torch.set_num_threads(1)
        rng = np.random.default_rng([self._seed, self.learner.done_steps, half])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        loss, note = self._motion(rng, generator) if self._phase >= TRACKING else self._single_frames(rng, generator)
        (loss / HALVES).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), note

    def _single_frames(self, rng: np.random.Generator, generator: torch.Generator) -> tuple[Tensor, str]:
        batch = draw_flow_batch(
            self._data,
            self.labels,
            normaliser=self.normaliser,
            prompts=self._prompts,
            shape=(self._plan.frames // HALVES, BRANCHES),
            rng=rng,
        ).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False):
            tokens = self.network.image_tokens(batch.frames)
            vision = vision_loss(self.heads, tokens, batch, grid_of(self.network.size))
            if self._phase < SINGLE_FRAMES:
                return vision, "vision"
            flow = flow_loss(self.network, self.heads, tokens, batch, normaliser=self.normaliser, generator=generator)
        return vision + flow.total, flow.note

    def _motion(self, rng: np.random.Generator, generator: torch.Generator) -> tuple[Tensor, str]:
        batch = draw_windows(
            self._sequences,
            normaliser=self.normaliser,
            prompts=self._prompts,
            shape=(self._plan.windows // HALVES, BRANCHES, TIMINGS),
            rng=rng,
        ).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False):
            tokens = self._window_tokens(batch)
            if self._phase == TRACKING:
                _, regression, looking = tracking_loss(self.network, self.heads, tokens, batch)
                return auxiliary_loss(regression, looking), f"tracking, looking {float(looking.detach()):.3f}"
            flow = motion_loss(self.network, self.heads, tokens, batch, normaliser=self.normaliser, generator=generator)
        return flow.total, f"motion, {flow.note}"

    def _window_tokens(self, batch: MotionBatch) -> Tensor:
        """The image tokens `[B, 3 * I, E]` of windows, with gradients while the vision tower learns."""
        if self._tokens is not None and self._phase < WHOLE:
            return self._tokens[batch.rows.cpu(), batch.frames.cpu()].flatten(1, 2).to(self._device)
        images = torch.from_numpy(self._sequences.images[batch.rows.cpu().numpy(), batch.frames.cpu().numpy()])
        tokens = self.network.image_tokens(images.flatten(0, 1).to(self._device))
        return tokens.view(len(images), -1, tokens.shape[-1])


@torch.no_grad()
def _all_tokens(network: TrainedFlowNetwork, data: SequenceData) -> Tensor:
    """The image tokens `[sequences, FRAMES, I, E]` of all frames, in bfloat16 in the host's memory."""
    device = next(network.parameters()).device
    made = []
    with torch.autocast(device.type, torch.bfloat16):
        for begin in range(0, len(data), _TOKENS_AT_ONCE):
            frames = torch.from_numpy(np.array(data.images[begin : begin + _TOKENS_AT_ONCE]))
            tokens = network.image_tokens(frames.flatten(0, 1).to(device)).bfloat16().cpu()
            made.append(tokens.view(*frames.shape[:2], *tokens.shape[1:]))
    return torch.cat(made)


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

    Needs about 5 GB under `out` for rendered frames, and as much memory.
    """
    cpu_before, where = cpu_seconds(), str(choose_device(device))
    plan, state = plan_for(minutes), out / "flow-state.safetensors"
    make_folder(out)
    with training_progress() as progress:
        bar = progress.add_task("frames", total=plan.states, note="")
        data = make_flow_dataset(out / "flow-data", plan.states, seed, lambda count: progress.advance(bar, count))
        bar = progress.add_task("sequences", total=plan.sequences, note="")
        sequences = make_sequences(
            out / "flow-sequences", plan.sequences, seed, lambda count: progress.advance(bar, count)
        )
        trainer = FlowTrainer(data, sequences, plan, seed, where)
        run_training(trainer, plan.steps, state=state, resume=resume, progress=progress, cpu_before=cpu_before)
    return write_flow_checkpoint(out / "flow_policy", trainer.network, trainer.tokenizer, trainer.normaliser)
