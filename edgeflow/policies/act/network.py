"""ACT's network: a ResNet per camera, an encoder over all inputs, a decoder over the actions of a chunk.

Published source: LeRobot's modeling_act.py. B frames, L tokens of the encoder, E width, D numbers of an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.models.checkpoint import Weights
from edgeflow.models.vit import gemm, norm_weights
from edgeflow.policies.act.config import ACTConfig
from edgeflow.policies.act.resnet import ResNet
from edgeflow.policies.lerobot import ENVIRONMENT, STATE
from edgeflow_client.errors import CheckpointError

LAYER_NORM_EPS = 1e-5
BASE = 10_000.0  # of the periods of camera positions
_PROJECTIONS = {STATE: "encoder_robot_state_input_proj", ENVIRONMENT: "encoder_env_state_input_proj"}

Call = Callable[[Tensor], Tensor]


class ACTNetwork:
    """weights: those below `model.`, in float32. dtype: of the computation."""

    def __init__(self, config: ACTConfig, weights: Weights, dtype: torch.dtype) -> None:
        self.dtype, self.device = dtype, weights.device
        self._width = config.width
        if config.cameras:
            self._backbone = ResNet(config.backbone, weights.under("backbone."), dtype)
        weights = weights.to(dtype)
        self._load_inputs(config, weights)
        encoder = _layers(weights, "encoder", config.encoder_layers)
        decoder = _layers(weights, "decoder", config.decoder_layers)
        self._encoder = [_EncoderLayer(below, config) for below in encoder]
        self._decoder = [_DecoderLayer(below, config) for below in decoder]
        if not config.pre_norm and "encoder.norm.weight" in weights:
            raise CheckpointError("config.json.pre_norm is false, but model.safetensors has model.encoder.norm.weight")
        self._encoder_norm = _norm(weights, "encoder.norm", config.width) if config.pre_norm else None
        self._decoder_norm = _norm(weights, "decoder.norm", config.width)
        self._queries = weights.take("decoder_pos_embed.weight", config.chunk, config.width)
        self._head = gemm(weights, "action_head", config.action, config.width)

    def _load_inputs(self, config: ACTConfig, weights: Weights) -> None:
        width = config.width
        weights.take("encoder_latent_input_proj.weight", width, config.latent)
        self._latent = weights.take("encoder_latent_input_proj.bias", width)  # of a latent variable of zeros
        self._vectors = [gemm(weights, _PROJECTIONS[name], width, size) for name, size in config.vectors.items()]
        self._positions = weights.take("encoder_1d_feature_pos_embed.weight", 1 + len(self._vectors), width)
        if config.cameras:
            kernel = weights.take("encoder_img_feat_input_proj.weight", width, self._backbone.channels, 1, 1)
            self._cells = kernel, weights.take("encoder_img_feat_input_proj.bias", width)

    def __call__(self, images: Sequence[Tensor], vectors: Sequence[Tensor], positions: Tensor) -> Tensor:
        """Normalised images [B, 3, h, w] per camera, vectors [B, n] → normalised actions [B, chunk, D]

        positions: those of the images' feature maps.
        """
        maps = [self.feature_map(image) for image in images]
        return self.head(self.decode(self.encode(self.tokens(maps, vectors), positions), positions))

    def feature_map(self, image: Tensor) -> Tensor:
        """[B, 3, height, width] → [B, C, h, w]"""
        return self._backbone(image.to(self.dtype))

    def tokens(self, maps: Sequence[Tensor], vectors: Sequence[Tensor]) -> Tensor:
        """Feature maps [B, C, h, w], vectors [B, n] → [B, L, E]: latent, vectors, each camera's cells row by row."""
        batch = (*maps, *vectors)[0].shape[0]
        rows = [self._latent.expand(batch, 1, -1)]
        rows += [
            project(vector.to(self.dtype))[:, None] for project, vector in zip(self._vectors, vectors, strict=True)
        ]
        rows += [F.conv2d(each, *self._cells).flatten(2).transpose(1, 2) for each in maps]
        return torch.cat(rows, dim=1)

    def camera_positions(self, height: int, width: int) -> Tensor:
        """[E, height, width]: positions of the cells of a feature map, the first half for rows, the second for columns.

        The last row and column are a whole turn of the longest period; sine and cosine alternate.
        """
        half = self._width // 2
        even = torch.arange(0, half, 2, dtype=torch.float64, device=self.device)
        frequencies = BASE ** (-even / half)
        rows, columns = (_waves(count, frequencies) for count in (height, width))
        table = torch.cat([rows[:, :, None].expand(-1, -1, width), columns[:, None].expand(-1, height, -1)])
        return table.to(self.dtype)

    def positions(self, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """[L, E]: positions of all tokens. sizes: height and width of each camera's feature map."""
        cameras = [self.camera_positions(*size).flatten(1).T for size in sizes]
        return torch.cat([self._positions, *cameras])

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, L, E], [L, E] → [B, L, E]"""
        for layer in self._encoder:
            tokens = layer(tokens, positions)
        return tokens if self._encoder_norm is None else self._encoder_norm(tokens)

    def decode(self, encoded: Tensor, positions: Tensor) -> Tensor:
        """[B, L, E], [L, E] → [B, chunk, E]"""
        keys = encoded + positions
        x = torch.zeros_like(self._queries).expand(encoded.shape[0], -1, -1)
        for layer in self._decoder:
            x = layer.decode(x, self._queries, keys, encoded)
        return self._decoder_norm(x)

    def head(self, decoded: Tensor) -> Tensor:
        """[B, chunk, E] → [B, chunk, D]"""
        return self._head(decoded)


def _norm(weights: Weights, name: str, width: int) -> Call:
    """Layer normalisation over E numbers."""
    weight, bias = norm_weights(weights, name, width)
    return partial(F.layer_norm, normalized_shape=(width,), weight=weight, bias=bias, eps=LAYER_NORM_EPS)


class _Attention:
    """Attention of H heads with one projection each for queries, keys and values, and one for the result."""

    def __init__(self, weights: Weights, name: str, config: ACTConfig) -> None:
        width = config.width
        self._heads = config.heads
        weight = weights.take(f"{name}.in_proj_weight", 3 * width, width)
        bias = weights.take(f"{name}.in_proj_bias", 3 * width)
        self._inputs = list(zip(weight.chunk(3), bias.chunk(3), strict=True))
        self._output = gemm(weights, f"{name}.out_proj", width, width)

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[B, n, E], [B, m, E], [B, m, E] → [B, n, E]"""
        q, k, v = (
            F.linear(x, *projection).view(*x.shape[:2], self._heads, -1).transpose(1, 2)
            for x, projection in zip((queries, keys, values), self._inputs, strict=True)
        )
        return self._output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _EncoderLayer:
    """Sub-layers, each added to its input and normalised: before it with pre_norm, otherwise after the sum.

    Positions are added to queries and keys of every layer, never to values.
    """

    norms = 2

    def __init__(self, weights: Weights, config: ACTConfig) -> None:
        width, mlp = config.width, config.mlp
        self._pre_norm = config.pre_norm
        self._attention = _Attention(weights, "self_attn", config)
        self._norms = [_norm(weights, f"norm{index}", width) for index in range(1, self.norms + 1)]
        self._up = gemm(weights, "linear1", mlp, width)
        self._down = gemm(weights, "linear2", width, mlp)
        self._activation = F.gelu if config.activation == "gelu" else F.relu

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, L, E], [L, E] → [B, L, E]"""
        return self._chain(x, [partial(self._attend, positions), self._mlp])

    def _chain(self, x: Tensor, parts: Sequence[Call]) -> Tensor:
        for part, norm in zip(parts, self._norms, strict=True):
            x = x + part(norm(x)) if self._pre_norm else norm(x + part(x))
        return x

    def _attend(self, positions: Tensor, x: Tensor) -> Tensor:
        placed = x + positions
        return self._attention(placed, placed, x)

    def _mlp(self, x: Tensor) -> Tensor:
        return self._down(self._activation(self._up(x)))


class _DecoderLayer(_EncoderLayer):
    """A layer that also attends to the rows of the encoder."""

    norms = 3

    def __init__(self, weights: Weights, config: ACTConfig) -> None:
        super().__init__(weights, config)
        self._crossed = _Attention(weights, "multihead_attn", config)

    def decode(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[B, chunk, E], [chunk, E], of the encoder [B, L, E] twice → [B, chunk, E]"""
        cross = partial(self._cross, positions, keys, values)
        return self._chain(x, [partial(self._attend, positions), cross, self._mlp])

    def _cross(self, positions: Tensor, keys: Tensor, values: Tensor, x: Tensor) -> Tensor:
        return self._crossed(x + positions, keys, values)


def _layers(weights: Weights, part: str, count: int) -> list[Weights]:
    """The weights of each layer; CheckpointError unless the checkpoint has as many as config.json says."""
    prefix = f"{part}.layers."
    stored = len({name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)})
    if stored != count:
        raise CheckpointError(f"model.{part} has {stored} layers, but config.json.n_{part}_layers is {count}")
    return [weights.under(f"{prefix}{index}.") for index in range(count)]


def _waves(count: int, frequencies: Tensor) -> Tensor:
    """[2 frequencies, count]: sine and cosine of each frequency, in turns, at places 1 .. count of `count`."""
    places = torch.arange(1, count + 1, dtype=torch.float64, device=frequencies.device)
    angles = frequencies[:, None] * (places / (count + 1e-6) * (2 * math.pi))
    return torch.stack([angles.sin(), angles.cos()], dim=1).flatten(0, 1)
