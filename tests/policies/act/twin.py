"""A naive twin of ACT's network from torch's own modules, as published names have them, sequence first.

It shares no code with the package, so that both have to be wrong in the same way to agree. `mistake` makes it compute
one thing wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"
BLOCKS = {"resnet18": ((2, 2, 2, 2), 1), "resnet34": ((3, 4, 6, 3), 1), "resnet50": ((3, 4, 6, 3), 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinSize:
    """Sizes of a small network. cameras: height and width by name."""

    cameras: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {"observation.images.top": (40, 56), "observation.images.side": (33, 65)}
    )
    state: int = 5
    environment: int = 0
    action: int = 3
    backbone: str = "resnet18"
    stem: int = 4
    width: int = 16
    heads: int = 4
    mlp: int = 24
    activation: str = "relu"
    encoder_layers: int = 2
    decoder_layers: int = 1
    pre_norm: bool = False
    latent: int = 6
    chunk: int = 7
    seed: int = 0

    @property
    def vectors(self) -> dict[str, int]:
        return {name: size for name, size in ((STATE, self.state), (ENVIRONMENT, self.environment)) if size}


class TwinBlock(nn.Module):
    """BasicBlock (expansion 1) or Bottleneck (expansion 4)."""

    def __init__(self, inputs: int, planes: int, expansion: int, stride: int) -> None:
        super().__init__()
        outputs = planes * expansion
        if expansion == 1:
            shapes = [(inputs, planes, 3, stride), (planes, planes, 3, 1)]
        else:
            shapes = [(inputs, planes, 1, 1), (planes, planes, 3, stride), (planes, outputs, 1, 1)]
        self.count = len(shapes)
        for index, (before, after, side, step) in enumerate(shapes, start=1):
            self.add_module(f"conv{index}", nn.Conv2d(before, after, side, step, side // 2, bias=False))
            self.add_module(f"bn{index}", nn.BatchNorm2d(after))
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.downsample(x) if hasattr(self, "downsample") else x
        for index in range(1, self.count + 1):
            x = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(x))
            x = F.relu(x + skip if index == self.count else x)
        return x


class Backbone(nn.Module):
    def __init__(self, name: str, stem: int) -> None:
        super().__init__()
        counts, expansion = BLOCKS[name]
        self.conv1, self.bn1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
        inputs = stem
        for layer, count in enumerate(counts, start=1):
            planes, blocks = stem * 2 ** (layer - 1), []
            for index in range(count):
                blocks.append(TwinBlock(inputs, planes, expansion, 2 if layer > 1 and index == 0 else 1))
                inputs = planes * expansion
            self.add_module(f"layer{layer}", nn.Sequential(*blocks))
        self.outputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = nn.MaxPool2d(3, 2, 1)(F.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class TwinLayer(nn.Module):
    def __init__(self, size: TwinSize, crossed: bool) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(size.width, size.heads)
        if crossed:
            self.multihead_attn = nn.MultiheadAttention(size.width, size.heads)
        self.linear1, self.linear2 = nn.Linear(size.width, size.mlp), nn.Linear(size.mlp, size.width)
        for index in range(1, 4 if crossed else 3):
            self.add_module(f"norm{index}", nn.LayerNorm(size.width))


class Stack(nn.Module):
    def __init__(self, size: TwinSize, count: int, *, crossed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwinLayer(size, crossed) for _ in range(count))
        if crossed or size.pre_norm:
            self.norm = nn.LayerNorm(size.width)


class ACTTwin(nn.Module):
    """Random weights by the size's seed."""

    def __init__(self, size: TwinSize, mistake: str = "") -> None:
        super().__init__()
        self.size, self.mistake = size, mistake
        torch.manual_seed(size.seed)
        width = size.width
        if size.cameras:
            self.backbone = Backbone(size.backbone, size.stem)
            self.encoder_img_feat_input_proj = nn.Conv2d(self.backbone.outputs, width, 1)
        self.encoder = Stack(size, size.encoder_layers, crossed=False)
        self.decoder = Stack(size, size.decoder_layers, crossed=True)
        self.encoder_latent_input_proj = nn.Linear(size.latent, width)
        if size.state:
            self.encoder_robot_state_input_proj = nn.Linear(size.state, width)
        if size.environment:
            self.encoder_env_state_input_proj = nn.Linear(size.environment, width)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + len(size.vectors), width)
        self.decoder_pos_embed = nn.Embedding(size.chunk, width)
        self.action_head = nn.Linear(width, size.action)
        self.vae_encoder_cls_embed = nn.Embedding(1, width)  # stands for all that only training needs
        self.eval()
        self._randomise()

    def _randomise(self) -> None:
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(0.5, 1.0)
                    module.bias.normal_(std=0.2)
                    module.running_mean.normal_(std=0.2)
                    module.running_var.uniform_(0.5, 1.5)
                elif isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight)
                elif isinstance(module, nn.LayerNorm):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(std=0.3)
                elif isinstance(module, nn.MultiheadAttention):
                    module.in_proj_weight.mul_(2)
                    module.in_proj_bias.normal_(std=0.3)
                    module.out_proj.bias.normal_(std=0.3)

    def published(self) -> dict[str, Tensor]:
        """Tensors by their published names."""
        stored = {f"model.{name}": tensor for name, tensor in self.state_dict().items()}
        return {name: tensor for name, tensor in stored.items() if not name.endswith("num_batches_tracked")}

    @torch.no_grad()
    def record(self, images: dict[str, Tensor], vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Every quantity of a case by its stored name, from normalised inputs."""
        found: dict[str, Tensor] = {}
        batch = len(next(iter({**images, **vectors}.values())))
        latent = torch.full((batch, self.size.latent), float(self.mistake == "latent of ones"))
        tokens = [self.encoder_latent_input_proj(latent)]
        if self.size.state:
            tokens.append(self.encoder_robot_state_input_proj(vectors[STATE]))
        if self.size.environment:
            tokens.append(self.encoder_env_state_input_proj(vectors[ENVIRONMENT]))
        positions = list(self.encoder_1d_feature_pos_embed.weight[:, None])
        names = list(images)[::-1] if self.mistake == "cameras in another order" else list(images)
        for name in names:
            features = self.backbone(images[name])
            places = self.places(*features.shape[-2:])
            found[f"mid.feature_map.{name}"], found[f"mid.camera_pos_embed.{name}"] = features, places
            projected = self.encoder_img_feat_input_proj(features)
            for row in range(features.shape[2]):
                for column in range(features.shape[3]):
                    tokens.append(projected[:, :, row, column])
                    positions.append(places[:, :, row, column])
        x, place = torch.stack(tokens), torch.stack(positions)
        found |= {"mid.encoder_in_tokens": x, "mid.encoder_in_pos_embed": place}
        encoded = found["mid.encoder_out"] = self._encode(x, place)
        decoded = found["mid.decoder_out"] = self._decode(encoded, place)
        found["out.action_chunk"] = self.action_head(decoded.transpose(0, 1))
        return {name: tensor.contiguous() for name, tensor in found.items()}

    def places(self, rows: int, columns: int) -> Tensor:
        """[1, E, rows, columns], number by number."""
        half = self.size.width // 2
        table = torch.zeros(1, 2 * half, rows, columns)
        for row in range(rows):
            for column in range(columns):
                for index in range(half):
                    period = 10000 ** (2 * (index // 2) / half)
                    for axis, (place, last) in enumerate(((row, rows), (column, columns))):
                        first = 0 if self.mistake == "places from zero" else 1
                        angle = (place + first) / (last + 1e-6) * 2 * math.pi / period
                        number = self._wave(angle, index, half)
                        table[0, self._at(axis, index, half), row, column] = number
        return table

    def _wave(self, angle: float, index: int, half: int) -> float:
        sine = index < half // 2 if self.mistake == "sines before cosines" else index % 2 == 0
        return math.sin(angle) if sine else math.cos(angle)

    def _at(self, axis: int, index: int, half: int) -> int:
        return (1 - axis if self.mistake == "columns before rows" else axis) * half + index

    def _encode(self, x: Tensor, place: Tensor) -> Tensor:
        for index, layer in enumerate(self.encoder.layers):
            here = torch.zeros_like(place) if self.mistake == "positions in the first layer" and index else place
            skip, x = x, layer.norm1(x) if self.size.pre_norm else x
            value = x + here if self.mistake == "positions on values" else x
            x = skip + layer.self_attn(x + here, x + here, value)[0]
            x = self._mlp(layer, x, layer.norm1, layer.norm2)
        return self.encoder.norm(x) if self.size.pre_norm else x

    def _decode(self, encoded: Tensor, place: Tensor) -> Tensor:
        query = self.decoder_pos_embed.weight[:, None]
        x = torch.zeros(self.size.chunk, encoded.shape[1], self.size.width)
        if self.mistake == "queries start as positions":
            x = x + query
        for layer in self.decoder.layers:
            skip, x = x, layer.norm1(x) if self.size.pre_norm else x
            x = skip + layer.self_attn(x + query, x + query, x)[0]
            x, skip = (layer.norm2(x), x) if self.size.pre_norm else (layer.norm1(x),) * 2
            key = encoded if self.mistake == "keys without positions" else encoded + place
            x = skip + layer.multihead_attn(x + query, key, encoded)[0]
            x = self._mlp(layer, x, layer.norm2, layer.norm3)
        return x if self.mistake == "no last norm" else self.decoder.norm(x)

    def _mlp(self, layer: TwinLayer, x: Tensor, before: nn.LayerNorm, after: nn.LayerNorm) -> Tensor:
        """before: the norm of the sub-layer before this one; after: of this one."""
        x, skip = (after(x), x) if self.size.pre_norm else (before(x),) * 2
        approximate = "tanh" if self.mistake == "approximate GELU" else "none"
        activate = F.relu if self.size.activation == "relu" else lambda x: F.gelu(x, approximate=approximate)
        x = skip + layer.linear2(activate(layer.linear1(x)))
        return x if self.size.pre_norm else after(x)
