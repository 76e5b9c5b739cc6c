"""Training losses of the flow policy: locating the handles, the flow of chunks, and where chunks lead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.lab.demo.flow_training.batches import BatchNormaliser, FlowBatch
from edgeflow.lab.demo.flow_training.layers import FlowSize, turn_of
from edgeflow.lab.demo.flow_training.network import Prefix, TrainedFlowNetwork
from edgeflow.lab.demo.training.actions import HIGH, LOW
from edgeflow.lab.demo.training.losses import Locator, patch_of, regression_loss, regressor
from edgeflow.lab.demo.training.network import TowerDimensions

DRAWS: Final = 2  # noises and times per chunk
EXPERT_DRAWS: Final = 4  # while only the expert is trained, which costs little compared with the prefix
_POINTING_LAYER: Final = 2  # the layer of the language model in which one head learns where to look
_LOOKING_WEIGHT, _REGRESSION_WEIGHT, _SUM_WEIGHT = 0.5, 1.0, 2.0
_TIME_POWER, _LEAST_TIME = 1.0 / 1.5, 1e-3  # times as published: Beta(1.5, 1), away from 0


class FlowHeads(Locator):
    """Auxiliary outputs, discarded after training: the locator's, and the whole motion to the grasp, regressed from
    the input of the last layer at the state's token.
    """

    def __init__(self, size: FlowSize) -> None:
        super().__init__(size.width)
        self.regressor = regressor(size.width)


@dataclass(frozen=True, slots=True)
class FlowLoss:
    """Terms of the loss of the flow policy."""

    flow: Tensor
    """Mean squared error of the velocity."""
    sums: Tensor
    """Loss of the motion that a chunk adds up to."""
    regression: Tensor
    looking: Tensor
    """Both: auxiliary losses."""
    off_m: Tensor
    """Mean distance in metres between the ends of predicted and expert chunks."""

    @property
    def total(self) -> Tensor:
        auxiliary = _REGRESSION_WEIGHT * self.regression + _LOOKING_WEIGHT * self.looking
        return self.flow + _SUM_WEIGHT * self.sums + auxiliary


def grid_of(size: FlowSize) -> TowerDimensions:
    """The grid of image tokens, as the locating losses take it."""
    return TowerDimensions(img_size=size.image, patch_size=size.patch * size.scale_factor)


def flow_loss(
    network: TrainedFlowNetwork,
    heads: FlowHeads,
    image_tokens: Tensor,
    batch: FlowBatch,
    *,
    normaliser: BatchNormaliser,
    generator: torch.Generator,
) -> FlowLoss:
    """The loss of all instructions of all images.

    Images and text see each other, so each instruction has a separate prefix, which its DRAWS noisy chunks share.
    """
    branches = batch.ids.shape[1]
    tokens, states = (each.repeat_interleave(branches, dim=0) for each in (image_tokens, batch.states))
    prefix = network.prefix(tokens, batch.ids.flatten(0, 1), states)
    flow, sums, off_m = _chunk_losses(network, prefix, batch, DRAWS, normaliser=normaliser, generator=generator)
    regression = regression_loss(heads.regressor(prefix.states[-1][:, -1]).float(), batch.answers.flatten(0, 1))
    return FlowLoss(flow, sums, regression, _looking_loss(network, prefix, batch), off_m)


def expert_loss(
    network: TrainedFlowNetwork, batch: FlowBatch, *, normaliser: BatchNormaliser, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The loss of only the expert, and off_m as in FlowLoss; the modules that compute the prefix do not learn."""
    branches = batch.ids.shape[1]
    with torch.no_grad():
        tokens, states = (
            each.repeat_interleave(branches, dim=0) for each in (network.image_tokens(batch.frames), batch.states)
        )
        prefix = network.prefix(tokens, batch.ids.flatten(0, 1), states)
    flow, sums, off_m = _chunk_losses(network, prefix, batch, EXPERT_DRAWS, normaliser=normaliser, generator=generator)
    return flow + _SUM_WEIGHT * sums, off_m


def _chunk_losses(
    network: TrainedFlowNetwork,
    prefix: Prefix,
    batch: FlowBatch,
    draws: int,
    *,
    normaliser: BatchNormaliser,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """The terms flow, sums and off_m of FlowLoss. Rows that a chunk keeps are clean, at time 0, and have no loss."""
    chunks = batch.chunks.flatten(0, 1)[:, None].expand(-1, draws, -1, -1)
    noise = torch.randn(chunks.shape, generator=generator).to(chunks.device)
    time = _draw_times(len(chunks), draws, generator).to(chunks.device)[..., None]
    free = (torch.arange(chunks.shape[2], device=chunks.device) >= batch.kept.flatten()[:, None, None]).float()
    times = time * free  # [B, R, C]
    t = times[..., None]
    noisy = t * noise + (1.0 - t) * chunks
    velocity = network.velocity(prefix, noisy, times).float()
    error = (velocity - (noise - chunks)).square().mean(dim=-1)
    flow = (error * free).sum() / free.expand_as(error).sum()
    sums, off_m = _sum_loss(noisy - t * velocity - chunks, normaliser)
    return flow, sums, off_m


def _draw_times(count: int, draws: int, generator: torch.Generator) -> Tensor:
    """Times `[count, draws]` from 0 to 1; each row has one from each of `draws` equal shares of the distribution."""
    share = (torch.arange(draws) + torch.rand(count, draws, generator=generator)) / draws
    return share**_TIME_POWER * (1.0 - _LEAST_TIME) + _LEAST_TIME


def _sum_loss(error: Tensor, normaliser: BatchNormaliser) -> tuple[Tensor, Tensor]:
    """Loss of where the rows lead, from the error `[..., C, A]` of clean chunks; and the distance at the end in
    metres.

    The sum neglects that earlier rows turn later ones.
    """
    std = torch.from_numpy(normaliser.action.std).float().to(error.device)[:6]
    drift = (error[..., :6] * std).cumsum(dim=-2)
    spread = (torch.tensor(HIGH) - torch.tensor(LOW)).to(error.device)[:6] / 2.0
    off = drift[..., -1, :3].detach().norm(dim=-1).mean()
    return regression_loss(drift / spread, torch.zeros_like(drift)), off


def _looking_loss(network: TrainedFlowNetwork, prefix: Prefix, batch: FlowBatch) -> Tensor:
    """From the name on, the first head of the pointing layer learns to look at the named handle."""
    size = network.size
    layer = network.vlm_with_expert.vlm.model.text_model.layers[_POINTING_LAYER]
    first = size.image_tokens + batch.named
    rows = prefix.states[_POINTING_LAYER][:, first:]
    positions = torch.arange(first, first + rows.shape[1], device=rows.device)[None]
    query = layer.heads_of(rows, turn_of(positions, size.head_dim))[0][:, 0]
    keys = prefix.layers[_POINTING_LAYER][0][:, 0, : size.image_tokens]
    scores = (query @ keys.transpose(1, 2)).float() * size.head_dim**-0.5
    patches = patch_of(batch.places.flatten(0, 1), grid_of(size))[:, None].expand(-1, rows.shape[1])
    return F.cross_entropy(scores.flatten(0, 1), patches.flatten())
