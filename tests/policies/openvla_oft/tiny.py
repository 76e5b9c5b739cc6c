"""Random OpenVLA-OFT checkpoints, a naive twin of the network, and bundles recorded from it.

The twin is plain torch over one dense sequence: no packed rows, no KV slots, no operators of the package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.models.checkpoint import Weights
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.network import OpenVLAVision
from edgeflow.policies.openvla.preprocess import Preprocessor
from tests.tiny_checkpoint import TinySize, write_checkpoint

HEAD, PROPRIO = "action_head--100_checkpoint.pt", "proprio_projector--100_checkpoint.pt"
KEY = "tiny_no_noops"


@dataclass(frozen=True, slots=True)
class TinyOFT:
    """Sizes of a checkpoint; prefix: of the names in its .pt files."""

    chunk: int = 3
    dims: int = 5
    proprio: int = 4
    bounds: str = "q99"
    prefix: str = "module."
    base: TinySize = field(default_factory=TinySize)

    def settings(self, **other: Any) -> dict[str, Any]:
        own = {"chunk": self.chunk, "dims": self.dims, "proprio": self.proprio, "images": 2, "bounds": self.bounds}
        return {**own, "control_rate_hz": 10.0, **other}


def write_oft(directory: Path, size: TinyOFT | None = None) -> Path:
    """Write the files of a checkpoint."""
    size = size or TinyOFT()
    write_checkpoint(directory, size.base)
    write_statistics(directory, {KEY: statistics(size.dims, size.proprio, size.base.seed)})
    generator = torch.Generator().manual_seed(size.base.seed + 1)
    width = size.base.hidden
    save_pt(directory / HEAD, _head(size.dims, width, generator), size.prefix)
    save_pt(directory / PROPRIO, _proprio(size.proprio, width, generator), size.prefix)
    return directory


def write_statistics(directory: Path, entries: dict[str, Any]) -> None:
    (directory / "dataset_statistics.json").write_text(json.dumps(entries))


def save_pt(path: Path, tensors: dict[str, Tensor], prefix: str = "module.") -> None:
    torch.save({prefix + name: tensor for name, tensor in tensors.items()}, path)


def statistics(dims: int, proprio: int, seed: int = 0) -> dict[str, Any]:
    """Of a data set; the last number of an action is left as it is."""
    random = np.random.default_rng(seed)

    def bounds(count: int) -> dict[str, list[float]]:
        low, span = random.uniform(-1.5, 0, count), random.uniform(0.5, 2, count)
        values = {"min": low - 0.2, "q01": low, "q99": low + span, "max": low + span + 0.2}
        return {key: value.tolist() for key, value in values.items()}

    action = {**bounds(dims), "mask": [True] * (dims - 1) + [False]}
    return {"action": action, "proprio": bounds(proprio)}


def _head(dims: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    tensors = {
        **_norm("model.layer_norm1", dims * width, generator),
        **_linear("model.fc1", width, dims * width, generator),
        **_norm("model.layer_norm2", width, generator),
        **_linear("model.fc2", dims, width, generator),
    }
    for block in ("model.mlp_resnet_blocks.0.ffn", "model.mlp_resnet_blocks.1.ffn"):
        tensors |= _norm(f"{block}.0", width, generator) | _linear(f"{block}.1", width, width, generator)
    return tensors


def _proprio(size: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    return _linear("fc1", width, size, generator) | _linear("fc2", width, width, generator)


def _linear(name: str, outputs: int, inputs: int, generator: torch.Generator) -> dict[str, Tensor]:
    weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
    return {f"{name}.weight": weight, f"{name}.bias": torch.randn(outputs, generator=generator) * 0.1}


def _norm(name: str, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    weight, bias = torch.randn(2, width, generator=generator) * 0.1
    return {f"{name}.weight": 1 + weight, f"{name}.bias": bias}


class OFTTwin:
    """The network over one dense sequence. The towers are those of OpenVLA, whose own tests are elsewhere."""

    def __init__(self, directory: Path, size: TinyOFT) -> None:
        self.size = size
        config = load_config(directory)
        self._preprocess = Preprocessor(config.image)
        self._vision = OpenVLAVision(config, Weights(directory, torch.float32, torch.device("cpu")), None)
        self._weights = load_file(directory / "model.safetensors")
        self._text = config.text
        self._head, self._proprio = (
            {key.removeprefix(size.prefix): value for key, value in torch.load(directory / name).items()}
            for name in (HEAD, PROPRIO)
        )
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._entry = json.loads((directory / "dataset_statistics.json").read_text())[KEY]

    def ids(self, instruction: str) -> list[int]:
        """BOS and the prompt, without the space after it."""
        prompt = f"In: What action should the robot take to {instruction.lower()}?\nOut:"
        return [1, *self._tokenizer.encode(prompt).ids]

    def pixel_values(self, images: Sequence[np.ndarray]) -> Tensor:
        """[images * channels, side, side]"""
        return torch.cat([torch.from_numpy(self._preprocess(image)) for image in images])

    def patches(self, images: Sequence[np.ndarray]) -> Tensor:
        """[images * patches, E], a camera at a time."""
        each = [self._vision.features(torch.from_numpy(self._preprocess(image))[None]) for image in images]
        return torch.cat([self._vision.project(features)[0] for features in each])

    def state(self, raw: np.ndarray) -> np.ndarray:
        low, high = self._bounds("proprio")
        return np.clip(2 * (raw - low) / (high - low + 1e-8) - 1, -1, 1)

    def rows(self, images: Sequence[np.ndarray], instruction: str, raw: np.ndarray | None) -> Tensor:
        """[L, E]"""
        table = self._weights["language_model.model.embed_tokens.weight"]
        text = table[[*self.ids(instruction), 3]]
        state = table[:0]
        if raw is not None:
            hidden = F.gelu(_apply(self._proprio, "fc1", torch.from_numpy(self.state(raw)).float()))
            state = _apply(self._proprio, "fc2", hidden)[None]
        placeholders = torch.zeros(self.size.chunk * self.size.dims, table.shape[1])
        return torch.cat([text[:1], self.patches(images), state, text[1:], placeholders, table[2:3]])

    def last_hidden(self, rows: Tensor) -> Tensor:
        """[L, E] → [L, E] after the final norm; every row sees every row."""
        x = rows
        for index in range(self._text.num_hidden_layers):
            at = f"language_model.model.layers.{index}."
            x = x + self._attention(at, self._rms(x, at + "input_layernorm"))
            normed = self._rms(x, at + "post_attention_layernorm")
            gate, up = (normed @ self._weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ self._weights[at + "mlp.down_proj.weight"].T
        return self._rms(x, "language_model.model.norm")

    def _attention(self, at: str, x: Tensor) -> Tensor:
        heads, width = self._text.num_attention_heads, self._text.head_dim
        q, k, v = (
            (x @ self._weights[f"{at}self_attn.{name}_proj.weight"].T).view(len(x), heads, width).transpose(0, 1)
            for name in "qkv"
        )
        scores = _rotated(q) @ _rotated(k).transpose(1, 2) / width**0.5
        out = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        return out @ self._weights[at + "self_attn.o_proj.weight"].T

    def _rms(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self._text.rms_norm_eps).rsqrt()
        return x * scale * self._weights[name + ".weight"]

    def read(self, hidden: Tensor, instruction: str) -> Tensor:
        """[chunk * dims, E]: from the last row of the prompt on."""
        count = self.size.chunk * self.size.dims
        first = len(hidden) - 1 - count - 1
        assert len(self.ids(instruction)) < first + 1
        return hidden[first : first + count]

    def logits(self, read: Tensor) -> Tensor:
        return read @ self._weights["language_model.lm_head.weight"].T

    def regressed(self, read: Tensor) -> Tensor:
        """[chunk, dims]"""
        head, x = self._head, read.reshape(self.size.chunk, -1)
        x = F.relu(_apply(head, "model.fc1", _layer_norm(head, "model.layer_norm1", x)))
        for block in ("model.mlp_resnet_blocks.0.ffn", "model.mlp_resnet_blocks.1.ffn"):
            x = x + F.relu(_apply(head, f"{block}.1", _layer_norm(head, f"{block}.0", x)))
        return _apply(head, "model.fc2", _layer_norm(head, "model.layer_norm2", x))

    def discretised(self, token_ids: Tensor) -> Tensor:
        """[chunk, dims]"""
        edges = torch.linspace(-1, 1, 256, dtype=torch.float64)
        bins = (len(self._weights["language_model.lm_head.weight"]) - 64 - token_ids - 1).clamp(0, 254)
        return ((edges[:-1] + edges[1:]) / 2)[bins].view(self.size.chunk, -1)

    def actions(self, normalised: np.ndarray) -> np.ndarray:
        low, high = self._bounds("action")
        scaled = 0.5 * (normalised + 1) * (high - low + 1e-8) + low
        return np.where(self._entry["action"]["mask"], scaled, normalised)

    def _bounds(self, kind: str) -> list[np.ndarray]:
        keys = ("q01", "q99") if self.size.bounds == "q99" else ("min", "max")
        return [np.array(self._entry[kind][key]) for key in keys]


def _apply(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _rotated(x: Tensor) -> Tensor:
    """[H, L, D], the first half against the second, by positions 0 .. L - 1."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * 10000.0 ** -(torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


INSTRUCTIONS = ("Put the carrot on the plate", "open it", "push the plate to the stove", "turn on")
KINDS = ((2, True, True), (1, False, True), (2, True, False), (2, True, True))
"""Images, state and head of each case."""


def write_bundle(directory: Path, size: TinyOFT | None = None) -> Path:
    """A checkpoint with a recording of each kind of case."""
    size = size or TinyOFT()
    write_oft(directory, size)
    (directory / "images").mkdir()
    twin, random = OFTTwin(directory, size), np.random.default_rng(size.base.seed)
    tensors: dict[str, Tensor] = {}
    entries = []
    for index, (instruction, (count, proprio, head)) in enumerate(zip(INSTRUCTIONS, KINDS, strict=True)):
        name = f"case{index}"
        side = size.base.side
        images = [random.integers(0, 256, (side, side, 3), np.uint8) for _ in range(count)]
        names = [f"images/{name}_{place}.png" for place in range(count)]
        for path, image in zip(names, images, strict=True):
            Picture.fromarray(image).save(directory / path)
        raw = random.uniform(-2.5, 2.5, size.proprio) if proprio else None
        values, recorded = record(twin, images, instruction, raw, head=head)
        tensors |= {f"{name}.{key}": value.clone().contiguous() for key, value in recorded.items()}
        entries.append({"name": name, "images": names, "num_images": count, **values})
    save_file(tensors, directory / "expected.safetensors")
    constants = {"NUM_ACTIONS_CHUNK": size.chunk, "ACTION_DIM": size.dims, "PROPRIO_DIM": size.proprio}
    constants |= {"platform": "NONE", "normalization": "bounds_q99" if size.bounds == "q99" else "bounds"}
    (directory / "cases.json").write_text(json.dumps({"constants": constants, "unnorm_key": KEY, "cases": entries}))
    return directory


@torch.inference_mode()
def record(
    twin: OFTTwin, images: Sequence[np.ndarray], instruction: str, raw: np.ndarray | None, *, head: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The entry of a case and its tensors, as the published bundles have them."""
    rows = twin.rows(images, instruction, raw)
    hidden = twin.last_hidden(rows)
    read = twin.read(hidden, instruction)
    logits = twin.logits(read)
    tokens = logits.argmax(-1)
    normalised = twin.regressed(read) if head else twin.discretised(tokens)
    top = logits.topk(32)
    tensors = {
        "in.input_ids": torch.tensor([twin.ids(instruction)]),
        "in.pixel_values": twin.pixel_values(images)[None],
        "mid.projected_patches": twin.patches(images)[None],
        "mid.lm_inputs_embeds": rows[None],
        "mid.lm_last_hidden": hidden[None],
        "mid.actions_hidden_states": read[None],
        "out.actions": torch.from_numpy(twin.actions(normalised.double().numpy())),
    }
    values: dict[str, Any] = {
        "instruction": instruction,
        "prompt": f"In: What action should the robot take to {instruction.lower()}?\nOut:",
        "proprio": raw is not None,
        "action_head": head,
        "sequence_length": len(rows),
        "n_prompt_ids": len(twin.ids(instruction)),
        "actions_shape": [twin.size.chunk, twin.size.dims],
    }
    if raw is not None:
        tensors |= {"in.proprio_raw": torch.from_numpy(raw), "in.proprio": torch.from_numpy(twin.state(raw))}
    if head:
        tensors["out.actions_normalized"] = normalised
    else:
        tensors |= {"mid.action_logits_top32_ids": top.indices, "mid.action_logits_top32_values": top.values}
        best = logits.topk(2).values
        values |= {"token_ids": tokens.tolist(), "min_top1_top2_margin": (best[:, 0] - best[:, 1]).min().item()}
    return values, tensors
