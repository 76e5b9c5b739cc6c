"""What a loader needs from an OpenVLA directory's JSON files (reference: vla_numerics 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgeflow.errors import CheckpointError
from edgeflow.models.checkpoint import read_json
from edgeflow.models.llama import LlamaConfig

TOWER_HEADS = {
    "vit_large_patch14_reg4_dinov2.lvd142m": 16,
    "vit_so400m_patch14_siglip_224": 16,
    "vit_so400m_patch14_siglip_384": 16,
    "vit_so400m_patch14_siglip_gap_224": 16,
    "vit_so400m_patch14_siglip_gap_384": 16,
    "vit_large_patch14_clip_336.openai": 16,
}
RESIZE_STRATEGIES = ("resize-naive", "letterbox", "resize-crop")


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How a frame becomes pixel values: one mean and one deviation a tower."""

    side: int
    strategy: str
    means: tuple[tuple[float, ...], ...]
    stds: tuple[tuple[float, ...], ...]
    center_crop: bool = False


@dataclass(frozen=True, slots=True)
class ActionStatistics:
    """Un-normalisation of one dataset; mask False leaves a dimension as it is."""

    q01: tuple[float, ...]
    q99: tuple[float, ...]
    mask: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class OpenVLAConfig:
    """v01: the first release, one tower and the Vicuna prompt."""

    text: LlamaConfig
    image: ImageConfig
    tower_heads: tuple[int, ...]
    action_vocab: int
    n_action_bins: int
    statistics: dict[str, ActionStatistics]
    action_block: dict[str, Any]
    v01: bool

    @property
    def action_width(self) -> int:
        """K: numbers of an action, tokens of an answer."""
        return len(next(iter(self.statistics.values())).q01)


def load_config(directory: Path, *, center_crop: bool = False) -> OpenVLAConfig:
    """Read and check config.json, preprocessor_config.json and dataset_statistics.json."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory: name the directory of a checkpoint")
    values = read_json(directory / "config.json")
    if values.get("model_type") != "openvla":
        raise CheckpointError(f"{directory} holds model_type {values.get('model_type')!r}; openvla is served")
    try:
        text = _text_config(values["text_config"])
        stats = read_json(directory / "dataset_statistics.json", required=False) or values["norm_stats"]
        return OpenVLAConfig(
            text=text,
            image=_image_config(values, read_json(directory / "preprocessor_config.json"), center_crop),
            tower_heads=_tower_heads(values),
            action_vocab=text.vocab_size - int(values["pad_to_multiple_of"]),
            n_action_bins=int(values["n_action_bins"]),
            statistics={str(key): _statistics(key, entry) for key, entry in stats.items()},
            action_block=dict(values.get("edgeflow_action", {})),
            v01=not values["use_fused_vision_backbone"],
        )
    except KeyError as error:
        raise CheckpointError(f"{directory}/config.json lacks {error.args[0]}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{directory}/config.json holds a value of the wrong kind: {error}") from error


def _text_config(values: dict[str, Any]) -> LlamaConfig:
    known = {field.name for field in fields(LlamaConfig)}
    given = {key: value for key, value in values.items() if key in known and value is not None}
    if "num_key_value_heads" not in given and "num_attention_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    return LlamaConfig(**given)


def _image_config(values: dict[str, Any], processor: dict[str, Any], center_crop: bool) -> ImageConfig:
    strategy = processor.get("image_resize_strategy", values.get("image_resize_strategy"))
    if strategy not in RESIZE_STRATEGIES:
        raise CheckpointError(f"image_resize_strategy {strategy!r} is none of {', '.join(RESIZE_STRATEGIES)}")
    normalize = processor.get("tvf_normalize_params") or [
        {"mean": mean, "std": std} for mean, std in zip(processor["means"], processor["stds"], strict=True)
    ]
    return ImageConfig(
        side=int(values["image_sizes"][0]),
        strategy=strategy,
        means=tuple(tuple(entry["mean"]) for entry in normalize),
        stds=tuple(tuple(entry["std"]) for entry in normalize),
        center_crop=center_crop,
    )


def _tower_heads(values: dict[str, Any]) -> tuple[int, ...]:
    own = values.get("timm_model_kwargs") or values.get("oracle_timm_model_kwargs")
    if own:
        return tuple(int(entry["num_heads"]) for entry in own)
    unknown = [name for name in values["timm_model_ids"] if name not in TOWER_HEADS]
    if unknown:
        raise CheckpointError(f"vision tower {unknown[0]} is not known; add timm_model_kwargs with num_heads")
    return tuple(TOWER_HEADS[name] for name in values["timm_model_ids"])


def _statistics(key: str, entry: dict[str, Any]) -> ActionStatistics:
    action = entry["action"]
    q01, q99 = tuple(map(float, action["q01"])), tuple(map(float, action["q99"]))
    mask = tuple(map(bool, action.get("mask") or [True] * len(q01)))
    if not len(q01) == len(q99) == len(mask) or not q01:
        raise CheckpointError(f"norm_stats.{key}.action: q01, q99 and mask differ in length")
    return ActionStatistics(q01, q99, mask)
