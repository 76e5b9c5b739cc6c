"""Every implementation of every operator, where it may run, and which serves by default."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from edgeflow.errors import ConfigError
from edgeflow.kernels import (
    fp8_linear,
    greedy,
    int8_kv,
    layer_norm,
    linear,
    packed_attention,
    rms_norm,
    rope_write_kv,
    slots_in_place,
    swiglu,
    varlen_attention,
)
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.kv import shift_kv
from edgeflow.kernels.native import library as native_library
from edgeflow.kernels.native import linear as native
from edgeflow.kernels.quantised import torch_int4, torch_int8
from edgeflow.kernels.table.dimensions import KINDS
from edgeflow.kernels.weights import CONVERSIONS, FLOAT, Weight, converted

REFERENCE = "reference"
STORED, FLOATS = "stored", "floats"
ROWS_OF_8_BITS, ROWS_BY_GROUP = 1e-2, 1.4e-2
"""Deviation of products whose rows are in 8 bits with a scale per 32 inputs, or per group of up to 128."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device as the table sees it. arch: 87 for compute capability 8.7; 0 where there is none or it is not known."""

    device_type: str
    arch: int = 0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A candidate. function: itself, or where it is ("module:name"), imported when it is first chosen.

    devices, dtypes: where it may run, empty means everywhere; least_arch: the lowest CUDA architecture; needs:
    libraries; limits, multiples: the largest sizes it takes and the divisors of those it takes, by their letter in a
    shape signature; choices: parameters with the values worth trying, the default first.
    weight: the format of the weight that it is made for; "" for any, and for operators without weights. made_from: of
    such a weight, STORED: what the model holds in the format, FLOATS: what it converts; "" for both. deviation: of its
    results where that is more than its format and dtype explain (kernels/trials/compare.py).
    stage: the stage of the passes that it serves; "" for all. kv: the KV format that it writes or reads; "" for all.
    absent: the reason why it cannot run here; "" where it can. replayable: it can be captured in a graph, for the host
    reads nothing that differs between passes of one shape. causal: attention that refuses layouts with `sees`.
    """

    op_name: str
    impl_id: str
    function: Callable[..., Any] | str
    devices: frozenset[str] = frozenset()
    dtypes: frozenset[torch.dtype] = frozenset()
    least_arch: int = 0
    needs: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    weight: str = ""
    made_from: str = ""
    deviation: float = 0.0
    stage: str = ""
    kv: str = ""
    absent: str = ""
    replayable: bool = True
    causal: bool = False

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
        """The reason why it may not serve there, in a few words; "" when it may."""
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


_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
_TILES = {"block_m": (64, 32, 128), "block_n": (64, 32), "num_warps": (0, 4, 8), "num_stages": (2, 3)}


def _triton(
    op_name: str, file: str, limits: Mapping[str, int], *, kv: str = "", **choices: tuple[int, ...]
) -> Implementation:
    """A kernel of kernels/triton/<file>.py, named as its operator and a KV format other than dense. Attention in
    float32 spills its registers."""
    where = f"edgeflow.kernels.triton.{file}:{op_name}" + (f"_{kv}" if kv not in ("", "dense") else "")
    dtypes = _FLOATS - {torch.float32} if KINDS[op_name] == "attention" else _FLOATS
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


def _flashinfer(
    op_name: str,
    where: str,
    multiples: Mapping[str, int],
    impl_id: str = "flashinfer",
    kv: str = "",
    **choices: tuple[int, ...],
) -> Implementation:
    """An adapter of kernels/flashinfer/ to the library."""
    where, devices, dtypes = f"edgeflow.kernels.flashinfer.{where}", frozenset({"cuda"}), _FLOATS - {torch.float32}
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


BUILT_IN = (
    Implementation(op_name="rms_norm", impl_id=REFERENCE, function=rms_norm.reference),
    Implementation(op_name="rms_norm", impl_id="fused", function=rms_norm.fused),
    _triton("rms_norm", "rms_norm", {"e": 1 << 16}, num_warps=(4, 8, 16)),
    _flashinfer("rms_norm", "rows:rms_norm", {}),
    Implementation(op_name="add_rms_norm", impl_id=REFERENCE, function=rms_norm.add_reference),
    Implementation(op_name="add_rms_norm", impl_id="fused", function=rms_norm.add_fused),
    _triton("add_rms_norm", "rms_norm", {"e": 1 << 16}, num_warps=(4, 8, 16)),
    _flashinfer("add_rms_norm", "rows:add_rms_norm", {}),
    Implementation(op_name="add_layer_norm", impl_id=REFERENCE, function=layer_norm.add_reference),
    Implementation(op_name="add_layer_norm", impl_id="fused", function=layer_norm.add_fused),
    _triton("add_layer_norm", "layer_norm", {"e": 1 << 14}, num_warps=(4, 8, 2)),
    Implementation(op_name="rope_write_kv", impl_id=REFERENCE, kv="dense", function=rope_write_kv.reference),
    Implementation(op_name="rope_write_kv", impl_id="indexed", kv="dense", function=rope_write_kv.indexed),
    _triton("rope_write_kv", "rope_write_kv", {"d": 512}, kv="dense", block_h=(16, 8, 32)),
    _flashinfer("rope_write_kv", "rows:rope_write_kv", {"d": 64}, kv="dense"),
    Implementation(op_name="rope_write_kv", impl_id=REFERENCE, kv="int8", function=int8_kv.write),
    Implementation(op_name="rope_write_kv", impl_id="indexed", kv="int8", function=int8_kv.write_indexed),
    _triton("rope_write_kv", "rope_write_kv", {"d": 512}, kv="int8", block_h=(16, 8, 32)),
    Implementation(
        op_name="packed_attention", impl_id=REFERENCE, function=packed_attention.reference, replayable=False
    ),
    Implementation(op_name="packed_attention", impl_id="masked", function=packed_attention.masked),
    Implementation(
        op_name="packed_attention", impl_id="naive_gather", function=packed_attention.naive_gather, replayable=False
    ),
    Implementation(
        op_name="packed_attention",
        impl_id="slots_in_place",
        kv="dense",
        function=slots_in_place.slots_in_place,
        choices={"tile": (slots_in_place.TILE, 0, 128)},
        replayable=False,
    ),
    Implementation(
        op_name="packed_attention",
        impl_id="widened",
        kv="int8",
        function=int8_kv.attention_widened,
        replayable=False,
    ),
    *(
        _triton("packed_attention", "packed_attention", {"d": 256}, kv=kv, **_TILES, splits=(0, 1, 4), apart=(0, 1))
        for kv in ("dense", "int8")
    ),
    _flashinfer(
        "packed_attention",
        "attention:packed_attention",
        {"d": 64},
        kv="dense",
        tensor_cores=(1, 0),
        apart=(0, 1),
    ),
    replace(
        _flashinfer("packed_attention", "attention:packed_attention_mixed", {"d": 64}, "flashinfer_mixed", kv="dense"),
        replayable=False,
        causal=True,
    ),
    Implementation(op_name="varlen_attention", impl_id=REFERENCE, function=varlen_attention.reference),
    Implementation(op_name="varlen_attention", impl_id="sdpa", function=varlen_attention.sdpa),
    Implementation(
        op_name="varlen_attention",
        impl_id="products",
        function=varlen_attention.products,
        devices=frozenset({"cpu"}),
        dtypes=frozenset({torch.bfloat16}),
    ),
    _triton("varlen_attention", "varlen_attention", {"d": 256}, kv="", **_TILES),
    Implementation(op_name="swiglu", impl_id=REFERENCE, function=swiglu.reference),
    Implementation(op_name="swiglu", impl_id="fused", function=swiglu.fused),
    _triton("swiglu", "swiglu", {}, block=(1024, 512, 2048)),
    _flashinfer("swiglu", "rows:swiglu", {"f": 8}),
    Implementation(op_name="shift_kv", impl_id=REFERENCE, function=shift_kv.reference),
    Implementation(op_name="shift_kv", impl_id="strided", function=shift_kv.strided),
    _triton("shift_kv", "shift_kv", {}),
    Implementation(op_name="shift_kv_chain", impl_id=REFERENCE, function=shift_kv.chain_reference, replayable=False),
    Implementation(op_name="shift_kv_chain", impl_id="strided", function=shift_kv.chain_strided, replayable=False),
    Implementation(op_name="shift_kv_chain", impl_id="indexed", function=shift_kv.chain_indexed),
    _triton("shift_kv_chain", "shift_kv", {}),
    Implementation(op_name="greedy", impl_id=REFERENCE, function=greedy.reference),
    Implementation(op_name="greedy", impl_id="reduced", function=greedy.reduced),
    _triton("greedy", "greedy", {}, block=(4096, 2048, 8192)),
    Implementation(op_name="linear", impl_id=REFERENCE, function=linear.Reference),
    Implementation(op_name="linear", impl_id="gemm", function=linear.Gemm, weight=FLOAT),
    Implementation(
        op_name="linear",
        impl_id="packed",
        function=linear.Packed,
        devices=frozenset({"cpu"}),
        dtypes=linear.packed_dtypes(),
        weight=FLOAT,
        absent=linear.no_onednn(),
    ),
    Implementation(
        op_name="linear",
        impl_id="matmul_nbits",
        function="edgeflow.kernels.quantised.matmul_nbits:MatMulNBits",
        devices=frozenset({"cpu"}),
        needs=("onnxruntime", "onnx"),
        weight=AWQ,
        deviation=ROWS_BY_GROUP,
    ),
    Implementation(
        op_name="linear",
        impl_id="dequantised",
        function=linear.Dequantised,
        devices=frozenset({"cpu", "cuda"}),
        weight=AWQ,
    ),
    replace(
        _triton(
            "linear",
            "awq",
            {},
            block_m=(0, 16, 32, 64),
            block_n=(128, 64),
            splits=(0, 1, 4),
            num_warps=(0, 4, 8),
            num_stages=(4, 3),
        ),
        dtypes=_FLOATS - {torch.float32},
        multiples={"n": 8, "e": 32},
        weight=AWQ,
    ),
    Implementation(
        op_name="linear",
        impl_id="torch_int4",
        function=torch_int4.TorchInt4,
        devices=frozenset({"cpu"}),
        dtypes=frozenset({torch.bfloat16}),  # others have no fast product in torch
        multiples={"n": 16},
        weight=AWQ,
        absent=torch_int4.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="native_int4",
        function=native.Int4,
        devices=frozenset({"cpu"}),
        dtypes=frozenset(native_library.KINDS),
        weight=AWQ,
        deviation=ROWS_OF_8_BITS,
        absent=native_library.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="torch_int8",
        function=torch_int8.TorchInt8,
        devices=frozenset({"cpu"}),
        weight="int8",
        made_from=STORED,
        absent=torch_int8.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="native_int8",
        function=native.Int8,
        devices=frozenset({"cpu"}),
        dtypes=frozenset(native_library.KINDS),
        multiples={"e": native.BLOCK},
        weight="int8",
        made_from=STORED,
        deviation=ROWS_OF_8_BITS,
        absent=native_library.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="int8",
        function=linear.Int8,
        devices=frozenset({"cpu"}),
        limits={"m": 1},
        weight="int8",
        made_from=FLOATS,
        stage="decode",
    ),
    Implementation(
        op_name="linear",
        impl_id="fp8_emulated",
        function=fp8_linear.Emulated,
        devices=frozenset({"cpu"}),
        weight="fp8",
    ),
    Implementation(
        op_name="linear",
        impl_id="fp8",
        function="edgeflow.kernels.triton.fp8:linear",
        devices=frozenset({"cuda"}),
        dtypes=frozenset({torch.bfloat16}),
        least_arch=89,
        needs=("triton",),
        limits={"e": 1 << 16},
        multiples={"n": 16, "e": 16},
        weight="fp8",
        absent=fp8_linear.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="cublasLt",
        function="",
        devices=frozenset({"cuda"}),
        choices={"algo_index": (0,)},
        weight=FLOAT,
        absent="edgeflow has no binding of cuBLASLt",
    ),
)

DEFAULTS: Mapping[str, Mapping[str, str | tuple[str, ...]]] = {
    "": {
        "rms_norm": "fused",
        "add_rms_norm": "fused",
        "add_layer_norm": "fused",
        "rope_write_kv": "indexed",
        "packed_attention": ("slots_in_place", "widened"),
        "varlen_attention": "sdpa",
        "swiglu": "fused",
        "shift_kv": "strided",
        "shift_kv_chain": "strided",
        "greedy": "reduced",
        "linear": "gemm",
    },
    "cpu": {"linear": "packed", "varlen_attention": "products"},
    "cuda": {op_name: "triton" for op_name in KINDS if op_name not in ("shift_kv", "varlen_attention", "linear")},
}
"""impl_id by hardware profile ("" is any) and operator; several where each serves other KV formats.

On CUDA torch's own operators serve as well as a kernel of ours would for a single move, for sequences of one length and
for GEMMs.
"""
