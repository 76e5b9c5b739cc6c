"""An implementation of an operator: where it is, and on which devices and for which calls it may run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import torch

from edgeflow.kernels.table.dimensions import KINDS
from edgeflow.kernels.weights import CONVERSIONS, FLOAT, Weight, converted
from edgeflow_client.errors import ConfigError

REFERENCE = "reference"
STORED, FLOATS = "stored", "floats"


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device as the table sees it."""

    device_type: str
    arch: int = 0
    """87 for compute capability 8.7; 0 where there is none, or where it is not known."""

    @classmethod
    def of(cls, device: torch.device) -> Hardware:
        if device.type == "cuda" and torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability(device)
            return cls("cuda", 10 * major + minor)
        return cls(device.type)

    @classmethod
    def named(cls, profile: str) -> Hardware:
        """cpu, cuda, cuda_sm87; ConfigError otherwise."""
        device_type, _, arch = profile.partition("_sm")
        if device_type not in ("cpu", "cuda") or (arch and not arch.isdigit()) or (arch and device_type == "cpu"):
            raise ConfigError(f"hardware profile {profile!r}: name cpu, cuda, or an architecture as in cuda_sm87")
        return cls(device_type, int(arch or 0))

    @property
    def profile(self) -> str:
        return f"{self.device_type}_sm{self.arch}" if self.arch else self.device_type


@dataclass(frozen=True, slots=True)
class Implementation:
    """A candidate to serve an operator."""

    op_name: str
    impl_id: str
    function: Callable[..., Any] | str
    """The function itself, or where to import it from ("module:name") when it is first chosen."""
    _: KW_ONLY
    devices: frozenset[str] = frozenset()
    """Device types on which it runs; empty for all."""
    dtypes: frozenset[torch.dtype] = frozenset()
    """Dtypes with which it runs; empty for all."""
    least_arch: int = 0
    """The lowest CUDA architecture."""
    needs: tuple[str, ...] = ()
    """Libraries that must be installed."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The largest sizes that it takes, by their letter in a shape signature."""
    multiples: Mapping[str, int] = field(default_factory=dict)
    """The divisors of the sizes that it takes, likewise."""
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Parameters with the values worth trying, the default first."""
    weight: str = ""
    """The weight format for which it is made; "" for any, and for operators without weights."""
    made_from: str = ""
    """STORED for weights that the model holds in the format, FLOATS for those that it converts; "" for both."""
    deviation: float = 0.0
    """The relative deviation of its results, where that is more than its format and dtype explain
    (lab/trials/compare.py).
    """
    stage: str = ""
    """The stage of the passes that it serves; "" for all."""
    kv: str = ""
    """The KV format that it writes or reads; "" for all."""
    absent: str = ""
    """The reason why it cannot run here; "" where it can."""
    replayable: bool = True
    """True when it can be captured in a graph: the host reads nothing that differs between passes of one shape."""
    causal: bool = False
    """True for attention that rejects layouts with `visibility`."""

    def takes(self, kv: str) -> bool:
        """True when it serves calls over this KV format; "" stands for one that is not known."""
        return "" in (self.kv, kv) or self.kv == kv

    def takes_weight(self, format: str) -> bool:
        """True when it serves weights of this format, or float ones after a conversion; "" stands for not known."""
        if not self.weight or not format:
            return True
        return (self.stored and self.weight == format) or (self.converts and format == FLOAT)

    @property
    def stored(self) -> bool:
        """True when it serves weights that a model holds in its format."""
        return self.made_from != FLOATS

    @property
    def converts(self) -> bool:
        """True when it serves float weights after a conversion to its format."""
        return self.weight in CONVERSIONS and self.made_from != STORED

    def load(self) -> Callable[..., Any]:
        """The function; one that is made for a format of weights converts a float weight to it."""
        function = self.function
        if not callable(function):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        return partial(_given_converted, function, self.weight) if self.weight else function

    def objection(self, hardware: Hardware, dtype: torch.dtype, shape_sig: str = "") -> str:
        """The reason why it cannot serve a context, in a few words; "" when it can."""
        if self.devices and hardware.device_type not in self.devices:
            return f"not for {hardware.device_type}"
        if hardware.arch and hardware.arch < self.least_arch:
            return f"needs sm_{self.least_arch}"
        if self.dtypes and dtype not in self.dtypes:
            return f"not for {str(dtype).removeprefix('torch.')}"
        if self.absent:
            return self.absent
        return self.size_objection(shape_sig) or next(filter(None, map(unusable, self.needs)), "")

    def size_objection(self, shape_sig: str) -> str:
        """The sizes of a call that it does not take, in a few words."""
        sizes = {
            letter: int(size) for letter, _, size in (part.partition("=") for part in shape_sig.split("|")) if size
        }
        known = self.limits.keys() & sizes.keys(), self.multiples.keys() & sizes.keys()
        over = [f"{letter} over {self.limits[letter]}" for letter in known[0] if sizes[letter] > self.limits[letter]]
        odd = [
            f"{letter} no multiple of {self.multiples[letter]}"
            for letter in known[1]
            if sizes[letter] % self.multiples[letter]
        ]
        return ", ".join(over + odd)


def _given_converted(make: Callable[..., Any], format: str, weight: Weight, *others: Any, **params: Any) -> Any:
    return make(converted(weight, format), *others, **params)


def unusable(library: str) -> str:
    """The reason why a library cannot be imported, in a few words; "" when it can."""
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        return f"{library} is not installed" if error.name == library else f"{library} needs {error.name}"
    except Exception as error:  # whatever goes wrong inside a library, another candidate serves
        return f"{library} does not import ({type(error).__name__})"
    return ""


ATTENTION_TILES = {"block_m": (64, 32, 128), "block_n": (64, 32), "num_warps": (0, 4, 8), "num_stages": (2, 3)}
"""Choices of the kernels of attention."""
FLOAT_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes of rows that the kernels take, where an entry does not say otherwise."""


def triton_kernel(
    op_name: str, file: str, limits: Mapping[str, int], *, kv: str = "", **choices: tuple[int, ...]
) -> Implementation:
    """A kernel of kernels/triton/<file>.py. file: with its name after a colon, where that is not its operator's.
    Attention in float32 spills its registers."""
    where = f"edgeflow.kernels.triton.{file}" + ("" if ":" in file else f":{op_name}")
    dtypes = FLOAT_DTYPES - {torch.float32} if KINDS[op_name] == "attention" else FLOAT_DTYPES
    return Implementation(
        op_name=op_name,
        impl_id="triton",
        function=where,
        devices=frozenset({"cuda"}),
        dtypes=dtypes,
        least_arch=80,
        needs=("triton",),
        limits=limits,
        choices=choices,
        kv=kv,
    )


def of_flashinfer(
    op_name: str,
    where: str,
    multiples: Mapping[str, int],
    impl_id: str = "flashinfer",
    kv: str = "",
    **choices: tuple[int, ...],
) -> Implementation:
    """An adapter of kernels/flashinfer/ to the library."""
    where, devices, dtypes = f"edgeflow.kernels.flashinfer.{where}", frozenset({"cuda"}), FLOAT_DTYPES - {torch.float32}
    limits = {"d": 256} if "d" in multiples else {}
    return Implementation(
        op_name=op_name,
        impl_id=impl_id,
        function=where,
        devices=devices,
        dtypes=dtypes,
        least_arch=80,
        needs=("flashinfer",),
        limits=limits,
        multiples=multiples,
        choices=choices,
        kv=kv,
    )
