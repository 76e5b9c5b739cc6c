"""The parts of an OpenVLA checkpoint's JSON files that its loader needs.

Published source: OpenVLA's prismatic/extern/hf/configuration_prismatic.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgeflow.models.llama import MAX_SIZE, LlamaConfig
from edgeflow.policies.family import check_kind
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

TOWER_HEADS = {
    "vit_large_patch14_reg4_dinov2": 16,
    "vit_base_patch16_siglip_224": 12,
    "vit_base_patch16_siglip_256": 12,
    "vit_base_patch16_siglip_384": 12,
    "vit_so400m_patch14_siglip_224": 16,
    "vit_so400m_patch14_siglip_384": 16,
}
RESIZE_STRATEGIES = ("resize-naive", "letterbox", "resize-crop")
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos")


@dataclass(frozen=True, slots=True)
class TowerImage:
    """Preprocessing of one tower: normalisation of the [0, 1] image per channel, and how it is resized."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """Preprocessing of a frame to pixel values of `side` x `side`, three channels per tower."""

    side: int
    strategy: str
    towers: tuple[TowerImage, ...]
    center_crop: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, h, w of the pixel values."""
        return 3 * len(self.towers), self.side, self.side


@dataclass(frozen=True, slots=True)
class ActionStatistics:
    """Un-normalisation of one dataset; mask False leaves a dimension as it is."""

    q01: tuple[float, ...]
    q99: tuple[float, ...]
    mask: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVLAConfig:
    """Sizes of an OpenVLA checkpoint."""

    text: LlamaConfig
    image: ImageConfig
    tower_heads: tuple[int, ...]
    """Heads of each vision tower."""
    action_vocab: int
    """V without padding, where action ids end."""
    n_action_bins: int
    statistics: dict[str, ActionStatistics]
    action_block: dict[str, Any]
    """Names, units, relative, frame, rotation, and control_rate_hz or whole_way of the action, where the checkpoint
    has them.
    """
    vicuna_prompt: bool
    """True for the chat prompt of the first release."""

    @property
    def action_width(self) -> int:
        """K: numbers of the widest action, tokens of an answer."""
        return max(len(entry.q01) for entry in self.statistics.values())


def load_config(
    directory: Path,
    *,
    center_crop: bool = False,
    processor: Mapping[str, Any] | None = None,
    control_rate_hz: float = 0.0,
) -> OpenVLAConfig:
    """Read and check config.json, preprocessor_config.json and dataset_statistics.json.

    processor: stands for preprocessor_config.json. control_rate_hz: above 0, stands for what the checkpoint says of its
    actions: each is one control step at this rate.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory: give the directory of a checkpoint")
    values = read_json(directory / "config.json")
    check_kind(values, "model_type", "openvla", family="openvla")
    processor = read_json(directory / "preprocessor_config.json") if processor is None else processor
    statistics = read_json(directory / "dataset_statistics.json", required=False)
    try:
        if control_rate_hz:
            stated = {"control_rate_hz": control_rate_hz, "whole_way": False}
            values = {**values, "edgeflow_action": {**values.get("edgeflow_action", {}), **stated}}
        return _config(values, processor, statistics, center_crop=center_crop, name=directory.resolve().name)
    except KeyError as error:
        raise CheckpointError(f"{directory}: the configuration lacks {error.args[0]}") from error
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{directory}: the configuration has a value of the wrong type: {error}") from error


def _config(
    values: dict[str, Any], processor: Mapping[str, Any], statistics: dict[str, Any], *, center_crop: bool, name: str
) -> OpenVLAConfig:
    text = _text_config(values["text_config"])
    heads = _tower_heads(values)
    image = _image_config(values, processor, center_crop)
    if len(image.towers) != len(heads):
        raise ValueError(f"{len(heads)} vision towers, but normalisation for {len(image.towers)}")
    padding, bins = (_whole(values, key) for key in ("pad_to_multiple_of", "n_action_bins"))
    if padding < 0 or not 2 <= bins <= text.vocab_size - padding:
        raise ValueError(f"{bins} n_action_bins and padding {padding} do not fit a vocabulary of {text.vocab_size}")
    return OpenVLAConfig(
        text=text,
        image=image,
        tower_heads=heads,
        action_vocab=text.vocab_size - padding,
        n_action_bins=bins,
        statistics=_all_statistics(statistics, "dataset_statistics.json ")
        if statistics
        else _all_statistics(values["norm_stats"], "config.json norm_stats."),
        action_block=dict(values.get("edgeflow_action", {})),
        # the first release, by its language model or, as in the published server, the directory's name
        vicuna_prompt="v01" in name or str(values.get("llm_backbone_id", "")).startswith("vicuna"),
    )


def _whole(values: Mapping[str, Any], key: str) -> int:
    value = values[key]
    if type(value) is not int or abs(value) > MAX_SIZE:
        raise ValueError(f"config.json {key} must be an integer up to {MAX_SIZE}, got {str(value)[:60]}")
    return value


def _text_config(values: dict[str, Any]) -> LlamaConfig:
    if values.get("model_type", "llama") != "llama":
        raise ValueError(f"text_config.model_type {values['model_type']!r} is not supported; supported: llama")
    if values.get("hidden_act", "silu") != "silu" or values.get("attention_bias") or values.get("mlp_bias"):
        raise ValueError("text_config: only hidden_act silu without attention_bias and mlp_bias is supported")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError(f"text_config: rotary embedding of type {rope.get('rope_type', rope.get('type'))!r}")
    known = {field.name for field in fields(LlamaConfig)} - {"head_dim"}
    given = {key: value for key, value in values.items() if key in known and value is not None}
    if "rope_theta" in rope:
        given["rope_theta"] = float(rope["rope_theta"])
    if "num_key_value_heads" not in given and "num_attention_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    config = LlamaConfig(**given)
    if values.get("head_dim") not in (None, config.head_dim):
        raise ValueError(f"text_config.head_dim {values['head_dim']}, expected hidden_size / heads = {config.head_dim}")
    return config


def _image_config(values: dict[str, Any], processor: Mapping[str, Any], center_crop: bool) -> ImageConfig:
    strategy = processor.get("image_resize_strategy", values.get("image_resize_strategy"))
    if strategy not in RESIZE_STRATEGIES:
        raise ValueError(
            f"image_resize_strategy {strategy!r} is not supported; supported: {', '.join(RESIZE_STRATEGIES)}"
        )
    means, stds = _normalisation(processor)
    sizes = [tuple(size[-2:]) for size in processor.get("input_sizes", [])]
    sizes = sizes or [(int(side), int(side)) for side in values["image_sizes"]]
    if len({side for size in sizes for side in size}) != 1:
        raise ValueError(f"input_sizes {sizes}: only one square size for all towers is supported")
    interpolations = processor.get("interpolations", ["bicubic"] * len(means))
    unknown = [name for name in interpolations if name not in INTERPOLATIONS]
    if unknown:
        raise ValueError(f"interpolations: {unknown[0]!r} is not supported; supported: {', '.join(INTERPOLATIONS)}")
    towers = tuple(TowerImage(*each) for each in zip(means, stds, interpolations, strict=True))
    return ImageConfig(int(sizes[0][0]), strategy, towers, center_crop)


def _normalisation(processor: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """means and stds a tower, from the processor's own fields or from its recorded transforms."""
    if "means" in processor:
        means, stds = processor["means"], processor["stds"]
    else:
        transforms = processor["tvf_normalize_params"]
        means, stds = [each["mean"] for each in transforms], [each["std"] for each in transforms]
    triples = [tuple(map(float, triple)) for triple in (*means, *stds)]
    if any(len(triple) != 3 for triple in triples) or any(0.0 in map(float, std) for std in stds):
        raise ValueError("means and stds need three numbers per tower, and no std of 0")
    return triples[: len(means)], triples[len(means) :]


def _tower_heads(values: dict[str, Any]) -> tuple[int, ...]:
    if any(layer for layer in values.get("timm_override_act_layers") or []):
        raise ValueError("timm_override_act_layers: only the towers' own activation is supported")
    own = values.get("timm_model_kwargs") or values.get("oracle_timm_model_kwargs")
    names = values.get("timm_model_ids") or []
    given = [entry.get("num_heads") for entry in own or [{} for _ in names]]
    heads = tuple(_known_heads(names, index) if own is None else int(own) for index, own in enumerate(given))
    expected = 2 if values["use_fused_vision_backbone"] else 1
    if len(heads) != expected or min(heads) < 1:
        raise ValueError(f"{len(heads)} vision towers named, expected {expected}, with at least one head each")
    return heads


def _known_heads(names: Sequence[str], index: int) -> int:
    """Heads of a tower that has its library's default sizes; the tag after the dot names only its training."""
    name = names[index].partition(".")[0]
    if name not in TOWER_HEADS:
        raise ValueError(f"vision tower {name} is not known; add timm_model_kwargs with its num_heads")
    return TOWER_HEADS[name]


def _all_statistics(entries: Mapping[str, Any], where: str) -> dict[str, ActionStatistics]:
    """The statistics by dataset. where: a prefix of names in messages."""
    if not entries:
        raise ValueError("norm_stats names no dataset: actions cannot be un-normalised")
    return {str(key): _statistics(f"{where}{key}.action", entry["action"]) for key, entry in entries.items()}


def _statistics(where: str, action: Mapping[str, Any]) -> ActionStatistics:
    q01, q99 = (_bounds(f"{where}.{name}", action[name]) for name in ("q01", "q99"))
    mask = action.get("mask")
    mask = tuple(map(bool, mask)) if mask is not None else (True,) * len(q01)
    if not len(q01) == len(q99) == len(mask) or not q01:
        raise ValueError(f"{where}: q01, q99 and mask differ in length or are empty")
    return ActionStatistics(q01, q99, mask)


def _bounds(where: str, given: Any) -> tuple[float, ...]:
    try:
        values = tuple(map(float, given))
    except OverflowError:
        values = (math.inf,)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{where} must be finite")
    return values
