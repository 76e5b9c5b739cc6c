"""The flow policy as one batched module; parameter names are those of the published SmolVLA checkpoint.

SmolVLA at a small scale: a vision tower, a connector, a Llama, and an action expert beside it. Written for training,
and as the plain reference for the serving model, so it keeps nothing between calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeflow.lab.demo.flow_training.layers import (
    TEXT_EPS,
    ExpertLayer,
    FlowLayer,
    FlowSize,
    NamedModules,
    VisionModel,
    pixel_shuffle,
    turn_of,
)
from edgeflow.lab.demo.training.network import RmsNorm


class Connector(nn.Module):
    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        proj = nn.Linear(size.vision_width * size.scale_factor**2, size.width, bias=False)
        self.modality_projection, self._scale = NamedModules(proj=proj), size.scale_factor

    def forward(self, patches: Tensor) -> Tensor:
        out: Tensor = self.modality_projection.proj(pixel_shuffle(patches, self._scale))
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The computed prefix of a batch."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    """Keys (with their positions) and values `[B, G, P, D]` of each layer."""
    states: tuple[Tensor, ...]
    """The input of each layer `[B, P, E]`."""
    valid: Tensor
    """`[B, P]` bool, false for padding of the text; `[1, P]` if all is valid."""
    own: int
    """R, the number of states that share images and text: the last rows."""


class TrainedFlowNetwork(nn.Module):
    """Vision, language model and action expert of the policy."""

    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        self.size = size
        e = size.expert_width
        vlm = NamedModules(vision_model=VisionModel(size), connector=Connector(size), text_model=_text_model(size))
        experts = (ExpertLayer(size, crossing=bool(index % 2)) for index in range(size.layers))
        expert = NamedModules(layers=nn.ModuleList(experts), norm=RmsNorm(e, TEXT_EPS))
        self.vlm_with_expert = NamedModules(vlm=NamedModules(model=vlm), lm_expert=expert)
        self.state_proj = nn.Linear(size.state, size.width)
        self.action_in_proj, self.action_out_proj = nn.Linear(size.action, e), nn.Linear(e, size.action)
        self.action_time_mlp_in, self.action_time_mlp_out = nn.Linear(2 * e, e), nn.Linear(e, e)
        self._initialise()

    def _initialise(self) -> None:
        """Embeddings and image tokens have unit size once they are multiplied by the root of the width."""
        vlm, e = self.vlm_with_expert.vlm.model, self.size.width
        for stack in (vlm.text_model.layers, self.vlm_with_expert.lm_expert.layers):
            for name, weight in stack.named_parameters():
                if weight.dim() == 2:
                    narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                    std = weight.shape[1] ** -0.5
                    nn.init.normal_(weight, std=std / (2 * self.size.layers) ** 0.5 if narrow else std)
        projection = vlm.connector.modality_projection.proj.weight
        nn.init.normal_(projection, std=(projection.shape[1] * e) ** -0.5)
        nn.init.normal_(vlm.text_model.embed_tokens.weight, std=e**-0.5)

    def image_tokens(self, frames: Tensor) -> Tensor:
        """From RGB `[B, side, side, 3]` uint8 to `[B, tokens, E]`, the language model's input."""
        vlm = self.vlm_with_expert.vlm.model
        pixels = frames.permute(0, 3, 1, 2).float() / 255.0 * 2.0 - 1.0
        out: Tensor = vlm.connector(vlm.vision_model(pixels)) * self.size.width**0.5
        return out

    def prefix(self, image_tokens: Tensor, ids: Tensor, states: Tensor, valid_text: Tensor | None = None) -> Prefix:
        """Compute the prefix of image tokens `[B, I, E]`, text ids `[B, T]` and normalised, padded states `[B, S]`, or
        `[B, R, S]`: R prefixes that share images and text.

        The images of a history come one after another, the oldest first. Images and text see each other and not the
        state, which comes last and sees everything. valid_text: `[B, T]` bool, None = all; padding is not seen and
        takes no position.
        """
        text = self.vlm_with_expert.vlm.model.text_model
        words = text.embed_tokens(ids) * self.size.width**0.5
        last = self.state_proj(states.view(len(states), -1, states.shape[-1]))
        x = torch.cat([image_tokens, words.to(image_tokens.dtype), last.to(image_tokens.dtype)], dim=1)
        images, own = image_tokens.shape[1], last.shape[1]
        n = x.shape[1]
        valid = torch.ones(1 if valid_text is None else len(x), n, dtype=torch.bool, device=x.device)
        if valid_text is not None:
            valid[:, images:-own] = valid_text
        first = valid[:, :-own].sum(dim=1, keepdim=True)
        positions = torch.cat([valid[:, :-own].cumsum(dim=1) - 1, first.expand(-1, own)], dim=1)
        turn = turn_of(positions, self.size.head_dim)
        mask = valid[:, None, None, :].repeat(1, 1, n, 1)
        mask[:, :, :, -own:] = torch.eye(n, dtype=torch.bool, device=x.device)[:, -own:]
        hidden = _additive(mask)
        layers, inputs = [], []
        for layer in text.layers:
            inputs.append(x)
            q, k, v = layer.heads_of(x, turn)
            layers.append((k, v))
            if len(layers) < len(text.layers):  # nothing reads the last layer's output
                x = layer.finish(x, q, k, v, hidden)
        return Prefix(tuple(layers), tuple(inputs), valid, own)

    def velocity(self, prefix: Prefix, noisy: Tensor, time: Tensor) -> Tensor:
        """Velocity `[B, M, C, A]` of noisy chunks `[B, M, C, A]` whose rows are at times `[B, M, C]`: M chunks per
        images and text, as many for each of their R states, in order.

        An action sees images, text and its chunk's state and, in its chunk, itself and the actions before it.
        """
        b, m, c, _ = noisy.shape
        x = self._embedded(noisy, time).flatten(0, 1)
        valid = prefix.valid[:, : prefix.valid.shape[1] - prefix.own + 1]
        steps = torch.arange(c, device=x.device)[None]
        along = turn_of(
            valid.sum(dim=1, keepdim=True).repeat_interleave(m if len(valid) > 1 else 1, 0) + steps, self.size.head_dim
        )
        from_zero = turn_of(steps, self.size.head_dim)
        visible = valid[:, None, None, :].expand(-1, 1, c, -1).repeat_interleave(m if len(valid) > 1 else 1, 0)
        own = (steps[0][:, None] >= steps[0][None]).expand(len(visible), 1, -1, -1)
        seen, both = _additive(visible), _additive(torch.cat([visible, own], dim=3))
        expert = self.vlm_with_expert.lm_expert
        for layer, (k, v) in zip(expert.layers, prefix.layers, strict=True):
            k, v = (_of_chunks(each, prefix.own, m) for each in (k, v))
            x = layer(x, k, v, from_zero, seen) if layer.crossing else layer(x, k, v, along, both)
        out: Tensor = self.action_out_proj(expert.norm(x))
        return out.view(b, m, c, -1)

    def _embedded(self, noisy: Tensor, time: Tensor) -> Tensor:
        actions = self.action_in_proj(noisy)
        times = self._time_embedding(time).to(actions.dtype)
        inner = F.silu(self.action_time_mlp_in(torch.cat([actions, times], dim=-1)))
        out: Tensor = self.action_time_mlp_out(inner)
        return out

    def _time_embedding(self, time: Tensor) -> Tensor:
        """Sines, then cosines `[..., W]` of times `[...]`, at geometrically spaced periods."""
        size = self.size
        share = torch.linspace(0.0, 1.0, size.expert_width // 2, dtype=torch.float64, device=time.device)
        periods = size.min_period * (size.max_period / size.min_period) ** share
        angles = 2.0 * torch.pi / periods * time.double()[..., None]
        return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


def _text_model(size: FlowSize) -> NamedModules:
    return NamedModules(
        embed_tokens=nn.Embedding(size.vocab, size.width),
        layers=nn.ModuleList(FlowLayer(size, size.width, size.mlp, size.width) for _ in range(size.layers)),
        norm=RmsNorm(size.width, TEXT_EPS),
    )


def _of_chunks(heads: Tensor, own: int, chunks: int) -> Tensor:
    """Keys or values `[B, G, P, D]` as each of a prefix's chunks sees them, `[B * chunks, G, P - own + 1, D]`."""
    if chunks == own == 1:
        return heads
    shared, last = heads[:, :, :-own], heads[:, :, -own:].transpose(1, 2).flatten(0, 1)[:, :, None]
    return torch.cat([shared.repeat_interleave(chunks, 0), last.repeat_interleave(chunks // own, 0)], dim=2)


def _additive(mask: Tensor) -> Tensor:
    """0 where the mask is true, otherwise -inf."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
