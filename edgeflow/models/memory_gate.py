"""The memory gate of EdgeInfinite: its rules, its tensors, and the two files beside a base that hold them.

`gate.json` has the sizes and the readings of the equations, `gate.safetensors` five tensors for each layer. The base
itself is never changed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.kv.memory import GateLayer
from edgeflow.models.checkpoint import read_tensors, tensor_shapes_of
from edgeflow.models.llama import LlamaConfig
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.files import sha256_of

JSON_FILE = "gate.json"
TENSOR_FILE = "gate.safetensors"
DIGEST = "gate_sha256"
"""The entry of gate.json with the digest of the tensors' file. Gates of others have none, and are not compared."""
FORMAT = "edgeinfinite-gate"
VERSION = 1
MLP_ACTIVATION = "relu"
MAX_SIZE = 1 << 24
MAX_HIDDEN = 1 << 14
"""The widest MLP, h: each row of a pass holds H * h numbers for a moment."""
PARTS = ("w1", "b1", "w2", "b2", "g")
CHOICES = {
    "positions": ("absolute", "local"),
    "fold": ("recompute", "cached"),
    "first_segment": ("bypass", "zero"),
    "memory_content": ("segment", "sink_and_segment"),
    "activation": ("elu_plus_one", "relu"),
}
"""The readings of what the paper leaves open, the default first."""
SAMPLES = 64
SAMPLE_BYTES = 1 << 14
"""Samples of a file, and bytes of each, that the fingerprint of a base reads."""
_IN_FILE = {"sink": "l_sink", "window": "l_window", "segment": "l_seg"}
_LEAST = {"sink": 0, "window": 1, "segment": 1}
_LEAST_EPS = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """How a long text is cut and folded; ConfigError for a value outside its range."""

    sink: int
    """Tokens that stay at the front of a slot."""
    window: int
    """The newest tokens, which are not folded yet."""
    segment: int
    """Tokens that are folded at a time."""
    positions: str = "absolute"
    """One of CHOICES, as are `fold` to `activation`."""
    fold: str = "recompute"
    first_segment: str = "bypass"
    memory_content: str = "segment"
    activation: str = "elu_plus_one"
    eps: float = 1e-6
    """The least denominator of a read."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_SIZE:
                raise ConfigError(
                    f"{name} ({_IN_FILE[name]}) must be an integer from {least} to {MAX_SIZE}, got {value!r}"
                )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be {' or '.join(choices)}, got {getattr(self, name)!r}")
        if type(self.eps) not in (int, float) or not _LEAST_EPS <= self.eps <= 1:
            raise ConfigError(f"eps must be a number from {_LEAST_EPS:.2g} to 1, got {self.eps!r}")
        if self.positions == "local" and self.fold == "cached":
            raise ConfigError(
                "positions 'local' does not go with fold 'cached': keys that are kept would stand at old positions"
            )

    @property
    def threshold(self) -> int:
        """The number of known tokens from which a text has folded segments."""
        return self.sink + self.window + self.segment

    def segments(self, known: int) -> int:
        """The number of whole segments between sink and window in a text of `known` tokens."""
        return max(0, (known - self.sink - self.window) // self.segment)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> GateRules:
        """The rules of a gate.json's entries; ConfigError as in the constructor. An option that is absent has its
        default.
        """
        given: dict[str, Any] = {name: values.get(stated) for name, stated in _IN_FILE.items()}
        given |= {name: values[name] for name in (*CHOICES, "eps") if name in values}
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The entries of a gate.json."""
        return {_IN_FILE.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryGate:
    """A gate for a base."""

    rules: GateRules
    layers: tuple[GateLayer, ...]
    mlp_hidden: int
    """H, the hidden width of the gate."""
    base_fingerprint: str = ""
    """The fingerprint of the base that it belongs to, "" where unknown."""

    @property
    def parameters(self) -> int:
        """The number of weights in its tensors."""
        return sum(tensor.numel() for layer in self.layers for tensor in layer.tensors().values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GateHeader:
    """A gate whose tensors have not been read."""

    path: Path
    """The path of the file with its tensors."""
    digest: str
    """SHA-256 of that file, "" where gate.json states none."""
    rules: GateRules
    mlp_hidden: int
    parameters: int
    """The number of weights in the tensors."""
    base_fingerprint: str = ""
    """The fingerprint of the base that it belongs to, "" where unknown."""

    def read(self, config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> MemoryGate:
        """The gate with its tensors; CheckpointError as in `read_layers`, and for a file of another digest.

        config: of the base.
        """
        layers = read_layers(self.path, config, dtype, device)
        if self.digest and sha256_of(self.path) != self.digest:
            raise CheckpointError(
                f"{self.path} is not the file that {JSON_FILE} names by {DIGEST}: copy both, or train again"
            )
        return MemoryGate(
            rules=self.rules, layers=layers, mlp_hidden=self.mlp_hidden, base_fingerprint=self.base_fingerprint
        )


def gate_header(path: Path, config: LlamaConfig, *, base_fingerprint: str = "") -> GateHeader:
    """Read the headers of a gate for a base of this configuration; CheckpointError says what is wrong with it.

    path: gate.json or its folder. base_fingerprint: of the base, compared with that of the gate
    where both are known.
    """
    path = path / JSON_FILE if path.is_dir() else path
    values = read_json(path)
    rules = _checked(values, path)
    stated = values.get("base_fingerprint", "")
    if not isinstance(stated, str):
        raise CheckpointError(f"{path}: base_fingerprint must be a text, got {stated!r}")
    if stated and base_fingerprint and stated != base_fingerprint:
        raise CheckpointError(
            f"{path}: base_fingerprint {stated} belongs to another base: this one has {base_fingerprint}"
        )
    file = path.parent / _gate_file(values, path)
    shapes = _checked_shapes(file, config)
    (hidden,) = shapes[tensor_name(0, "b1")][-1:]
    if values.get("mlp_hidden") != hidden:
        raise CheckpointError(f"{path}: mlp_hidden is {values.get('mlp_hidden')!r}, but the tensors have h = {hidden}")
    digest = values.get(DIGEST, "")
    if not isinstance(digest, str):
        raise CheckpointError(f"{path}: {DIGEST} must be a text, got {digest!r}")
    return GateHeader(
        path=file,
        digest=digest,
        rules=rules,
        mlp_hidden=hidden,
        parameters=sum(map(math.prod, shapes.values())),
        base_fingerprint=stated,
    )


def read_layers(path: Path, config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> tuple[GateLayer, ...]:
    """The tensors of each layer; CheckpointError for those of another base, missing ones and numbers not finite.

    path: a safetensors file. Shapes are checked before anything is read.
    """
    names = sorted(_checked_shapes(path, config))
    tensors = read_tensors(path)
    converted = {name: _converted(name, tensors[name], dtype, device, path) for name in names}
    return tuple(
        GateLayer(**{part: converted[tensor_name(layer, part)] for part in PARTS})
        for layer in range(config.num_hidden_layers)
    )


def _checked(values: Mapping[str, Any], path: Path) -> GateRules:
    """The rules of a gate.json whose format is read here."""
    wanted = {"format": FORMAT, "version": VERSION, "mlp_activation": MLP_ACTIVATION}
    for name, value in wanted.items():
        if values.get(name) != value:
            raise CheckpointError(f"{path}: {name} must be {value!r}, got {values.get(name)!r}")
    try:
        return GateRules.of_json(values)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _gate_file(values: Mapping[str, Any], path: Path) -> str:
    """The name of the file with the tensors, which lies beside gate.json."""
    name = values.get("gate_file", TENSOR_FILE)
    if not isinstance(name, str) or Path(name).name != name or not (path.parent / name).is_file():
        raise CheckpointError(f"{path}: gate_file must be a file beside {path.name}, got {name!r}")
    return name


def _checked_shapes(path: Path, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Shapes by name, from the header of a file with tensors; CheckpointError where they do not fit the base."""
    shapes = tensor_shapes_of(path)
    known = {tensor_name(layer, part) for layer in range(config.num_hidden_layers) for part in PARTS}
    strange = sorted(shapes.keys() - known)
    if strange:
        raise CheckpointError(
            f"{path}: {strange[0]} belongs to no layer of a base of {config.num_hidden_layers} layers"
        )
    missing = sorted(known - shapes.keys())
    if missing:
        raise CheckpointError(
            f"{path}: {missing[0]} is missing: {len(shapes)} tensors, the base needs {len(known)} "
            f"({config.num_hidden_layers} layers of {len(PARTS)})"
        )
    hidden = shapes[tensor_name(0, "b1")][-1:]
    for layer in range(config.num_hidden_layers):
        of_layer = {part: shapes[tensor_name(layer, part)] for part in PARTS}
        _check_shapes(of_layer, hidden, config, f"{path}: {tensor_name(layer, '')}")
    if max(hidden) > MAX_HIDDEN:
        raise CheckpointError(f"{path}: an MLP of h = {max(hidden)} is wider than {MAX_HIDDEN}")
    return shapes


def _check_shapes(
    shapes: Mapping[str, tuple[int, ...]], hidden: tuple[int, ...], config: LlamaConfig, where: str
) -> None:
    """CheckpointError for a layer whose tensors do not fit the base's heads and width."""
    heads, width = config.num_attention_heads, config.head_dim
    mlp = shapes["w1"][:1]
    wanted = {"w1": (*hidden, width), "b1": hidden, "w2": (width, *hidden), "b2": (width,), "g": (width,)}
    for part, rest in wanted.items():
        shape, lead = shapes[part], shapes[part][:1] if part == "g" else mlp
        if 0 in shape or lead not in ((1,), (heads,)) or shape != (*lead, *rest):
            raise CheckpointError(
                f"{where}{part} has shape {list(shape)}, but a base of {heads} heads of width {width} needs "
                f"[1 or {heads}, {', '.join(map(str, rest))}], the leading size alike for the whole MLP"
            )


def _converted(name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device, path: Path) -> Tensor:
    if not tensor.dtype.is_floating_point:
        raise CheckpointError(f"{path}: {name} has dtype {tensor.dtype}, expected floats")
    converted = tensor.to(device=device, dtype=dtype, copy=True)
    if not converted.isfinite().all():
        raise CheckpointError(f"{path}: {name} holds a number that is not finite in {dtype}")
    return converted


def tensor_name(layer: int, part: str) -> str:
    """The name of a layer's tensor in the file."""
    return f"model.layers.{layer}.self_attn.memory_gate.{part}"


def base_fingerprint(directory: Path) -> str:
    """SHA-256 over sizes and samples of a checkpoint's weights files; CheckpointError where one cannot be read.

    A gate fits the weights, so other files do not count: those of the gate may lie beside them, and a changed chat
    template does no harm. The samples are spread evenly over each file, because models that were trained further often
    share their first tensors. A file of up to SAMPLES * SAMPLE_BYTES counts whole.
    """
    digest = hashlib.sha256()
    for file in find_weights(directory).paths:
        try:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode())
            step = max(SAMPLE_BYTES, (size - SAMPLE_BYTES) // (SAMPLES - 1))
            with file.open("rb") as stream:
                for start in range(0, size, step):
                    stream.seek(start)
                    digest.update(stream.read(SAMPLE_BYTES))
        except OSError as error:
            raise CheckpointError(f"{file} is unreadable: copy the checkpoint again") from error
    return digest.hexdigest()
