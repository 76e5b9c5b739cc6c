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
from edgeflow.lab.demo.flow_training.windows import AHEAD_S, HISTORY, MotionBatch
from edgeflow.lab.demo.training.actions import HIGH, LOW
from edgeflow.lab.demo.training.losses import FINE, Locator, patch_of, regression_loss, regressor
from edgeflow.lab.demo.training.network import TowerDimensions

DRAWS: Final = 2  # noises and times per chunk
_POINTING_LAYER: Final = 2  # the layer of the language model in which a head learns where to look
_TRACKING_LAYERS: Final = (1, 2)  # those in which a head for each frame does, so that later ones can compute motion
_PLACING_LAYER: Final = 3  # the layer from whose input at the name auxiliary outputs place the handle in each frame
_MAPPING_LAYER: Final = 4  # the layer from whose input at the state they place it in the base frame
_METRES, _SPEED = 0.2, 0.13  # metres and m/s that count as 1 in the auxiliary losses
_MOVED: Final = 0.25  # share of _METRES that counts as 1 for motion between frames
_LOOKING_WEIGHT, _REGRESSION_WEIGHT = 0.5, 1.0
_SUM_WEIGHT, _MOTION_SUM_WEIGHT = 2.0, 6.0  # for single frames, and for windows
_TIME_POWER, _LEAST_TIME = 1.0 / 1.5, 1e-3  # times as published: Beta(1.5, 1), away from 0


class FlowHeads(Locator):
    """Auxiliary outputs, discarded after training: the locator's; from the name's token, the handle's place in each
    frame; from the state's token, its place and velocity in the base frame, where the walls are, then those in the
    tool's frame and its later places there, or for a single frame the whole motion to the grasp.
    """

    def __init__(self, size: FlowSize) -> None:
        super().__init__(size.width)
        self.regressor = regressor(size.width)
        self.placer = regressor(size.width, 3 * HISTORY)
        self.mapper = regressor(size.width, 4)
        self.forecaster = regressor(size.width, 3 * (1 + len(AHEAD_S)))


@dataclass(frozen=True, slots=True, kw_only=True)
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
    sum_weight: float = _SUM_WEIGHT

    @property
    def total(self) -> Tensor:
        return self.flow + self.sum_weight * self.sums + auxiliary_loss(self.regression, self.looking)

    @property
    def note(self) -> str:
        return f"flow {float(self.flow.detach()):.3f}, off {1000 * float(self.off_m):.1f} mm"


def auxiliary_loss(regression: Tensor, looking: Tensor) -> Tensor:
    """The weighted sum of the auxiliary losses."""
    return _REGRESSION_WEIGHT * regression + _LOOKING_WEIGHT * looking


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
    chunks = batch.chunks.flatten(0, 1)[:, None].expand(-1, DRAWS, -1, -1)
    whole = torch.ones(chunks.shape[:-1], device=chunks.device)
    flow, sums, off_m = _chunk_losses(network, prefix, chunks, whole, normaliser=normaliser, generator=generator)
    regression = regression_loss(heads.regressor(prefix.states[-1][:, -1]).float(), batch.answers.flatten(0, 1))
    looking = _looking_loss(
        network, prefix, batch.places.flatten(0, 1)[:, None], named=batch.named, layer=_POINTING_LAYER
    )
    return FlowLoss(flow=flow, sums=sums, regression=regression, looking=looking, off_m=off_m)


def tracking_loss(
    network: TrainedFlowNetwork, heads: FlowHeads, image_tokens: Tensor, batch: MotionBatch
) -> tuple[Prefix, Tensor, Tensor]:
    """The prefix of all instructions of all windows, and two auxiliary losses: where the handle is in each frame, how
    it moves and where it will be; and where to look.

    image_tokens: `[B, 3 * I, E]`, the oldest frame first.
    """
    tokens = image_tokens.float().repeat_interleave(batch.ids.shape[1], dim=0)
    prefix = network.prefix(tokens, batch.ids.flatten(0, 1), batch.states.flatten(0, 1))
    forecast = heads.forecaster(prefix.states[-1][:, -prefix.own :]).float()
    velocity = (batch.velocity.flatten(0, 1) / _SPEED)[:, None].expand(-1, prefix.own, -1)
    ahead = batch.ahead.flatten(0, 1).flatten(2) / _METRES
    forecasting = regression_loss(forecast, torch.cat([velocity, ahead], dim=-1))
    mapped = heads.mapper(prefix.states[_MAPPING_LAYER][:, -prefix.own :]).float()
    on_map = batch.on_map.flatten(0, 1) / torch.tensor([_METRES, _METRES, _SPEED, _SPEED], device=mapped.device)
    mapping = regression_loss(mapped, on_map[:, None].expand_as(mapped))
    placed = heads.placer(prefix.states[_PLACING_LAYER][:, tokens.shape[1] + batch.named]).float()
    visible = batch.visible.flatten(0, 1)
    off = placed.unflatten(1, (HISTORY, 3)) - batch.places.flatten(0, 1) / _METRES
    moved, both = (off[:, 1:] - off[:, :1]) / _MOVED, visible[:, 1:] & visible[:, :1]
    placing = sum(regression_loss(each, torch.zeros_like(each)) for each in (off[visible], moved[both]))
    pixels = batch.pixels.flatten(0, 1)
    looking = [
        _looking_loss(network, prefix, pixels, named=batch.named, layer=each, visible=visible)
        for each in _TRACKING_LAYERS
    ]
    return prefix, forecasting + mapping + placing, torch.stack(looking).mean()


def motion_loss(
    network: TrainedFlowNetwork,
    heads: FlowHeads,
    image_tokens: Tensor,
    batch: MotionBatch,
    *,
    normaliser: BatchNormaliser,
    generator: torch.Generator,
) -> FlowLoss:
    """The loss of all chunks of all instructions of all windows. Kept rows are clean, at time 0, and have no loss."""
    prefix, regression, looking = tracking_loss(network, heads, image_tokens, batch)
    chunks, weights = batch.chunks.flatten(0, 1), batch.weights.flatten(0, 1)
    free = torch.arange(chunks.shape[2], device=chunks.device) >= batch.kept.flatten(0, 1)[..., None]
    flow, sums, off_m = _chunk_losses(
        network, prefix, chunks, weights * free, normaliser=normaliser, generator=generator
    )
    return FlowLoss(
        flow=flow, sums=sums, regression=regression, looking=looking, off_m=off_m, sum_weight=_MOTION_SUM_WEIGHT
    )


def _chunk_losses(
    network: TrainedFlowNetwork,
    prefix: Prefix,
    chunks: Tensor,
    weights: Tensor,
    *,
    normaliser: BatchNormaliser,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """The terms flow, sums and off_m of FlowLoss, of chunks `[B, M, C, A]` whose rows have weights `[B, M, C]`.

    Rows of weight 0 are clean, at time 0.
    """
    noise = torch.randn(chunks.shape, generator=generator).to(chunks.device)
    times = _draw_times(chunks.shape[0], chunks.shape[1], generator).to(chunks.device)[..., None] * (weights > 0)
    t = times[..., None]
    noisy = t * noise + (1.0 - t) * chunks
    velocity = network.velocity(prefix, noisy, times).float()
    error = (velocity - (noise - chunks)).square().mean(dim=-1)
    flow = (error * weights).sum() / weights.sum()
    sums, off_m = _sum_loss(noisy - t * velocity - chunks, weights, normaliser)
    return flow, sums, off_m


def _draw_times(count: int, draws: int, generator: torch.Generator) -> Tensor:
    """Times `[count, draws]` from 0 to 1; each row has one from each of `draws` equal shares of the distribution."""
    share = (torch.arange(draws) + torch.rand(count, draws, generator=generator)) / draws
    return share**_TIME_POWER * (1.0 - _LEAST_TIME) + _LEAST_TIME


def _sum_loss(error: Tensor, weights: Tensor, normaliser: BatchNormaliser) -> tuple[Tensor, Tensor]:
    """Loss of where the rows lead, from the error `[..., C, A]` of clean chunks; and the distance in metres at the
    last row of full weight.

    The sum neglects that earlier rows turn later ones.
    """
    std = torch.from_numpy(normaliser.action.std).float().to(error.device)[:6]
    drift = (error[..., :6] * std).cumsum(dim=-2)
    spread = (torch.tensor(HIGH) - torch.tensor(LOW)).to(error.device)[:6] / 2.0
    each = F.smooth_l1_loss(drift / spread, torch.zeros_like(drift), beta=FINE, reduction="none").mean(dim=-1)
    full = weights == 1.0
    last = (torch.arange(weights.shape[-1], device=weights.device) * full).argmax(dim=-1)
    off = drift.detach()[..., :3].norm(dim=-1).gather(-1, last[..., None])
    return (each * weights).sum() / weights.sum(), off.mean()


def _looking_loss(
    network: TrainedFlowNetwork,
    prefix: Prefix,
    pixels: Tensor,
    *,
    named: int,
    layer: int,
    visible: Tensor | None = None,
) -> Tensor:
    """From the name on, a head of a layer for each frame learns to look at the named handle there.

    pixels: `[B, F, 2]`, the newest frame first. visible: `[B, F]`, None = everywhere.
    """
    size, frames = network.size, pixels.shape[1]
    pointing = network.vlm_with_expert.vlm.model.text_model.layers[layer]
    first, images = frames * size.image_tokens + named, frames * size.image_tokens
    rows = prefix.states[layer][:, first : prefix.valid.shape[1] - prefix.own + 1]
    positions = torch.arange(first, first + rows.shape[1], device=rows.device)[None]
    query = pointing.heads_of(rows, turn_of(positions, size.head_dim))[0][:, :frames]
    keys = prefix.layers[layer][0][:, :, :images]
    keys = keys.repeat_interleave(size.heads // size.kv_heads, dim=1)[:, :frames]
    scores = (query @ keys.transpose(2, 3)).float() * size.head_dim**-0.5
    begins = size.image_tokens * torch.arange(frames - 1, -1, -1, device=pixels.device)
    patches = (patch_of(pixels, grid_of(size)) + begins)[..., None].expand(-1, -1, rows.shape[1])
    if visible is not None:
        patches = patches.masked_fill(~visible[..., None], -100)  # not counted
    return F.cross_entropy(scores.flatten(0, 2), patches.flatten())
