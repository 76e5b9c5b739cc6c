"""An ACT checkpoint of random weights in LeRobot's layout, small and with cameras of any number and size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

STATE = "observation.state"
CHANNELS = (8, 16, 32, 64)
WIDTH, MLP, LATENT, NUMBERS, CHUNK = 64, 128, 8, 6, 20


def write_act(directory: Path, cameras: Mapping[str, tuple[int, int]]) -> Path:
    """Write a checkpoint. cameras: height and width by name, without `observation.images.`."""
    directory.mkdir(parents=True, exist_ok=True)
    images = {f"observation.images.{name}": size for name, size in cameras.items()}
    inputs: dict[str, Any] = {STATE: {"type": "STATE", "shape": [NUMBERS]}}
    inputs |= {name: {"type": "VISUAL", "shape": [3, *size]} for name, size in images.items()}
    outputs = {"action": {"type": "ACTION", "shape": [NUMBERS]}}
    norm = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
    config = {
        "type": "act",
        "n_obs_steps": 1,
        "input_features": inputs,
        "output_features": outputs,
        "normalization_mapping": norm,
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "dim_model": WIDTH,
        "n_heads": 4,
        "dim_feedforward": MLP,
        "latent_dim": LATENT,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    for kind, step, features in (
        ("preprocessor", "normalizer_processor", inputs | outputs),
        ("postprocessor", "unnormalizer_processor", outputs),
    ):
        state = f"policy_{kind}_step_0_{step}.safetensors"
        settings = {"eps": 1e-8, "features": features, "norm_map": norm}
        steps = [{"registry_name": step, "config": settings, "state_file": state}]
        (directory / f"policy_{kind}.json").write_text(json.dumps({"name": f"policy_{kind}", "steps": steps}))
        save_file(_statistics(images), directory / state)
    generator = torch.Generator().manual_seed(0)
    save_file({f"model.{name}": _random(shape, generator) for name, shape in _shapes(len(images))},
              directory / "model.safetensors")  # fmt: skip
    return directory


def _statistics(images: Mapping[str, object]) -> dict[str, Tensor]:
    shapes = dict.fromkeys(images, (3, 1, 1)) | {STATE: (NUMBERS,), "action": (NUMBERS,)}
    return {
        f"{name}.{kind}": torch.full(shape, value)
        for name, shape in shapes.items()
        for kind, value in (("mean", 0.5), ("std", 0.25))
    }


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Weights that keep the size of what they multiply; vectors near 1, which suits norms."""
    values = torch.randn(shape, generator=generator)
    return 1 + 0.01 * values.abs() if len(shape) == 1 else values * (shape[0] / values.numel()) ** 0.5


def _shapes(cameras: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _named("encoder_latent_input_proj", (WIDTH, LATENT))
    yield from _named("encoder_robot_state_input_proj", (WIDTH, NUMBERS))
    yield "encoder_1d_feature_pos_embed.weight", (2, WIDTH)
    if cameras:
        yield from _named("encoder_img_feat_input_proj", (WIDTH, CHANNELS[-1], 1, 1))
        yield from _backbone()
    yield from _layer("encoder.layers.0.", ("self_attn",))
    yield from _layer("decoder.layers.0.", ("self_attn", "multihead_attn"))
    yield from _named("decoder.norm", (WIDTH,))
    yield "decoder_pos_embed.weight", (CHUNK, WIDTH)
    yield from _named("action_head", (NUMBERS, WIDTH))


def _named(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _layer(prefix: str, attentions: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in attentions:
        yield f"{prefix}{name}.in_proj_weight", (3 * WIDTH, WIDTH)
        yield f"{prefix}{name}.in_proj_bias", (3 * WIDTH,)
        yield from _named(f"{prefix}{name}.out_proj", (WIDTH, WIDTH))
    yield from _named(f"{prefix}linear1", (MLP, WIDTH))
    yield from _named(f"{prefix}linear2", (WIDTH, MLP))
    for index in range(len(attentions) + 1):
        yield from _named(f"{prefix}norm{index + 1}", (WIDTH,))


def _backbone() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _convolution("backbone.conv1", "backbone.bn1", (CHANNELS[0], 3, 7, 7))
    before = CHANNELS[0]
    for layer, channels in enumerate(CHANNELS, start=1):
        for block in range(2):
            prefix = f"backbone.layer{layer}.{block}."
            inputs = before if block == 0 else channels
            yield from _convolution(f"{prefix}conv1", f"{prefix}bn1", (channels, inputs, 3, 3))
            yield from _convolution(f"{prefix}conv2", f"{prefix}bn2", (channels, channels, 3, 3))
            if block == 0 and inputs != channels:
                yield from _convolution(f"{prefix}downsample.0", f"{prefix}downsample.1", (channels, inputs, 1, 1))
        before = channels


def _convolution(conv: str, norm: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{conv}.weight", shape
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield f"{norm}.{part}", shape[:1]
