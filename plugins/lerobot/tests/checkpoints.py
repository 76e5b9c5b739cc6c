"""Small checkpoints with random weights and statistics, by LeRobot's own classes, and plain calls of LeRobot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from lerobot.policies.utils import prepare_observation_for_inference
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

TOP, WRIST, STATE, ACTION = "observation.images.top", "observation.images.wrist", "observation.state", "action"
HEIGHT, WIDTH, JOINTS, DIMS = 48, 64, 5, 4
TASKS = ("pick up the cup", "put the red cube into the box", "open the drawer")
RATE_HZ = 10
CPU = torch.device("cpu")
NETWORKS: dict[str, dict[str, Any]] = {
    "diffusion": {
        "n_obs_steps": 2,
        "horizon": 8,
        "n_action_steps": 4,
        "crop_shape": (40, 56),
        "spatial_softmax_num_keypoints": 8,
        "down_dims": (16, 32),
        "diffusion_step_embed_dim": 16,
        "num_train_timesteps": 10,
    },
    "vqbet": {
        "n_obs_steps": 3,
        "n_action_pred_token": 2,
        "action_chunk_size": 4,
        "crop_shape": (40, 56),
        "spatial_softmax_num_keypoints": 8,
        "vqvae_n_embed": 8,
        "vqvae_embedding_dim": 16,
        "vqvae_enc_hidden_dim": 16,
        "gpt_block_size": 64,
        "gpt_input_dim": 32,
        "gpt_output_dim": 32,
        "gpt_n_layer": 2,
        "gpt_n_head": 2,
        "gpt_hidden_dim": 32,
        "bet_softmax_temperature": 1.0,
    },
    "act": {
        "chunk_size": 10,
        "n_action_steps": 6,
        "dim_model": 32,
        "n_heads": 4,
        "dim_feedforward": 64,
        "n_encoder_layers": 2,
        "pretrained_backbone_weights": None,
    },
    "smolvla": {
        "chunk_size": 10,
        "n_action_steps": 6,
        "resize_imgs_with_padding": (64, 64),
        "num_steps": 4,
        "num_vlm_layers": 4,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": 0.75,
        "load_vlm_weights": False,
    },
    "sac": {"device": "cpu", "latent_dim": 16, "state_encoder_hidden_dim": 16, "image_encoder_hidden_dim": 8},
    "tdmpc": {
        "horizon": 3,
        "n_gaussian_samples": 16,
        "n_pi_samples": 4,
        "n_elites": 4,
        "cem_iterations": 2,
        "latent_dim": 8,
        "mlp_dim": 16,
        "state_encoder_hidden_dim": 16,
        "n_action_repeats": 1,
        "n_action_steps": 2,
    },
}
"""Sizes by LeRobot's type."""
CAMERAS = {"vqbet": (TOP,), "sac": (), "tdmpc": ()}
"""Cameras by type; both for all others."""
SPECIAL = ("image_token", "fake_image_token", "global_image_token", "end_of_utterance_token")


def write_checkpoint(directory: Path, kind: str, **changed: Any) -> Path:
    """A checkpoint of random weights, with pipelines and statistics, as LeRobot saves one."""
    torch.manual_seed(0)
    directory.mkdir(parents=True)
    sizes = {**NETWORKS[kind], "device": "cpu", "push_to_hub": False, **changed}
    if kind == "smolvla":
        sizes["vlm_model_name"] = str(write_vlm(directory / "vlm"))
    images = dict.fromkeys(CAMERAS.get(kind, (TOP, WRIST)), (FeatureType.VISUAL, (3, HEIGHT, WIDTH)))
    inputs = {STATE: (FeatureType.STATE, (JOINTS,)), **images}
    config = make_policy_config(
        kind,
        input_features={name: PolicyFeature(*each) for name, each in inputs.items()},
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (DIMS,))},
        **sizes,
    )
    policy = get_policy_class(kind)(config).eval()
    for name, each in policy.named_parameters():
        if each.ndim == 1 and each.dtype.is_floating_point and name.endswith("bias"):
            torch.nn.init.normal_(each, std=0.05)  # zeros would hide one that is left out
    before, after = make_pre_post_processors(config, dataset_stats=statistics(inputs))
    for each in (policy, before, after):
        each.save_pretrained(directory)
    for path in directory.glob("*.json"):  # which may be moved
        path.write_text(path.read_text().replace(str(directory / "vlm"), "vlm"))
    return directory


def statistics(inputs: Mapping[str, tuple[Any, tuple[int, ...]]]) -> dict[str, dict[str, Tensor]]:
    """Random ones of every kind that LeRobot's normalisation takes."""
    found = {}
    shapes = {name: (3, 1, 1) if len(shape) == 3 else shape for name, (_, shape) in inputs.items()} | {ACTION: (DIMS,)}
    for name, shape in shapes.items():
        low, span = torch.rand(shape) - 1, torch.rand(shape) + 0.5
        found[name] = {"min": low, "max": low + span, "mean": low + span / 2, "std": span / 3}
    return found


def write_vlm(directory: Path) -> Path:
    """A vision-language model's configuration and processor, without its weights, which a policy's checkpoint has."""
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    special = [
        "<|endoftext|>",
        "<|im_end|>",
        "<image>",
        "<fake_token_around_image>",
        "<global-img>",
        "<end_of_utterance>",
    ]
    words = sorted({word for task in TASKS for word in task.split()})
    ids = {text: index for index, text in enumerate([*special, "<unk>", "\n", *words])}
    text = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    text.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=text,
        pad_token=special[0],
        eos_token=special[1],
        unk_token="<unk>",
        extra_special_tokens=dict(zip(SPECIAL, special[2:], strict=True)),
    )
    SmolVLMProcessor(SmolVLMImageProcessor(), tokenizer, SmolVLMVideoProcessor(), chat_template="").save_pretrained(
        directory
    )
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    SmolVLMConfig(
        text_config={
            **layers, "model_type": "llama", "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 4,
            "vocab_size": 64, "max_position_embeddings": 512,
        },
        vision_config={
            **layers, "model_type": "smolvlm_vision", "num_hidden_layers": 2, "image_size": 64, "patch_size": 8,
        },
        image_token_id=ids["<image>"],
        scale_factor=2,
        pad_token_id=0,
    ).save_pretrained(directory)  # fmt: skip
    return directory


class PlainLeRobot:
    """LeRobot's own policy and pipelines, called as its documentation does."""

    def __init__(self, directory: Path) -> None:
        config = PreTrainedConfig.from_pretrained(directory)
        here = Path.cwd()
        os.chdir(directory)  # from which LeRobot looks for folders that a checkpoint names
        try:
            self.policy = get_policy_class(config.type).from_pretrained(directory, config=config)
            self.before, self.after = make_pre_post_processors(config, str(directory))
        finally:
            os.chdir(here)

    def seen(self, images: Mapping[str, np.ndarray], state: Sequence[float], task: str) -> dict[str, Any]:
        """An observation as the policy takes it."""
        raw = {name: each.copy() for name, each in images.items()} | {STATE: np.asarray(state, np.float32)}
        return self.before(prepare_observation_for_inference(raw, CPU, task))

    def predicted(self, seen: dict[str, Any], seed: int) -> np.ndarray:
        """[n_action_steps, D] by predict_action_chunk, each action through the postprocessor."""
        torch.manual_seed(seed)
        chunk = self.policy.predict_action_chunk(seen)[:, : self.policy.config.n_action_steps]
        return self.sent(chunk[0])

    def selected(self, window: Sequence[dict[str, Any]], seed: int) -> np.ndarray:
        """[n, D] by select_action, which is given one observation after the other; the actions that answer the last."""
        self.policy.reset()
        for each in window[:-1]:
            self.policy.select_action(each)
            self.policy._queues[ACTION].clear()
        torch.manual_seed(seed)
        first = self.policy.select_action(window[-1])
        return self.sent(torch.cat([first, *self.policy._queues[ACTION]]))

    def sent(self, actions: Tensor) -> np.ndarray:
        return torch.cat([self.after(each[None]) for each in actions]).numpy()
