"""A SmolVLA of the published base's sizes with random weights, as a local folder in its published layout.

Sizes: SmolVLM2-500M-Video-Instruct cut to 16 layers, an expert of 0.75 of its width; 500 tensors, 450 M parameters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.gpu.subjects.random_flow import PUBLISHED, smolvla_tensors

CAMERAS = ("camera1", "camera2", "camera3")
HEIGHT, WIDTH = 480, 640  # of a camera
STATE, NUMBERS = "observation.state", 6
TOKENS, VOCABULARY = 48, 49280
SIZES: Any = PUBLISHED[0].config
NORMALISATION = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
FEATURES: dict[str, Any] = {STATE: {"type": "STATE", "shape": [NUMBERS]}} | {
    f"observation.images.{name}": {"type": "VISUAL", "shape": [3, HEIGHT, WIDTH]} for name in CAMERAS
}
TASK = "put the red cube into the box on the left"
ACTIONS = {"action": {"type": "ACTION", "shape": [NUMBERS]}}


def write_smolvla(folder: Path, tokenizer: Path) -> Path:
    """Write the folder unless it is there. tokenizer: a folder with tokenizer.json, of ids below the vocabulary."""
    if (folder / "config.json").exists():
        return folder
    vlm = folder / "vlm"
    vlm.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, vlm / name)
    (vlm / "config.json").write_text(json.dumps(_vlm_config(), indent=1))
    _write_processors(folder)
    draws = torch.Generator().manual_seed(0)
    weights = {name: _random(shape, draws) for name, shape in _shapes().items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(), indent=1))
    return folder


def _config() -> dict[str, object]:
    """The published base's config.json, with the model it starts from in `./vlm`."""
    return {
        "type": "smolvla",
        "n_obs_steps": 1,
        "input_features": FEATURES,
        "output_features": ACTIONS,
        "normalization_mapping": NORMALISATION,
        "chunk_size": SIZES.flow.chunk,
        "n_action_steps": SIZES.flow.chunk,
        "max_state_dim": SIZES.flow.dims,
        "max_action_dim": SIZES.flow.dims,
        "resize_imgs_with_padding": [SIZES.flow.side, SIZES.flow.side],
        "empty_cameras": 0,
        "adapt_to_pi_aloha": False,
        "tokenizer_max_length": TOKENS,
        "num_steps": 10,
        "use_cache": True,
        "vlm_model_name": "./vlm",
        "load_vlm_weights": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
        "prefix_length": 0,
        "pad_language_to": "max_length",
        "num_expert_layers": 0,
        "num_vlm_layers": len(SIZES.cross),
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": SIZES.expert_width / SIZES.width,
        "min_period": 0.004,
        "max_period": 4.0,
        "device": "cpu",
    }


def _vlm_config() -> dict[str, object]:
    text = {
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": SIZES.head_dim,
        "hidden_act": "silu",
        "hidden_size": SIZES.width,
        "intermediate_size": SIZES.inner,
        "max_position_embeddings": 8192,
        "num_attention_heads": SIZES.heads,
        "num_hidden_layers": 32,
        "num_key_value_heads": SIZES.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "rope_theta": 100000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
    }
    vision = {
        "model_type": "smolvlm_vision",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": SIZES.vision_width,
        "image_size": SIZES.flow.side,
        "intermediate_size": SIZES.vision_inner,
        "layer_norm_eps": 1e-6,
        "num_attention_heads": SIZES.vision_heads,
        "num_channels": 3,
        "num_hidden_layers": SIZES.vision_layers,
        "patch_size": SIZES.patch,
    }
    shared = {"model_type": "smolvlm", "scale_factor": SIZES.scale, "image_token_id": 49190, "pad_token_id": 2}
    return {**shared, "tie_word_embeddings": False, "text_config": text, "vision_config": vision}


def _write_processors(folder: Path) -> None:
    """Processor files as LeRobot saves them, with statistics that move every number."""
    before = "policy_preprocessor_step_5_normalizer_processor.safetensors"
    after = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    tokens = {"max_length": TOKENS, "task_key": "task", "padding_side": "right", "padding": "max_length"}
    device = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
    steps: Sequence[dict[str, Any]] = (
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "smolvla_new_line_processor", "config": {}},
        {
            "registry_name": "tokenizer_processor",
            "config": {**tokens, "truncation": True, "tokenizer_name": "./vlm"},
        },
        device,
        {"registry_name": "normalizer_processor", "config": _settings(FEATURES | ACTIONS), "state_file": before},
    )
    back = {"registry_name": "unnormalizer_processor", "config": _settings(ACTIONS), "state_file": after}
    for kind, listed in (("preprocessor", steps), ("postprocessor", (back, device))):
        name = f"policy_{kind}"
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": listed}, indent=1))
    stored = {f"{name}.{kind}": statistics() for name in (STATE, "action") for kind in ("mean", "std")}
    for file in (before, after):
        save_file(stored, folder / file)


def statistics() -> Tensor:
    """Mean, and standard deviation, of states and of actions: [6]"""
    return torch.linspace(0.5, 1.5, NUMBERS)


def _settings(features: dict[str, Any]) -> dict[str, object]:
    return {"eps": 1e-8, "features": features, "norm_map": NORMALISATION}


def _random(shape: tuple[int, ...], draws: torch.Generator) -> Tensor:
    """Weights that keep the size of what they multiply; vectors near 1, which suits norms."""
    values = torch.randn(shape, generator=draws)
    values = 1 + 0.01 * values if len(shape) == 1 else values * (shape[0] / values.numel()) ** 0.5
    return values.to(torch.bfloat16)


def _shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors, as published checkpoints hold them."""
    shapes = {f"model.{name}": shape for name, shape in smolvla_tensors(SIZES)}
    tables = ("lm_head.weight", "model.text_model.embed_tokens.weight")
    return shapes | {f"model.vlm_with_expert.vlm.{name}": (VOCABULARY, SIZES.width) for name in tables}


def write_inputs(path: Path, tokenizer: Path) -> Path:
    """Write the inputs of one frame, which both sides read: three cameras, state, a text's tokens, noise.

    tokenizer: tokenizer.json. The state is normalised; tokens are padded to 48 and masked.
    """
    draws = torch.Generator().manual_seed(1)
    ids = Tokenizer.from_file(str(tokenizer)).encode(f"{TASK}\n").ids
    tokens, mask = torch.zeros(1, TOKENS, dtype=torch.int64), torch.zeros(1, TOKENS, dtype=torch.int64)
    tokens[0, : len(ids)], mask[0, : len(ids)] = torch.tensor(ids), 1
    pixels = {name: torch.randint(0, 256, (3, HEIGHT, WIDTH), generator=draws, dtype=torch.uint8) for name in CAMERAS}
    numbers = {
        "state": torch.randn((1, NUMBERS), generator=draws),
        "noise": torch.randn((1, SIZES.flow.chunk, SIZES.flow.dims), generator=draws),
    }
    save_file({**pixels, **numbers, "tokens": tokens, "mask": mask}, path)
    return path
