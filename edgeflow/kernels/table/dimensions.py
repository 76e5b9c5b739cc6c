"""The names that the dimensions of the operator table take (EdgeFM table 1), and the shape signatures of calls.

An entry may use the spelling of a checkpoint or of the paper; here it becomes the one that lookups use. An unknown
name is rejected, since it would never match. A signature gives the sizes of a call as text, `m=512|e=4096`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

STAGES = ("prefill", "decode", "packed")
"""A pass of only longer spans, of only single rows, of both."""

KV_FORMATS = ("dense", "int8", "fp8", "int4", "latent")
"""Names of the KV formats (kernels/kv/formats.py). A lookup that names none is for the first."""

OVER_KV = ("rope_write_kv", "packed_attention")
"""Operators that write or read KV in a format."""

KINDS = {
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "add_layer_norm": "norm",
    "add_adaptive_norm": "norm",
    "swiglu": "activation",
    "geglu": "activation",
    "rope_write_kv": "rope",
    "shift_kv": "kv_cache",
    "shift_kv_chain": "kv_cache",
    "packed_attention": "attention",
    "varlen_attention": "attention",
    "read_memory": "attention",
    "fold_memory": "kv_cache",
    "greedy": "sampling",
    "linear": "linear",
}
"""op_kind of each operator."""

ROLES = {
    "rms_norm": ("input", "query", "key", "final"),
    "add_rms_norm": ("input", "post_attention"),
    "add_layer_norm": ("input", "post_attention"),
    "add_adaptive_norm": ("input",),
    "swiglu": ("mlp",),
    "geglu": ("mlp",),
    "rope_write_kv": ("self_attention",),
    "shift_kv": ("prefix",),
    "shift_kv_chain": ("ring",),
    "packed_attention": ("self_attention",),
    "varlen_attention": ("full", "window"),
    "read_memory": ("self_attention",),
    "fold_memory": ("segment",),
    "greedy": ("sampling",),
    "linear": ("qkv", "query", "output", "gate_up", "down", "head"),
}
"""layer_roles of each operator. Where there is one, a lookup need not name it."""

ROLE_ALIASES = {
    "fused_qkv": "qkv",
    "q_b_proj": "query",
    "o_proj": "output",
    "fused_gate_up": "gate_up",
    "down_proj": "down",
    "lm_head": "head",
}

MODEL_ALIASES = {"qwen2_5": "qwen2"}
"""Checkpoints of Qwen2.5 are of model_type qwen2, and their operators are those of Qwen2."""

SIZES: Mapping[str, tuple[str, ...]] = {
    "m": ("rows", "tokens"),
    "n": ("out_features", "outputs", "sequences"),
    "e": ("in_features", "inputs", "hidden_size"),
    "f": ("intermediate_size", "mlp_hidden"),
    "v": ("vocab_size", "vocabulary"),
    "t": ("positions", "kv_len"),
    "h": ("num_heads", "num_attention_heads"),
    "kv": ("kv_heads", "num_key_value_heads"),
    "d": ("head_dim",),
}
"""Long names of each letter of a shape signature.

m: of varlen_attention, rows of the longest sequence. d: of rope_write_kv, the rotated part of a head.
"""

CLASSED = ("m", "t")
"""Sizes that change from call to call: they count as the next power of two."""

REST = "..."
"""End of an entry's signature that stands for any other sizes; it may be left out."""

_LETTERS = {name: letter for letter, names in SIZES.items() for name in (letter, *names)}


def signature(**sizes: int) -> str:
    """Sizes by their letters as text: m=512|e=4096; a number of rows as the least power of two that holds it."""
    classed = {letter: 1 << max(size - 1, 0).bit_length() for letter, size in sizes.items() if letter in CLASSED}
    return "|".join(f"{letter}={size}" for letter, size in {**sizes, **classed}.items())


def read_signature(text: str) -> str:
    """An entry's signature as lookups spell it: `m=1|in_features=1536|...` is m=1|e=1536. ValueError names the part."""
    sizes: dict[str, int] = {}
    parts = text.split("|") if text else []
    for part in parts[:-1] if parts[-1:] == [REST] else parts:
        name, _, size = part.partition("=")
        if name not in _LETTERS:
            raise ValueError(f"{part!r}: no size has this name; known: {', '.join(_LETTERS)}")
        if not size.isascii() or not size.isdigit():
            raise ValueError(f"{part!r}: a size is an integer, as in {name}=64")
        if _LETTERS[name] in sizes:
            raise ValueError(f"{part!r}: this size is given twice")
        sizes[_LETTERS[name]] = int(size)
    return signature(**sizes)


def _reader(what: str, known: Sequence[str], aliases: Mapping[str, str]) -> Callable[[str], str]:
    """A function that returns a name as lookups spell it; ValueError lists the known names."""

    def read(name: str) -> str:
        meant = aliases.get(name, name)
        if meant and meant not in known:
            raise ValueError(f"{name!r} is not {what}; known: {', '.join(known)}")
        return meant

    return read


read_role = _reader("the role of an operator", sorted({role for each in ROLES.values() for role in each}), ROLE_ALIASES)
read_kv = _reader("a KV format", KV_FORMATS, {})
read_kind = _reader("a kind of operator", sorted(set(KINDS.values())), {})


def read_model(name: str) -> str:
    """A model_name as lookups spell it."""
    return MODEL_ALIASES.get(name, name)


def only_role(op_name: str) -> str:
    """The layer_role of an operator that has one; "" where there are several."""
    roles = ROLES.get(op_name, ())
    return roles[0] if len(roles) == 1 else ""


def kv_formats(op_name: str) -> tuple[str, ...]:
    """The KV formats that an operator is looked up for; only "" where it reads and writes none."""
    return KV_FORMATS if op_name in OVER_KV else ("",)


def covers(signed: str, shape_sig: str) -> bool:
    """True when every size in an entry's signature is in the call's signature with the same value."""
    return set(signed.split("|")) <= set(shape_sig.split("|")) if signed else True


Signed = tuple[str, str]
"""(stage, shape signature); the stage is "" where the arguments do not show it"""


def stage_of(lengths: Sequence[int]) -> str:
    """prefill: only longer spans; decode: only single rows; packed: both."""
    kinds = {length > 1 for length in lengths}
    return "packed" if len(kinds) > 1 else "prefill" if kinds == {True} else "decode"


def _shift(data: Tensor, *_: Any) -> Signed:
    return "", signature(t=data.shape[3], kv=data.shape[4], d=data.shape[5])


def _gated(gate_up: Tensor) -> Signed:
    return "", signature(m=gate_up.shape[0], f=gate_up.shape[1] // 2)


def _norm(x: Tensor, *_: Any) -> Signed:
    if x.dim() == 3:
        return "", signature(m=x.shape[0], h=x.shape[1], d=x.shape[2])
    return "", signature(m=x.shape[0], e=x.shape[1])


SIGNATURES: dict[str, Callable[..., Signed]] = {
    "rms_norm": _norm,
    "add_rms_norm": _norm,
    "add_layer_norm": _norm,
    "add_adaptive_norm": lambda x, residual, *_: _norm(residual),  # noqa: ARG005
    "swiglu": _gated,
    "geglu": _gated,
    "greedy": lambda logits, first, stop: ("", signature(m=logits.shape[0], v=stop - first)),
    "linear": lambda weight, bias, rows: ("", signature(m=rows, n=weight.shape[0], e=weight.shape[1])),  # noqa: ARG005
    "shift_kv": _shift,
    "shift_kv_chain": _shift,
    "rope_write_kv": lambda qkv, heads, kv_heads, rows, *_: (
        "",
        signature(m=qkv.shape[0], h=heads, kv=kv_heads, d=rows.cos.shape[-1]),
    ),
    "packed_attention": lambda layout, kv: (
        stage_of(layout.lengths),
        signature(m=len(layout.row_slot), t=layout.reach, kv=kv.kv_heads, d=kv.head_dim),
    ),
    "varlen_attention": lambda q, k, v, sequences: (  # noqa: ARG005
        "",
        signature(m=sequences.longest, n=len(sequences.lengths), h=q.shape[1], d=q.shape[2]),
    ),
    "read_memory": lambda q, attended, layer, layout: (  # noqa: ARG005
        stage_of(layout.lengths),
        signature(m=len(q), h=q.shape[1], kv=layer.norms.shape[1], d=q.shape[2]),
    ),
    "fold_memory": lambda layer, slot, first, stop: (  # noqa: ARG005
        "",
        signature(m=stop - first, kv=layer.norms.shape[1], d=layer.norms.shape[2]),
    ),
}
"""The function that signs a call of each operator by its arguments; of `linear` also by the rows it is made for."""
