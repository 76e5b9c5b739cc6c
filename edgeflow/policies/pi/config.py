"""A checkpoint of π0 or π0.5 without its weights.

Published source: LeRobot's configuration_pi0.py and configuration_pi05.py. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.policies.family import Settings, check_kind
from edgeflow.policies.flow.config import (
    FlowCheckpoint,
    FlowConfig,
    FlowProcessors,
    FlowSettings,
    load_processors,
    read_flow_config,
    read_parts,
    read_settings,
)
from edgeflow.policies.lerobot import CONFIG_FILE
from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow_client.errors import CheckpointError, ConfigError

PI0, PI05 = "pi0", "pi05"
MOST_LAYERS = 128
OTHER_SIZES = "oracle_sizes"
"""Sizes other than the published ones, as bundles of recordings state them."""
WRITERS = {PI0: "pi0_new_line_processor", PI05: "pi05_prepare_state_tokenizer_processor_step"}
"""The steps that write the text."""
FOLDERS = ("tokenizer", ".")


FLOAT32, TF32, MODEL = "float32", "tf32", "model"
"""Precisions of a vision tower and its projector: float32 as published; the same with products in TF32, on a GPU; the
dtype of the policy, but for the embeddings of patches and positions."""


class PiSettings(FlowSettings):
    """Settings of a flow-matching policy that its checkpoint lacks: the control rate, and what its numbers mean."""

    vision: Literal["float32", "tf32", "model"] | None = Field(
        None, description="only π0 and π0.5: precision of the vision tower; unset = tf32 on a GPU, otherwise float32"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaSizes:
    """The sizes of a Gemma stack."""

    width: int
    depth: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSizes:
    """The sizes of a SigLIP tower."""

    width: int
    depth: int
    inner: int
    heads: int
    patch: int


GEMMA = {
    "gemma_2b": GemmaSizes(width=2048, depth=18, inner=16384, heads=8, kv_heads=1, head_dim=256),
    "gemma_300m": GemmaSizes(width=1024, depth=18, inner=4096, heads=8, kv_heads=1, head_dim=256),
}
VISION = VisionSizes(width=1152, depth=27, inner=4304, heads=16, patch=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiConfig:
    """Sizes of a π0 or π0.5 checkpoint."""

    kind: str
    """PI0 or PI05."""
    flow: FlowConfig
    text: GemmaSizes
    """The stack of prefixes."""
    expert: GemmaSizes
    """The stack of steps."""
    vision: VisionSizes
    precision: str | None = FLOAT32
    """The precision of the vision tower and its projector; None for the fastest that keeps float32's range, by device.
    """

    @property
    def adaptive(self) -> bool:
        """True where the flow time conditions the expert's norms and the state is a part of the prompt."""
        return self.kind == PI05


def load_config(directory: Path, kind: str) -> PiConfig:
    """Read and check config.json; CheckpointError names the key and what is served."""
    config = read_json(directory / CONFIG_FILE)
    check_kind(config, "type", kind, family=kind)
    values = Fields(CONFIG_FILE, config)
    for key in ("use_relative_actions", "use_visual_memory", "use_proprioceptive_memory"):
        values.only(key, False)
    flow = read_flow_config(values, steps="num_inference_steps", side="image_resolution")
    text, expert = _stack(values, "paligemma", "gemma_2b"), _stack(values, "action_expert", "gemma_300m")
    for name in ("depth", "heads", "kv_heads", "head_dim"):
        if getattr(text, name) != getattr(expert, name):
            raise CheckpointError(
                f"{CONFIG_FILE}: {name} of both stacks are {getattr(text, name)} and {getattr(expert, name)}; "
                "served: equal ones"
            )
    return PiConfig(kind=kind, flow=flow, text=text, expert=expert, vision=_vision(values, flow.side))


def _stack(values: Fields, name: str, default: str) -> GemmaSizes:
    variant = values.choice(f"{name}_variant", tuple(GEMMA), default)
    sizes = GEMMA[variant]
    if OTHER_SIZES in values:
        stated = values.object(OTHER_SIZES).object(name)
        sizes = GemmaSizes(
            width=stated.size("width"),
            depth=stated.size("depth"),
            inner=stated.size("mlp_dim"),
            heads=stated.size("num_heads"),
            kv_heads=stated.size("num_kv_heads"),
            head_dim=stated.size("head_dim"),
        )
    if sizes.heads % sizes.kv_heads or sizes.head_dim % 2 or sizes.width % 2 or sizes.depth > MOST_LAYERS:
        raise CheckpointError(f"{CONFIG_FILE}: sizes of {name} are {sizes}; served: whole groups of heads, even widths")
    return sizes


def _vision(values: Fields, side: int) -> VisionSizes:
    sizes = VISION
    if OTHER_SIZES in values:
        stated = values.object(OTHER_SIZES).object("vision")
        sizes = VisionSizes(
            width=stated.size("hidden_size"),
            depth=stated.size("num_hidden_layers"),
            inner=stated.size("intermediate_size"),
            heads=stated.size("num_attention_heads"),
            patch=stated.size("patch_size"),
        )
    if side % sizes.patch or sizes.width % sizes.heads or sizes.depth > MOST_LAYERS:
        raise CheckpointError(
            f"{values.name('image_resolution')} is {side} with {sizes}; served: whole patches and heads"
        )
    return sizes


def read_checkpoint(kind: str, directory: Path, settings: Settings) -> FlowCheckpoint[PiConfig]:
    """Read and check all files but the weights, once; CheckpointError or ConfigError names what is wrong."""
    config = load_config(directory, kind)
    processors, read = read_parts(
        directory,
        lambda: read_processors(directory, config),
        lambda: read_settings(kind, directory, settings, config.flow, PiSettings),
    )
    if "vision" in settings and is_artifact(directory):
        raise ConfigError(f"policy.vision: {read.vision}; the graphs of an artifact are in float32: remove it")
    return FlowCheckpoint(replace(config, precision=read.vision), processors, read)


def read_processors(directory: Path, config: PiConfig) -> FlowProcessors:
    """Read and check both pipelines."""
    kind = config.kind
    return load_processors(directory, config.flow, writer=WRITERS[kind], reads_state=kind == PI05, folders=FOLDERS)
