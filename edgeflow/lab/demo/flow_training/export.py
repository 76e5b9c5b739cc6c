"""Writes the flow policy in the published SmolVLA layout: config, processors, statistics, VLM folder, bf16 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.demo.flow_training.batches import EPS, BatchNormaliser
from edgeflow.lab.demo.flow_training.chunks import Spread
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from edgeflow.lab.demo.flow_training.pursuit import STEP_S
from edgeflow.lab.demo.flow_training.tokenizer import PAD, SPECIAL, save_tokenizer
from edgeflow.lab.demo.flow_training.windows import HISTORY, HISTORY_STEP_S, MOST_DELAY_S, MOST_KEPT
from edgeflow.lab.demo.training.actions import NAMES, UNITS
from edgeflow.lab.demo.world.robot import MAX_SPEED, MAX_TURN, STATE_NAMES, STATE_UNITS
from edgeflow.lab.demo.world.scene import POLICY_CAMERA
from edgeflow.lab.outputs import write_json

NOISE_SCALE: Final = 0.0  # one motion is the best one: noise only scatters where it leads
NUM_STEPS: Final = 3  # Euler steps of the flow
CHUNKING: Final = {"mode": "trained", "trained_max_delay": MOST_KEPT}
TOKENS: Final = 16  # ids a prompt is padded to
STATE, IMAGE, ACTION = "observation.state", f"observation.images.{POLICY_CAMERA}", "action"
_NORM_MAP: Final = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
_HEADROOM: Final = 1.5  # limits of a row, as multiples of the arm's largest motion per step
_BEFORE: Final = "policy_preprocessor_step_5_normalizer_processor.safetensors"
_AFTER: Final = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"


def write_flow_checkpoint(
    folder: Path, network: TrainedFlowNetwork, tokenizer: Tokenizer, normaliser: BatchNormaliser
) -> Path:
    """Write a complete model directory; return the folder."""
    size, vlm = network.size, folder / "vlm"
    vlm.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", _config(size))
    write_json(folder / "edgeflow.json", _robot())
    write_json(folder / "policy_preprocessor.json", _before(size))
    write_json(folder / "policy_postprocessor.json", _after())
    write_json(vlm / "config.json", _vlm_config(size))
    save_tokenizer(tokenizer, vlm)
    statistics = {**_statistics(STATE, normaliser.state), **_statistics(ACTION, normaliser.action)}
    for name in (_BEFORE, _AFTER):
        _save(statistics, folder / name)
    head = {"vlm_with_expert.vlm.lm_head.weight": torch.zeros(size.vocab, size.width)}  # part of the layout; never read
    weights = {**network.state_dict(), **head}
    _save(
        {f"model.{name}": weight.cpu().to(torch.bfloat16) for name, weight in weights.items()},
        folder / "model.safetensors",
    )
    return folder


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
    path.chmod(0o644)


def _statistics(feature: str, spread: Spread) -> dict[str, Tensor]:
    both = {"mean": spread.mean, "std": spread.std}
    return {f"{feature}.{name}": torch.from_numpy(value).float() for name, value in both.items()}


def _features(size: FlowSize) -> dict[str, dict[str, Any]]:
    return {
        STATE: {"type": "STATE", "shape": [len(STATE_NAMES)]},
        IMAGE: {"type": "VISUAL", "shape": [3, size.image, size.image]},
    }


def _action() -> dict[str, dict[str, Any]]:
    return {ACTION: {"type": "ACTION", "shape": [len(NAMES)]}}


def _config(size: FlowSize) -> dict[str, Any]:
    return {
        "type": "smolvla",
        "n_obs_steps": 1,
        "input_features": _features(size),
        "output_features": _action(),
        "normalization_mapping": _NORM_MAP,
        "chunk_size": size.chunk,
        "n_action_steps": size.chunk,
        "max_state_dim": size.state,
        "max_action_dim": size.action,
        "resize_imgs_with_padding": [size.image, size.image],
        "empty_cameras": 0,
        "adapt_to_pi_aloha": False,
        "tokenizer_max_length": TOKENS,
        "num_steps": NUM_STEPS,
        "use_cache": True,
        "vlm_model_name": "vlm",
        "load_vlm_weights": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
        "prefix_length": -1,
        "pad_language_to": "longest",
        "num_expert_layers": -1,
        "num_vlm_layers": size.layers,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": size.expert_multiplier,
        "min_period": size.min_period,
        "max_period": size.max_period,
        "device": "cpu",
    }


def _robot() -> dict[str, Any]:
    """The facts about the robot that a service needs and that the published files do not state."""
    most = _HEADROOM * STEP_S
    high = [most * MAX_SPEED] * 3 + [most * MAX_TURN] * 3 + [1.0]
    return {
        "control_rate_hz": round(1.0 / STEP_S),
        "action_names": list(NAMES),
        "action_units": list(UNITS),
        "action_low": [-value for value in high[:6]] + [0.0],
        "action_high": high,
        "action_relative": [name != "gripper" for name in NAMES],
        "frame": "tool",
        "rotation": "rotvec",
        "state_names": list(STATE_NAMES),
        "state_units": list(STATE_UNITS),
        "rtc": CHUNKING,
        "history": {"frames": HISTORY, "step_ms": round(1000.0 * HISTORY_STEP_S)},
        "most_delay_ms": round(1000.0 * MOST_DELAY_S),
        "noise_scale": NOISE_SCALE,
    }


def _before(size: FlowSize) -> dict[str, Any]:
    tokenizer = {
        "max_length": TOKENS,
        "task_key": "task",
        "padding_side": "right",
        "padding": "longest",
        "truncation": True,
        "tokenizer_name": "vlm",
    }
    steps = [
        _step("rename_observations_processor", {"rename_map": {}}),
        _step("to_batch_processor", {}),
        _step("smolvla_new_line_processor", {}),
        _step("tokenizer_processor", tokenizer),
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
        _step("normalizer_processor", _normalising({**_features(size), **_action()}), _BEFORE),
    ]
    return {"name": "policy_preprocessor", "steps": steps}


def _after() -> dict[str, Any]:
    steps = [
        _step("unnormalizer_processor", _normalising(_action()), _AFTER),
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return {"name": "policy_postprocessor", "steps": steps}


def _step(name: str, config: dict[str, Any], state_file: str = "") -> dict[str, Any]:
    return {"registry_name": name, "config": config, **({"state_file": state_file} if state_file else {})}


def _normalising(features: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"eps": EPS, "features": features, "norm_map": _NORM_MAP}


def _vlm_config(size: FlowSize) -> dict[str, Any]:
    text = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": size.width,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "rms_norm_eps": 1e-5,
        "pad_token_id": SPECIAL.index(PAD),
        "tie_word_embeddings": False,
        "vocab_size": size.vocab,
    }
    vision = {
        "model_type": "smolvlm_vision",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": size.vision_width,
        "image_size": size.image,
        "intermediate_size": size.vision_mlp,
        "layer_norm_eps": 1e-6,
        "num_attention_heads": size.vision_heads,
        "num_channels": 3,
        "num_hidden_layers": size.vision_layers,
        "patch_size": size.patch,
    }
    return {
        "model_type": "smolvlm",
        "image_token_id": SPECIAL.index("<image>"),
        "pad_token_id": SPECIAL.index(PAD),
        "scale_factor": size.scale_factor,
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": False,
    }
