"""A SmolVLA checkpoint without its weights: its config.json, and that of its vision-language model.

Published source: LeRobot's configuration_smolvla.py and smolvlm_with_expert.py. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgeflow.policies.family import Settings, check_kind
from edgeflow.policies.flow.config import (
    MOST_CAMERAS,
    FlowCheckpoint,
    FlowConfig,
    FlowProcessors,
    FlowSettings,
    find_tokenizer,
    load_processors,
    read_flow_config,
    read_parts,
    read_settings,
    with_history,
)
from edgeflow.policies.lerobot import CONFIG_FILE, local_folder
from edgeflow.text.checkpoint_json import LARGEST, Fields, read_json
from edgeflow.text.tokenizer import TOKENIZER_FILE
from edgeflow_client.errors import CheckpointError

MODES = ("cross_attn", "self_attn")
MOST_LAYERS = 128
PUBLISHED = {
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": {
        "scale_factor": 4,
        "text_config": {
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "num_hidden_layers": 32,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
        },
        "vision_config": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "patch_size": 16,
            "image_size": 512,
        },
    }
}
"""The contents of config.json of published models, which checkpoints name and do not hold."""
IMAGE_TOKENS = ("<fake_token_around_image>", "<global-img>")
"""The special tokens around an image: the first, the second, the image, the first."""
ENCLOSING = 3
WRITER = "smolvla_new_line_processor"
"""The step that writes the text."""
FOLDERS = ("vlm", "tokenizer", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolVLAConfig:
    """Sizes of a SmolVLA checkpoint."""

    flow: FlowConfig
    width: int
    """The width of the vision-language model's stack."""
    inner: int
    """The width of that stack's MLPs."""
    expert_width: int
    """The width of the expert's stack."""
    expert_inner: int
    """The width of that stack's MLPs."""
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    cross: tuple[bool, ...]
    """For each layer, True where the expert only reads the prefix."""
    scale: int
    """Patches per side that the connector joins."""
    vision_width: int
    """The width of the vision tower."""
    vision_inner: int
    vision_layers: int
    vision_heads: int
    patch: int
    """Pixels per side of a patch."""
    grid: int
    """Patches per side of an image."""
    model: str
    """The name or folder of the vision-language model."""
    enclosed: bool = False
    """True where special tokens enclose each image."""
    absent: int = 0
    """Cameras of which a prefix has these special tokens but no image."""
    special: tuple[int, int] | None = None
    """The ids of IMAGE_TOKENS, where images are enclosed; None until the tokenizer is read."""

    @property
    def image_rows(self) -> int:
        """The number of rows of an image in a prefix, special tokens included."""
        return (self.flow.side // self.patch // self.scale) ** 2 + ENCLOSING * self.enclosed

    @property
    def absent_rows(self) -> int:
        """The number of rows in a prefix of cameras without an image."""
        return ENCLOSING * self.absent


def load_config(directory: Path) -> SmolVLAConfig:
    """Read and check both files; CheckpointError names the key and what is served."""
    config = read_json(directory / CONFIG_FILE)
    check_kind(config, "type", "smolvla", family="smolvla")
    values = Fields(CONFIG_FILE, config)
    for key in ("adapt_to_pi_aloha", "use_delta_joint_actions_aloha"):
        values.only(key, False)
    flow = with_history(read_flow_config(values, steps="num_steps", side="resize_imgs_with_padding"), directory)
    model = values.text("vlm_model_name")
    vlm = _read_vlm(directory, model)
    text, vision = vlm.object("text_config"), vlm.object("vision_config")
    width, heads = text.size("hidden_size"), text.size("num_attention_heads")
    expert_width = _expert_width(values, width)
    enclosed = values.flag("add_image_special_tokens", False)
    grid, rest = divmod(vision.size("image_size"), vision.size("patch_size"))
    found = SmolVLAConfig(
        flow=flow,
        width=width,
        inner=text.size("intermediate_size"),
        expert_width=expert_width,
        expert_inner=_inner(expert_width),
        heads=heads,
        kv_heads=text.size("num_key_value_heads", heads),
        head_dim=text.size("head_dim", width // heads),
        eps=text.positive("rms_norm_eps", 1e-5),
        cross=_cross(values, text.size("num_hidden_layers")),
        scale=vlm.size("scale_factor", 2),
        vision_width=vision.size("hidden_size"),
        vision_inner=vision.size("intermediate_size"),
        vision_layers=vision.size("num_hidden_layers", 12),
        vision_heads=vision.size("num_attention_heads"),
        patch=vision.size("patch_size"),
        grid=grid,
        model=model,
        enclosed=enclosed,
        # those beyond the present cameras; LeRobot counts at least so many as missing in every frame
        absent=_absent(values) if enclosed else 0,
    )
    _check_sizes(found, vlm, whole=rest == 0)
    return found


def with_special_tokens(directory: Path, config: SmolVLAConfig) -> SmolVLAConfig:
    """The configuration with the ids of the special tokens that enclose images, where they do.

    CheckpointError for a tokenizer that is missing or lacks them.
    """
    if not config.enclosed:
        return config
    file = find_tokenizer(directory, config.model, FOLDERS) / TOKENIZER_FILE
    entries = Fields(file.name, read_json(file)).objects("added_tokens")
    ids = {entry.text("content"): entry.count("id") for entry in entries}
    lacking = [each for each in IMAGE_TOKENS if each not in ids]
    if lacking:
        raise CheckpointError(
            f"{CONFIG_FILE}.add_image_special_tokens is true, and {file} lacks {lacking[0]}: put the tokenizer of "
            f"{config.model} there"
        )
    return replace(config, special=(ids[IMAGE_TOKENS[0]], ids[IMAGE_TOKENS[1]]))


def _absent(values: Fields) -> int:
    """The number of cameras that count as missing in every frame."""
    absent = values.count("empty_cameras") if "empty_cameras" in values else 0
    if absent > MOST_CAMERAS:
        raise CheckpointError(f"{values.name('empty_cameras')} is {absent}; served: to {MOST_CAMERAS}")
    return absent


def _read_vlm(directory: Path, model: str) -> Fields:
    """config.json of the vision-language model: of the folder of that name in the checkpoint, or as published."""
    folder = local_folder(directory, model)
    if folder is not None:
        return Fields(f"{folder.name}/{CONFIG_FILE}", read_json(folder / CONFIG_FILE))
    if model not in PUBLISHED:
        raise CheckpointError(
            f"{CONFIG_FILE}.vlm_model_name is {model!r}, which is not a folder of the checkpoint; "
            f"served: a folder with config.json and tokenizer.json, or {', '.join(PUBLISHED)}"
        )
    return Fields(f"{model} {CONFIG_FILE}", PUBLISHED[model])


def _cross(values: Fields, available: int) -> tuple[bool, ...]:
    """For each layer of the vision-language model that is used, True for cross attention."""
    layers = int(values.number("num_vlm_layers", 16))
    layers = layers if layers > 0 else available
    if layers > min(available, MOST_LAYERS):
        raise CheckpointError(f"{values.name('num_vlm_layers')} is {layers}; served: to {min(available, MOST_LAYERS)}")
    experts = values.number("num_expert_layers", -1)
    if experts > 0 and experts != layers:
        raise CheckpointError(f"{values.name('num_expert_layers')} is {experts:g}; served: num_vlm_layers, {layers}")
    crossing = values.choice("attention_mode", MODES, MODES[0]) == MODES[0]
    every = int(values.number("self_attn_every_n_layers", 2))
    return tuple(crossing and not (every > 0 and index % every == 0) for index in range(layers))


def _expert_width(values: Fields, width: int) -> int:
    """The width of the expert, a part of the other stack's."""
    key = "expert_width_multiplier"
    multiplier = values.positive(key, 0.75)
    if width * multiplier > LARGEST:
        raise CheckpointError(f"{values.name(key)} is {multiplier:g}; served: an expert of at most {LARGEST} numbers")
    return int(width * multiplier)


def _inner(width: int) -> int:
    """F of a Llama of this width: 8/3 of it, rounded up to a multiple of 256."""
    return -(-int(4 * int(2 * width / 3)) // 256) * 256


def _check_sizes(config: SmolVLAConfig, vlm: Fields, *, whole: bool) -> None:
    """Reject sizes that do not divide each other."""
    side = config.flow.side
    checks = (
        ("head_dim", config.head_dim % 2 == 0 and config.heads % config.kv_heads == 0, "whole groups of even heads"),
        ("hidden_size", config.expert_width > 1 and config.expert_width % 2 == 0, "an expert of even width"),
        ("num_hidden_layers", config.vision_layers <= MOST_LAYERS, f"at most {MOST_LAYERS} layers"),
        ("vision_config.num_attention_heads", config.vision_width % config.vision_heads == 0, "whole heads"),
        ("vision_config.image_size", whole, "whole patches"),
        ("image size", side % (config.patch * config.scale) == 0, "images of whole squares of scale_factor patches"),
        ("image size", side <= config.patch * config.grid, "images to image_size"),
    )
    for key, holds, served in checks:
        if not holds:
            raise CheckpointError(f"{vlm.where}: {key} does not fit the other sizes; served: {served}")


def read_checkpoint(directory: Path, settings: Settings) -> FlowCheckpoint[SmolVLAConfig]:
    """Read and check all files but the weights, once; CheckpointError or ConfigError names what is wrong."""
    config = load_config(directory)
    processors, read = read_parts(
        directory,
        lambda: read_processors(directory, config),
        lambda: read_settings("smolvla", directory, settings, config.flow, FlowSettings),
    )
    return FlowCheckpoint(with_special_tokens(directory, config), processors, read)


def read_processors(directory: Path, config: SmolVLAConfig) -> FlowProcessors:
    """Read and check both pipelines."""
    folders = (FOLDERS[0], config.model, *FOLDERS[1:])
    return load_processors(directory, config.flow, writer=WRITER, reads_state=False, folders=folders)
