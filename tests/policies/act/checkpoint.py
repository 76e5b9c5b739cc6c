"""Small random ACT checkpoints in LeRobot's layout, and bundles of recordings by the twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.policies.act.twin import ENVIRONMENT, STATE, ACTTwin, TwinSize

MEAN_STD = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
TYPES = {STATE: "STATE", ENVIRONMENT: "ENV", "action": "ACTION"}
BEFORE, AFTER = "policy_preprocessor", "policy_postprocessor"
BEFORE_STATE = f"{BEFORE}_step_3_normalizer_processor.safetensors"
AFTER_STATE = f"{AFTER}_step_0_unnormalizer_processor.safetensors"


def write_checkpoint(
    directory: Path,
    size: TwinSize | None = None,
    *,
    kinds: dict[str, str] | None = None,
    rename: dict[str, str] | None = None,
    **config: Any,
) -> Path:
    """Write the files of a checkpoint. kinds: of normalisation by type of feature. config: entries of config.json."""
    size = size or TwinSize()
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", {**_config(size, kinds or MEAN_STD), **config})
    features = {**inputs_of(size), "action": {"type": "ACTION", "shape": [size.action]}}
    normalise = {"eps": 1e-8, "features": features, "norm_map": kinds or MEAN_STD}
    unnormalise = {**normalise, "features": {"action": features["action"]}}
    device = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": rename or {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        device,
        {"registry_name": "normalizer_processor", "config": normalise, "state_file": BEFORE_STATE},
    ]
    after = [{"registry_name": "unnormalizer_processor", "config": unnormalise, "state_file": AFTER_STATE}, device]
    for name, steps in ((BEFORE, before), (AFTER, after)):
        write_json(directory / f"{name}.json", {"name": name, "steps": steps})
    for name in (BEFORE_STATE, AFTER_STATE):
        save_file(_statistics(size), directory / name)
    save_file(ACTTwin(size).published(), directory / "model.safetensors")
    return directory


def inputs_of(size: TwinSize) -> dict[str, dict[str, Any]]:
    """input_features of config.json."""
    vectors = {name: {"type": TYPES[name], "shape": [count]} for name, count in size.vectors.items()}
    return vectors | {name: {"type": "VISUAL", "shape": [3, *sides]} for name, sides in size.cameras.items()}


def write_bundle(
    directory: Path, size: TwinSize, *, kinds: dict[str, str] | None = None, mistake: str = "", **checkpoint: Any
) -> Path:
    """A checkpoint with recordings of the twin: a frame, a batch of two, and cameras of other sizes."""
    write_checkpoint(directory, size, kinds=kinds, **checkpoint)
    twin, statistics = ACTTwin(size, mistake), load_file(directory / BEFORE_STATE)
    sources = {new: old for old, new in (checkpoint.get("rename") or {}).items()}
    tensors: dict[str, Tensor] = {}
    for index, (batch, larger) in enumerate(((1, 0), (2, 0), (1, 23))):
        raw = random_inputs(size, batch, larger, seed=index)
        normal = {name: normalised(name, each, statistics, kinds or MEAN_STD) for name, each in raw.items()}
        if mistake == "environment state normalised":
            normal[ENVIRONMENT] = normalised(ENVIRONMENT, raw[ENVIRONMENT], statistics, {"ENV": "MEAN_STD"})
        found = twin.record(
            {name: normal[name] for name in size.cameras}, {name: normal[name] for name in size.vectors}
        )
        found["out.action_chunk_unnormalized"] = restored(found["out.action_chunk"], statistics, kinds or MEAN_STD)
        found |= {f"in.{sources.get(name, name)}": each for name, each in raw.items()}
        found |= {f"mid.normalized.{name}": each for name, each in normal.items()}
        tensors |= {f"case{index}.{name}": each.clone() for name, each in found.items()}
    save_file(tensors, directory / "expected.safetensors")
    write_json(directory / "cases.json", {"cases": [{"name": f"case{index}"} for index in range(3)]})
    return directory


def random_inputs(size: TwinSize, batch: int, larger: int, seed: int) -> dict[str, Tensor]:
    """Images 0 .. 1, `larger` by so many pixels than declared, and vectors in the units of the data."""
    make = torch.Generator().manual_seed(seed)
    images = {
        name: torch.rand(batch, 3, height + larger, width + larger, generator=make)
        for name, (height, width) in size.cameras.items()
    }
    return images | {name: torch.randn(batch, count, generator=make) * 2 for name, count in size.vectors.items()}


def normalised(name: str, x: Tensor, statistics: dict[str, Tensor], kinds: dict[str, str]) -> Tensor:
    """By the published formulas."""
    kind = kinds.get(TYPES.get(name, "VISUAL"), "IDENTITY")
    if kind == "IDENTITY":
        return x
    if kind == "MEAN_STD":
        return (x - statistics[f"{name}.mean"]) / (statistics[f"{name}.std"] + 1e-8)
    low, high = (statistics[f"{name}.{each}"] for each in RANGES[kind])
    return 2 * (x - low) / (high - low) - 1


def restored(chunk: Tensor, statistics: dict[str, Tensor], kinds: dict[str, str]) -> Tensor:
    """By the published formulas."""
    kind = kinds.get("ACTION", "IDENTITY")
    if kind == "IDENTITY":
        return chunk
    if kind == "MEAN_STD":
        return chunk * statistics["action.std"] + statistics["action.mean"]
    low, high = (statistics[f"action.{each}"] for each in RANGES[kind])
    return (chunk + 1) / 2 * (high - low) + low


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values))


def change_json(path: Path, change: Any) -> None:
    """Apply a function to the values of a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    write_json(path, values)


def change_tensors(path: Path, **entries: Tensor | None) -> None:
    """Replace tensors of a file; None removes one. `__` stands for the dot of a name."""
    tensors = load_file(path) | {name.replace("__", "."): tensor for name, tensor in entries.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def _statistics(size: TwinSize) -> dict[str, Tensor]:
    """Every kind of statistic of every feature, as a dataset has them."""
    make = torch.Generator().manual_seed(size.seed + 1)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(size.cameras, (3, 1, 1))
    shapes |= {name: (count,) for name, count in (*size.vectors.items(), ("action", size.action))}
    tensors = {}
    for name, shape in shapes.items():
        mean, std = torch.rand(shape, generator=make), torch.rand(shape, generator=make) + 0.2
        tensors |= {f"{name}.mean": mean, f"{name}.std": std, f"{name}.count": torch.tensor([100])}
        for part, spread in (("min", -3), ("max", 3), ("q01", -2), ("q99", 2), ("q10", -1), ("q90", 1)):
            tensors[f"{name}.{part}"] = mean + spread * std
    return tensors


def _config(size: TwinSize, kinds: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "act",
        "n_obs_steps": 1,
        "input_features": inputs_of(size),
        "output_features": {"action": {"type": "ACTION", "shape": [size.action]}},
        "chunk_size": size.chunk,
        "n_action_steps": size.chunk,
        "normalization_mapping": kinds,
        "vision_backbone": size.backbone,
        "replace_final_stride_with_dilation": False,
        "pre_norm": size.pre_norm,
        "dim_model": size.width,
        "n_heads": size.heads,
        "dim_feedforward": size.mlp,
        "feedforward_activation": size.activation,
        "n_encoder_layers": size.encoder_layers,
        "n_decoder_layers": size.decoder_layers,
        "use_vae": True,
        "latent_dim": size.latent,
        "temporal_ensemble_coeff": None,
    }
