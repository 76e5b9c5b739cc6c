"""Policies to quantise: where each family keeps its language model, and what stays floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.lab.quantize.files.source import Source, grouping, refuse_quantised
from edgeflow.lab.quantize.search.block import BlockShape
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.models.checkpoint import CONFIG_FILE, Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.policies.family import CheckpointFiles, Family
from edgeflow.policies.flow.network import PREFIX
from edgeflow.policies.openvla.config import load_config as load_openvla
from edgeflow.policies.pi.config import PI0, PI05
from edgeflow.policies.pi.config import load_config as load_pi
from edgeflow.policies.pi.network import BOTH, EPS
from edgeflow.policies.registry import FAMILIES as REGISTERED
from edgeflow.policies.registry import family_of
from edgeflow.policies.smolvla.config import load_config as load_smolvla
from edgeflow.policies.smolvla.network import VLM, sizes_of
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

OPENVLA_STEM, OPENVLA_HEAD = "language_model.model.", "language_model.lm_head.weight"
OPENVLA_KEPT = ("vision_backbone", "projector")
SMOLVLA_KEPT = ("lm_expert", "vision_model", "connector", "state_proj", "action_")
PI_KEPT = ("gemma_expert", "vision_tower", "multi_modal_projector", "state_proj", "action_", "time_mlp")
ANY_VOCABULARY = 1
"""The vocabulary size used for a language model without a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLanguageModel:
    """The language model of a policy."""

    config: LlamaConfig
    shape: BlockShape
    stem: str
    """Beginning of its tensors' names."""
    head: str
    """Name of its output projection."""
    kept: tuple[str, ...]
    """Parts of the names of modules that are not quantised."""
    actions: range | None = None
    """Ids of action tokens; None if the model computes a prefix that an expert reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """A policy of floats."""

    family: Family
    source: Source
    """Its files and its language model."""
    actions: range | None
    """As in PolicyLanguageModel."""


def is_policy(folder: Path) -> bool:
    """True for a checkpoint of any policy family."""
    files = CheckpointFiles.of(folder)
    return any(family.detect(files) for family in REGISTERED)


def open_policy(folder: Path, group: int | None = None) -> PolicySource:
    """The policy of a checkpoint; CheckpointError if its family cannot be quantised, or if it is quantised already.

    group: see `grouping`.
    """
    values = read_json(folder / CONFIG_FILE)
    refuse_quantised(folder, values)
    family = family_of(folder)
    if family.name not in FAMILIES:
        raise CheckpointError(
            f"{folder}: policies of the family {family.name} are not quantised; {', '.join(FAMILIES)} are"
        )
    weights = Weights(folder, torch.float32, torch.device("cpu"))
    model = FAMILIES[family.name](folder, weights)
    found = grouping(model.config, group)
    if found.inner != model.config.intermediate_size and model.actions is None:
        raise CheckpointError(
            f"{folder}: the MLP of width {model.config.intermediate_size} has no whole groups of {found.group}, and "
            f"the family {family.name} does not state this width in {CONFIG_FILE}, so it cannot be padded"
        )
    decoder = DecoderTensors(
        weights=weights,
        config=model.config,
        shape=model.shape,
        stem=model.stem,
        head=model.head,
        inner=found.inner,
    )
    source = Source(folder=folder, config=values, decoder=decoder, grouping=found, kept=model.kept)
    return PolicySource(family=family, source=source, actions=model.actions)


def _openvla(folder: Path, weights: Weights) -> PolicyLanguageModel:  # noqa: ARG001 - one signature
    found = load_openvla(folder)
    return PolicyLanguageModel(
        config=found.text,
        shape=_shape(found.text),
        stem=OPENVLA_STEM,
        head=OPENVLA_HEAD,
        kept=OPENVLA_KEPT,
        actions=range(found.action_vocab - found.n_action_bins, found.action_vocab),
    )


def _smolvla(folder: Path, weights: Weights) -> PolicyLanguageModel:
    """The language model of SmolVLA. Layers that the policy does not use stay as they are."""
    found = load_smolvla(folder)
    config = LlamaConfig(
        hidden_size=found.width,
        intermediate_size=found.inner,
        num_hidden_layers=len(found.cross),
        num_attention_heads=found.heads,
        num_key_value_heads=found.kv_heads,
        head_dim=found.head_dim,
        rms_norm_eps=found.eps,
        vocab_size=ANY_VOCABULARY,
    )
    prefix = _prefix(weights, PREFIX)
    stem = f"{prefix}{VLM}text_model."
    beyond = sorted({index for index in _layers(weights, stem) if index >= config.num_hidden_layers})
    return PolicyLanguageModel(
        config=config,
        shape=_shape(config, causal=False, closing=sizes_of(found).closing, outside=True),
        stem=stem,
        head=f"{prefix}vlm_with_expert.vlm.lm_head.weight",
        kept=(*SMOLVLA_KEPT, *(f"text_model.layers.{index}." for index in beyond)),
    )


def _pi(kind: str, folder: Path, weights: Weights) -> PolicyLanguageModel:
    text = load_pi(folder, kind).text
    config = LlamaConfig(
        hidden_size=text.width,
        intermediate_size=text.inner,
        num_hidden_layers=text.depth,
        num_attention_heads=text.heads,
        num_key_value_heads=text.kv_heads,
        head_dim=text.head_dim,
        rms_norm_eps=EPS,
        vocab_size=ANY_VOCABULARY,
    )
    below = f"{_prefix(weights, PREFIX)}{BOTH}paligemma."
    return PolicyLanguageModel(
        config=config,
        shape=_shape(config, gelu=True, plus_one=True, causal=False, outside=True),
        stem=f"{below}model.language_model.",
        head=f"{below}lm_head.weight",
        kept=PI_KEPT,
    )


def _shape(
    config: LlamaConfig,
    *,
    gelu: bool = False,
    plus_one: bool = False,
    causal: bool = True,
    closing: int = 0,
    outside: bool = False,
) -> BlockShape:
    return BlockShape(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        gelu=gelu,
        plus_one=plus_one,
        causal=causal,
        closing=closing,
        outside=outside,
    )


def _prefix(weights: Weights, prefix: str) -> str:
    """The common prefix of all names in a file that LeRobot saved, or ""."""
    return prefix if any(name.startswith(prefix) for name in weights) else ""


def _layers(weights: Weights, stem: str) -> set[int]:
    """The numbers of the layers that have tensors."""
    below = weights.under(f"{stem}layers.")
    return {int(name.partition(".")[0]) for name in below}


FAMILIES: dict[str, Callable[[Path, Weights], PolicyLanguageModel]] = {
    "openvla": _openvla,
    "smolvla": _smolvla,
    PI0: lambda folder, weights: _pi(PI0, folder, weights),
    PI05: lambda folder, weights: _pi(PI05, folder, weights),
}
