"""OpenVLA policies of random weights in the published shapes: made on the device, or written for a service to load."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.gpu.subjects.random_weights import RandomTensors, biased, llama_shapes, random_weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.policies.openvla.config import ActionStatistics, ImageConfig, OpenVLAConfig, TowerImage
from edgeflow.policies.openvla.policy import OpenVLAPolicy

BINS = 256
PADDING = 64
BOS = 1
TEXT_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomTower:
    """Sizes of a vision tower."""

    width: int
    inner: int
    depth: int
    heads: int
    prefix: int = 0
    """Class and register tokens."""
    scaled: bool = False
    """True when it has LayerScale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """Sizes of a policy."""

    name: str
    text: LlamaConfig
    towers: tuple[RandomTower, RandomTower]
    side: int
    patch: int
    """Both: in pixels."""
    stages: int = 7
    """K, the action tokens."""
    text_tokens: int = 20
    """Text tokens of a prompt, including BOS."""

    @property
    def image_tokens(self) -> int:
        return (self.side // self.patch) ** 2

    @property
    def rows(self) -> int:
        """L_P, the rows of a prefill."""
        return self.image_tokens + self.text_tokens


_TINY_TEXT = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=448,
)
SIZES = {
    "tiny": PolicySize(
        name="tiny",
        text=_TINY_TEXT,
        towers=(
            RandomTower(width=24, inner=48, depth=3, heads=2, prefix=5, scaled=True),
            RandomTower(width=24, inner=48, depth=3, heads=2),
        ),
        side=28,
        patch=14,
    ),
    "openvla-7b": PolicySize(
        name="openvla-7b",
        text=LlamaConfig(vocab_size=32064),
        towers=(
            RandomTower(width=1024, inner=4096, depth=24, heads=16, prefix=5, scaled=True),
            RandomTower(width=1152, inner=4304, depth=27, heads=16),
        ),
        side=224,
        patch=14,
    ),
}


class _Prompt:
    """Stands in for a tokenizer: any instruction gives the same number of ids."""

    def __init__(self, count: int) -> None:
        self._count = count

    def ids(self, instruction: str) -> tuple[int, ...]:
        start = zlib.crc32(instruction.encode())
        return (BOS, *(3 + (start + 7 * index) % 100 for index in range(self._count - 1)))


def policy_tensors(size: PolicySize, device: torch.device, dtype: torch.dtype) -> RandomTensors:
    """Tensors of a checkpoint by their published names."""
    return RandomTensors(policy_shapes(size), device, dtype)


def random_policy(
    size: PolicySize, device: torch.device, dtype: torch.dtype, *, group: int = 0, **decoder_options: Any
) -> OpenVLAPolicy:
    """A policy of random weights; the same size gives the same weights. group: G of projections in 4 bits; 0 for
    floats."""
    weights = random_weights(policy_shapes(size), device, dtype, group)
    prompt: Any = _Prompt(size.text_tokens)
    return OpenVLAPolicy(_config(size), weights, prompt, **decoder_options)


def random_frames(size: PolicySize, policy: OpenVLAPolicy, count: int) -> list[PreparedFrame]:
    """Different frames, ready to be embedded."""
    generator = torch.Generator().manual_seed(1)
    shape = (6, size.side, size.side)
    ids = policy.prompt_ids("grasp the red handle")
    return [PreparedFrame(torch.randn(shape, generator=generator), ids) for _ in range(count)]


def _config(size: PolicySize) -> OpenVLAConfig:
    tower = TowerImage((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
    limits = ActionStatistics((-1.0,) * size.stages, (1.0,) * size.stages, (True,) * size.stages)
    return OpenVLAConfig(
        text=size.text,
        image=ImageConfig(size.side, "resize-naive", (tower, tower)),
        tower_heads=(size.towers[0].heads, size.towers[1].heads),
        action_vocab=size.text.vocab_size - PADDING,
        n_action_bins=BINS,
        statistics={"random": limits},
        action_block={},
        vicuna_prompt=False,
    )


def policy_shapes(size: PolicySize) -> dict[str, tuple[int, ...]]:
    """Shapes of a checkpoint's tensors by their published names."""
    shapes = llama_shapes(size.text, "language_model.")
    for name, tower in zip(("featurizer", "fused_featurizer"), size.towers, strict=True):
        found = _tower_shapes(tower, size)
        shapes |= {f"vision_backbone.{name}.{key}": shape for key, shape in found.items()}
    vision, hidden = sum(tower.width for tower in size.towers), size.text.hidden_size
    for index, (before, after) in enumerate(pairwise([vision, 4 * vision, hidden, hidden]), start=1):
        shapes |= biased(f"projector.fc{index}", after, before)
    return shapes


def _tower_shapes(tower: RandomTower, size: PolicySize) -> dict[str, tuple[int, ...]]:
    width, inner = tower.width, tower.inner
    shapes: dict[str, tuple[int, ...]] = {
        **biased("patch_embed.proj", width, 3, size.patch, size.patch),
        "pos_embed": (1, size.image_tokens, width),
    }
    if tower.prefix:
        shapes |= {"cls_token": (1, 1, width), "reg_token": (1, tower.prefix - 1, width)}
    weights = {"attn.qkv": (3 * width, width), "attn.proj": (width, width), "norm1": (width,), "norm2": (width,)}
    weights |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    for index in range(tower.depth):
        block = f"blocks.{index}."
        for name, shape in weights.items():
            shapes |= biased(f"{block}{name}", *shape)
        if tower.scaled:
            shapes |= {f"{block}{name}.scale_factor": (width,) for name in ("ls1", "ls2")}
    return shapes


SERVED = PolicySize(
    name="openvla-0.28b",
    text=LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=32064,
    ),
    towers=(
        RandomTower(width=1024, inner=4096, depth=3, heads=16, prefix=5, scaled=True),
        RandomTower(width=1152, inner=4304, depth=3, heads=16),
    ),
    side=224,
    patch=14,
)
"""OpenVLA's layout and image size at about 560 MB in 16 bits: written, read and warmed up in seconds."""


def write_checkpoint(size: PolicySize, folder: Path, device: torch.device, dtype: torch.dtype) -> Path:
    """Write the files of a policy; the weights are created on the device and equal those of `random_policy`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config_json(size)))
    normalisation = [{"mean": [0.5] * 3, "std": [0.5] * 3} for _ in size.towers]
    processor = {"image_resize_strategy": "resize-naive", "tvf_normalize_params": normalisation}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    _tokenizer().save(str(folder / "tokenizer.json"))
    tensors = {name: tensor.cpu() for name, tensor in policy_tensors(size, device, dtype).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def _config_json(size: PolicySize) -> dict[str, Any]:
    text = size.text
    limits = {"q01": [-1.0] * size.stages, "q99": [1.0] * size.stages, "mask": [True] * size.stages}
    return {
        "model_type": "openvla",
        "image_sizes": [size.side] * len(size.towers),
        "image_resize_strategy": "resize-naive",
        "n_action_bins": BINS,
        "pad_to_multiple_of": PADDING,
        "norm_stats": {"random": {"action": limits}},
        "use_fused_vision_backbone": True,
        "timm_model_ids": ["random"] * len(size.towers),
        "timm_model_kwargs": [{"num_heads": tower.heads} for tower in size.towers],
        "text_config": {
            "model_type": "llama",
            **{name: getattr(text, name) for name in TEXT_SIZES},
        },
    }


def _tokenizer() -> Tokenizer:
    """A tokenizer to which all words are the same: a prompt has as many ids as words and punctuation marks."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "▁": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
