"""The names that the dimensions of the operator table take, and how entries may spell them (EdgeFM table 1).

An entry may use the spelling of a checkpoint or of the paper; here it becomes the one that lookups use. A name that is
not known is refused, for it would never match.
"""

from __future__ import annotations

from collections.abc import Mapping

STAGES = ("prefill", "decode", "packed")
"""A pass of longer spans alone, of single rows alone, of both."""

KV_FORMATS = ("dense", "int8", "fp8", "int4", "latent")
"""Names of the KV formats (kernels/kv/formats.py). A lookup that names none is for the first."""

OVER_KV = ("rope_write_kv", "packed_attention")
"""Operators that write or read KV in a format."""

KINDS = {
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "add_layer_norm": "norm",
    "swiglu": "activation",
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
    "swiglu": ("mlp",),
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
    "qkv_proj": "qkv",
    "q_b_proj": "query",
    "o_proj": "output",
    "oproj": "output",
    "fused_gate_up": "gate_up",
    "gate_up_proj": "gate_up",
    "gateup": "gate_up",
    "down_proj": "down",
    "downproj": "down",
    "lm_head": "head",
}

FORMER = {f"{op_name}_int8": op_name for op_name in OVER_KV}
"""Operators of older overlays that are now operators of a KV format."""

MODEL_ALIASES = {"qwen2_5": "qwen2", "qwen2.5": "qwen2"}
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
"""Long names of each letter of a shape signature."""

CLASSED = ("m", "t")
"""Sizes that change from call to call: they count as the next power of two."""

REST = "..."
"""End of an entry's signature that stands for any other sizes; it may be left out."""

_LETTERS = {name: letter for letter, names in SIZES.items() for name in (letter, *names)}


def size_class(count: int) -> int:
    """The power of two that a number of rows counts as: 1, 2, 4, …, at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def signature(**sizes: int) -> str:
    """Sizes by their letters as text: m=512|e=4096"""
    classed = {letter: size_class(size) if letter in CLASSED else size for letter, size in sizes.items()}
    return "|".join(f"{letter}={size}" for letter, size in classed.items())


def read_signature(text: str) -> str:
    """An entry's signature as lookups spell it: `m=1|in_features=1536|...` is m=1|e=1536. ValueError names the part."""
    sizes: dict[str, int] = {}
    parts = text.split("|") if text else []
    for part in parts[:-1] if parts[-1:] == [REST] else parts:
        name, _, size = part.partition("=")
        if name not in _LETTERS:
            raise ValueError(f"{part!r}: no size has this name; known: {', '.join(_LETTERS)}")
        if not size.isascii() or not size.isdigit():
            raise ValueError(f"{part!r}: a size is a whole number, as in {name}=64")
        if _LETTERS[name] in sizes:
            raise ValueError(f"{part!r}: this size is given twice")
        sizes[_LETTERS[name]] = int(size)
    return signature(**sizes)


def read_role(name: str) -> str:
    """A layer_role as lookups spell it; ValueError lists those known."""
    role = ROLE_ALIASES.get(name, name)
    known = sorted({role for roles in ROLES.values() for role in roles})
    if role and role not in known:
        raise ValueError(f"{name!r} is not the role of an operator; known: {', '.join(known)}")
    return role


def read_operator(name: str) -> str:
    """An op_name; ValueError says what to write instead of one that is gone."""
    if name in FORMER:
        raise ValueError(f'{name!r} is now op_name "{FORMER[name]}" with "kv": "int8"')
    return name


def read_kv(name: str) -> str:
    """A KV format; ValueError lists those known."""
    if name and name not in KV_FORMATS:
        raise ValueError(f"{name!r} is not a KV format; known: {', '.join(KV_FORMATS)}")
    return name


def read_kind(name: str) -> str:
    """An op_kind; ValueError lists those known."""
    known = sorted(set(KINDS.values()))
    if name and name not in known:
        raise ValueError(f"{name!r} is not a kind of operator; known: {', '.join(known)}")
    return name


def read_model(name: str) -> str:
    """A model_name as lookups spell it."""
    return MODEL_ALIASES.get(name, name)


def only_role(op_name: str) -> str:
    """The layer_role of an operator that has one; "" where there are several."""
    roles = ROLES.get(op_name, ())
    return roles[0] if len(roles) == 1 else ""


def kv_formats(op_name: str) -> tuple[str, ...]:
    """The KV formats that an operator is looked up for; "" alone where it reads and writes none."""
    return KV_FORMATS if op_name in OVER_KV else ("",)


def covers(signed: str, shape_sig: str) -> bool:
    """True when every size in an entry's signature is in the call's signature with the same value."""
    return set(signed.split("|")) <= set(shape_sig.split("|")) if signed else True
