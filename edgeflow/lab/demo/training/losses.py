"""Training losses: locating the handles (vision), and the action for the named handle (language)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeflow.lab.demo.training.actions import ids_of, soft_targets
from edgeflow.lab.demo.training.batches import Batch, Prompts
from edgeflow.lab.demo.training.data import ACTION_DIM
from edgeflow.lab.demo.training.network import NetworkSize, PolicyNetwork, TowerDimensions, TrainedLayer
from edgeflow.lab.demo.world.layout import COLOURS

FINE: Final = 0.02  # fraction of the scaled range below which the regression loss turns quadratic
_POINTER_WIDTH: Final = 64
_POINTER_WEIGHT, _VISION_WEIGHT, _REGRESSION_WEIGHT, _LOOKING_WEIGHT = 0.1, 2.0, 2.0, 1.0
_POINTING_LAYER: Final = 2  # the layer of the language model in which one head learns where to look


class Locator(nn.Module):
    """Auxiliary output, discarded after training: one query per colour points at a patch (or at none) and reads the
    handle's action there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(len(COLOURS), _POINTER_WIDTH) * 0.2)
        self.keys = nn.Linear(width, _POINTER_WIDTH)
        self.nowhere = nn.Parameter(torch.zeros(len(COLOURS)))
        self.reader = regressor(width)

    def locate(self, image_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Pointer logits `[B, colours, patches + 1]` (last: not in view) and scaled actions `[B, colours, 7]`."""
        scores = torch.einsum("cw,bpw->bcp", self.queries, self.keys(image_tokens).float())
        read = scores.softmax(dim=-1).to(image_tokens.dtype) @ image_tokens
        nowhere = self.nowhere.expand(len(scores), -1)[..., None]
        return torch.cat([scores, nowhere], dim=2), self.reader(read).float()


class TrainingHeads(Locator):
    """Auxiliary outputs, discarded after training: the locator's, and the action, regressed from the hidden state that
    emits its first token."""

    def __init__(self, size: NetworkSize) -> None:
        super().__init__(size.hidden)
        self.regressor = regressor(size.hidden)


def regressor(width: int, numbers: int = ACTION_DIM) -> nn.Sequential:
    """Reads numbers from a hidden state, by default a scaled action `[..., 7]`."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256), nn.GELU(), nn.Linear(256, numbers))


def vision_loss(heads: Locator, image_tokens: Tensor, batch: Batch, tower: TowerDimensions) -> Tensor:
    """Point at each colour's handle and read its action."""
    pointers, actions = heads.locate(image_tokens)
    present = torch.arange(len(batch.colours), device=pointers.device)[:, None]
    where = torch.full(pointers.shape[:2], tower.patches, device=pointers.device)
    where[present, batch.colours] = torch.where(batch.visible, patch_of(batch.pixels, tower), tower.patches)
    pointing = F.cross_entropy(pointers.flatten(0, 1), where.flatten())
    read = actions[present, batch.colours][batch.visible]
    return _POINTER_WEIGHT * pointing + _VISION_WEIGHT * regression_loss(read, batch.actions[batch.visible])


def patch_of(pixels: Tensor, tower: TowerDimensions) -> Tensor:
    """Index of the patch that holds a pixel `[..., 2]` (column, row)."""
    side = tower.img_size // tower.patch_size
    cells = (pixels / tower.patch_size).floor().long().clamp(0, side - 1)
    return cells[..., 1] * side + cells[..., 0]


def regression_loss(guess: Tensor, truth: Tensor) -> Tensor:
    """The loss of scaled actions."""
    return F.smooth_l1_loss(guess, truth, beta=FINE)


@dataclass(frozen=True, slots=True)
class LanguageLoss:
    """Terms of the loss of the token policy."""

    tokens: Tensor
    """Smoothed cross-entropy of the action tokens."""
    regression: Tensor
    looking: Tensor
    """Both: auxiliary losses."""
    near: Tensor
    """`[7]`, the share of predictions within one bin, for each token."""

    @property
    def total(self) -> Tensor:
        return self.tokens + _REGRESSION_WEIGHT * self.regression + _LOOKING_WEIGHT * self.looking


def language_loss(
    network: PolicyNetwork, heads: TrainingHeads, image_tokens: Tensor, batch: Batch, prompts: Prompts
) -> LanguageLoss:
    """The loss of all instructions of an image, in one sequence that shares its prefix under a block mask."""
    size, (b, n, t) = network.size, batch.ids.shape
    actions = ids_of(batch.answers, size.text_vocab)
    branches = torch.cat([batch.ids, actions[:, :, :-1]], dim=2)
    embed = network.language_model.model.embed_tokens
    prefix = embed(prompts.shared.to(batch.ids.device))[None].expand(b, -1, -1)
    x = torch.cat([prefix[:, :1], image_tokens, prefix[:, 1:], embed(branches).flatten(1, 2)], dim=1)
    shared, length = x.shape[1] - n * branches.shape[2], branches.shape[2]
    positions, mask = block_mask(shared, n, length)
    positions, mask = (table.to(x.device) for table in block_mask(shared, n, length))
    states = network.language_model(x, positions, mask)
    raw, final = (state[:, shared:].unflatten(1, (n, length))[:, :, t - 1 :] for state in states[-2:])
    logits = network.language_model.lm_head(final).float()
    target = soft_targets(batch.answers.cpu(), size.vocab, size.text_vocab).to(logits.device)
    tokens = -(target * logits.log_softmax(dim=-1)).sum(-1).mean()
    regression = regression_loss(heads.regressor(raw[:, :, 0]).float(), batch.answers)
    looks = _looks(network, states[_POINTING_LAYER], positions, shared)
    looks = looks.view(b, n, length, -1)[:, :, batch.named :]
    patches = patch_of(batch.places, size.towers[0])[..., None].expand(-1, -1, looks.shape[2])
    looking = F.cross_entropy(looks.flatten(0, 2), patches.flatten())
    near = ((logits.argmax(-1) - actions).abs() <= 1).float().mean(dim=(0, 1))
    return LanguageLoss(tokens, regression, looking, near)


def _looks(network: PolicyNetwork, state: Tensor, positions: Tensor, shared: int) -> Tensor:
    """Attention scores `[B, rows, patches]` of the first head of the pointing layer, from the rows after the shared
    prefix to the image; they learn to point at the named handle.
    """
    layer = cast("TrainedLayer", network.language_model.model.layers[_POINTING_LAYER])
    turn = network.language_model.turn(positions)
    q, k, _ = layer.self_attn.heads_of(layer.input_layernorm(state), turn)
    patches = k[:, 0, 1 : 1 + network.size.towers[0].patches]
    scores: Tensor = (q[:, 0, shared:] @ patches.transpose(1, 2)).float() * q.shape[-1] ** -0.5
    return scores


def block_mask(shared: int, branches: int, length: int) -> tuple[Tensor, Tensor]:
    """Positions `[L]` and additive mask `[L, L]` of a shared causal prefix followed by independent branches."""
    total = shared + branches * length
    branch = torch.arange(total).sub(shared).div(length, rounding_mode="floor").clamp(min=-1)
    positions = torch.where(branch < 0, torch.arange(total), torch.arange(total) - branch * length)
    causal = torch.arange(total)[:, None] >= torch.arange(total)[None]
    related = (branch[None] < 0) | (branch[:, None] == branch[None])
    return positions, torch.where(causal & related, 0.0, -torch.inf)
