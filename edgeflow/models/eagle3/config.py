"""The configuration of an EAGLE-3 head and its files, checked against its base before any tensor is read.

The files are config.json, and model.safetensors or pytorch_model.bin beside it, which models/weights_only.py reads.
Tensors have the names of the original implementation (midlayer.self_attn.q_proj.weight, d2t, ...). Those of vLLM
(layers.0.self_attn.q_proj.weight, draft_id_to_target_id) are read as these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from edgeflow.models.attention.heads import GroupedHeads
from edgeflow.models.checkpoint import CONFIG_FILE, Weights, tensor_shapes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.published import decoder_config
from edgeflow.models.weights_only import MOST_BYTES, read_state_dict
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.weight_files import INDEX_FILE, SINGLE_FILE
from edgeflow_client.errors import CheckpointError, ConfigError

BIN_FILE = "pytorch_model.bin"
LAYER = "midlayer."
OFFSETS = "d2t"
_RENAMED = {"layers.0.": LAYER, "draft_id_to_target_id": OFFSETS}
_UNREAD = ("t2d", f"{LAYER}self_attn.rotary_emb.inv_freq")
"""Tensors that follow from others."""
_INNER = "transformer_layer_config"
LEAST_LAYERS = 7
"""The least number of layers of a base whose three default taps differ."""
IDS = "eagle_aux_hidden_state_layer_ids"
ANOTHER = "take a head that was trained for this base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """The sizes of a head and its taps."""

    text: LlamaConfig
    """The sizes of its one layer; vocab_size is the base's V."""
    draft_vocabulary: int
    """Vd, the number of tokens that it can propose."""
    taps: tuple[int, ...]
    """The layers of the base whose inputs it reads, 0-based and ascending."""
    target_hidden: int
    """E of the base."""
    norm_before_residual: bool
    """True where the residual stream begins with the normed feature."""
    own_embedding: bool
    """True where the head has its own embedding, instead of the base's."""

    @property
    def attention(self) -> GroupedHeads:
        """Heads that read the embedding of a token beside a feature, 2 E numbers."""
        text = self.text
        return GroupedHeads(
            hidden=text.hidden_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            bias=text.attention_bias,
            norm=False,
            eps=text.rms_norm_eps,
            inputs=2 * text.hidden_size,
        )

    @property
    def feature_width(self) -> int:
        """The width of a row of the base's features."""
        return len(self.taps) * self.target_hidden

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, by their original names."""
        text, attention = self.text, self.attention
        width, inner = text.hidden_size, text.intermediate_size
        norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (width, self.feature_width),
            **{f"{LAYER}{name}.weight": (width,) for name in norms},
            **{f"{LAYER}self_attn.{name}.weight": shape for name, shape in attention.linears.items()},
            f"{LAYER}mlp.gate_proj.weight": (inner, width),
            f"{LAYER}mlp.up_proj.weight": (inner, width),
            f"{LAYER}mlp.down_proj.weight": (width, inner),
            "norm.weight": (width,),
            "lm_head.weight": (self.draft_vocabulary, width),
        }
        if attention.bias:
            biased = (f"{name}_proj" for name in "qkv")
            shapes |= {f"{LAYER}self_attn.{name}.bias": attention.linears[name][:1] for name in biased}
        if self.own_embedding:
            shapes["embed_tokens.weight"] = (text.vocab_size, width)
        if self.draft_vocabulary != text.vocab_size:
            shapes[OFFSETS] = (self.draft_vocabulary,)
        return shapes

    @property
    def parameters(self) -> int:
        """The number of weights in all tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def read_eagle3(directory: Path, base: LlamaConfig) -> Eagle3Config:
    """Read config.json and the headers of the weights.

    CheckpointError for files that are missing, broken or do not fit each other. ConfigError for a head that does not
    fit the base (another vocabulary or hidden size, taps beyond its layers), and for one of a kind that is not served.
    """
    directory = Path(directory)
    values, shapes = head_entries(directory), head_shapes(directory)
    where = f"{directory}: "
    _reject_others(values, where)
    text = _text(values, shapes, where)
    _check_fits(values, text, shapes, base, where)
    vocabulary = values.get("draft_vocab_size", text.vocab_size)
    if type(vocabulary) is not int or not 1 <= vocabulary <= text.vocab_size:
        raise CheckpointError(f"{where}draft_vocab_size must be from 1 to vocab_size {text.vocab_size}: {vocabulary!r}")
    before = values.get("norm_before_residual", False)
    if type(before) is not bool:
        raise CheckpointError(f"{where}norm_before_residual must be true or false, got {before!r}")
    config = Eagle3Config(
        text=text,
        draft_vocabulary=vocabulary,
        taps=_taps(values, base.num_hidden_layers, where),
        target_hidden=base.hidden_size,
        norm_before_residual=before,
        own_embedding="embed_tokens.weight" in shapes,
    )
    _check_shapes(config, shapes, where)
    return config


def _reject_others(values: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for heads of an unsupported kind."""
    activation, layers = values.get("hidden_act", "silu"), values.get("num_hidden_layers", 1)
    if activation != "silu":
        raise ConfigError(f"{where}hidden_act {activation!r} is not supported; supported: silu")
    if layers != 1:
        raise ConfigError(f"{where}num_hidden_layers is {layers!r}; a draft head of 1 layer is supported")
    if _eagle_config(values, where).get("use_aux_hidden_state", True) is not True:
        raise ConfigError(f"{where}eagle_config.use_aux_hidden_state is false: only heads that read taps are supported")


def _text(values: Mapping[str, Any], shapes: Mapping[str, Any], where: str) -> LlamaConfig:
    """The layer's sizes. Its queries, keys and values have biases where the file holds them."""
    biased = f"{LAYER}self_attn.q_proj.bias" in shapes
    if values.get("attention_bias") and not biased:
        raise CheckpointError(f"{where}attention_bias is true, but {LAYER}self_attn.q_proj.bias is missing")
    plain = {"num_hidden_layers": 1, "attention_bias": False, "tie_word_embeddings": False}
    try:
        return replace(decoder_config({**values, **plain}, "llama"), attention_bias=biased)
    except KeyError as error:
        raise CheckpointError(f"{where}config.json lacks {error.args[0]}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where}config.json has a value that cannot be used: {error}") from error


def _check_fits(
    values: Mapping[str, Any], text: LlamaConfig, shapes: Mapping[str, tuple[int, ...]], base: LlamaConfig, where: str
) -> None:
    """Raise ConfigError where the head belongs to another base."""
    if text.vocab_size != base.vocab_size:
        raise ConfigError(
            f"{where}vocab_size is {text.vocab_size}, but the base has vocab_size {base.vocab_size}: {ANOTHER}"
        )
    stated = values.get("target_hidden_size", base.hidden_size)
    if stated != base.hidden_size:
        raise ConfigError(
            f"{where}target_hidden_size is {stated!r}, but the base has hidden_size {base.hidden_size}: {ANOTHER}"
        )
    if text.hidden_size != base.hidden_size and "embed_tokens.weight" not in shapes:
        raise ConfigError(
            f"{where}hidden_size is {text.hidden_size}, but the base has hidden_size {base.hidden_size}: such a head "
            "needs embed_tokens.weight, which it lacks"
        )


def _taps(values: Mapping[str, Any], layers: int, where: str) -> tuple[int, ...]:
    """The layers whose input is read: those that config.json names, or 2, N // 2 and N - 3.

    An entry `eagle_aux_hidden_state_layer_ids` of eagle_config names layers whose output is read: SpecForge writes it,
    and SGLang's set_eagle3_layers_to_capture adds one to each id. The entry of this name at the top level names layers
    whose input is read: speculators writes it, and vLLM's set_aux_hidden_state_layers takes its ids as they are.
    """
    outputs, inputs = _eagle_config(values, where).get(IDS), values.get(IDS)
    found = [
        tuple(each + shift for each in _layer_ids(ids, f"{where}{name}"))
        for ids, shift, name in ((outputs, 1, f"eagle_config.{IDS}"), (inputs, 0, IDS))
        if ids is not None
    ]
    if not found:
        if layers < LEAST_LAYERS:
            raise ConfigError(
                f"{where}taps 2, N // 2 and N - 3 need a base of at least {LEAST_LAYERS} layers, this one has "
                f"{layers}: name others in {IDS}"
            )
        return 2, layers // 2, layers - 3
    if found[0] != found[-1]:
        raise ConfigError(
            f"{where}eagle_config.{IDS} {outputs} are outputs, so inputs {list(found[0])}, but {IDS} has inputs "
            f"{inputs}: keep one of them"
        )
    taps = found[0]
    if not 0 <= taps[0] <= taps[-1] < layers or any(each >= later for each, later in pairwise(taps)):
        raise ConfigError(
            f"{where}{IDS}: the inputs of layers {list(taps)} are read, but the base has layers 0 to {layers - 1}, and "
            f"they must ascend: {ANOTHER}"
        )
    return taps


def _eagle_config(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    inner = values.get("eagle_config", {})
    if not isinstance(inner, dict):
        raise CheckpointError(f"{where}eagle_config must be an object, got {inner!r}")
    return inner


def _layer_ids(ids: Any, where: str) -> list[int]:
    if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
        raise CheckpointError(f"{where} must be a list of integers, got {ids!r}")
    return ids


def _check_shapes(config: Eagle3Config, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Compare the header's shapes with those of the configuration."""
    wanted, width = config.shapes, config.feature_width
    spare = {OFFSETS: (config.draft_vocabulary,)}  # offsets that are all zero
    missing = sorted(wanted.keys() - shapes.keys())
    if missing:
        raise CheckpointError(f"{where}{missing[0]} is missing: copy the head again")
    strange = sorted(shapes.keys() - wanted.keys() - spare.keys())
    if strange:
        raise ConfigError(f"{where}{strange[0]} belongs to a kind of head that is not supported")
    read = shapes["fc.weight"]
    if len(read) == 2 and read[1] != width:
        raise ConfigError(
            f"{where}fc.weight has {read[1]} inputs, but {len(config.taps)} taps of a base with hidden_size "
            f"{config.target_hidden} have {width}: {ANOTHER}"
        )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{where}{name} has shape {list(shapes[name])}, but config.json says {list(shape)}: copy the head again"
            )


def head_entries(directory: Path) -> dict[str, Any]:
    """The entries of config.json. Those that the speculators format nests are lifted; CheckpointError if unreadable."""
    values = read_json(directory / CONFIG_FILE)
    inner = values.get(_INNER, {})
    if not isinstance(inner, dict):
        raise CheckpointError(f"{directory / CONFIG_FILE}: {_INNER} must be an object, got {inner!r}")
    return {name: value for name, value in {**values, **inner}.items() if value is not None}


def head_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that are read, by their original names; only headers are read.

    CheckpointError where the files are missing or broken, or where two tensors have one name.
    """
    if _has_safetensors(directory):
        stored = tensor_shapes(directory)
    else:
        stored = {name: tuple(each.shape) for name, each in _bin_tensors(directory).items()}
    shapes = {_original(name): shape for name, shape in stored.items()}
    if len(shapes) < len(stored):
        raise CheckpointError(f"{directory} holds a tensor twice, by its original name and by vLLM's: keep one of them")
    return {name: shape for name, shape in shapes.items() if name not in _UNREAD}


def head_weights(directory: Path, dtype: torch.dtype, device: torch.device) -> Weights:
    """The tensors by their original names; CheckpointError as in `head_shapes`."""
    if _has_safetensors(directory):
        weights = Weights(directory, dtype, device)
    else:
        weights = Weights.of(_bin_tensors(directory), dtype, device, where=f"{directory}: ")
    return weights.renamed(_RENAMED)


def _has_safetensors(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (SINGLE_FILE, INDEX_FILE))


def _bin_tensors(directory: Path) -> dict[str, torch.Tensor]:
    path = directory / BIN_FILE
    if not path.is_file():
        raise CheckpointError(f"{directory} has neither {SINGLE_FILE} nor {BIN_FILE}: give the directory of a head")
    return read_state_dict(path, MOST_BYTES)


def _original(name: str) -> str:
    for other, original in _RENAMED.items():
        if name.startswith(other):
            return original + name.removeprefix(other)
    return name
