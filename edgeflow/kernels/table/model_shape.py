"""The sizes of a model and of its passes, from which the problems of its operators follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.weights import FLOAT
from edgeflow_client.errors import ConfigError

MAX_SIZE = 1 << 20
NAMES = {
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocabulary": "vocab_size",
}
"""Fields as a checkpoint's config.json names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product of rows and a weight [outputs, inputs]."""

    role: str
    """The layer_role of the product in the operator table."""
    outputs: int
    inputs: int
    format: str = FLOAT
    """The format of the weight."""
    group: int = 0
    """G of a weight in 4 bits, otherwise 0."""
    of_steps: bool = False
    """True when its rows are those of denoising steps."""


def products_of(layer: Mapping[str, tuple[int, int]], group: int, vocabulary: int, width: int) -> tuple[Product, ...]:
    """The products of a layer by role, [outputs, inputs] each, in one format, and a head of floats. group: of the
    format.
    """
    format = AWQ if group else FLOAT
    products = (
        Product(role=role, outputs=outputs, inputs=inputs, format=format, group=group)
        for role, (outputs, inputs) in layer.items()
    )
    return (*products, Product(role="head", outputs=vocabulary, inputs=width))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentRows:
    """Rows that a model with latent KV norms and rotates: R numbers of a latent, r that are rotated, and the numbers
    between the two projections of queries, 0 where there is one."""

    rank: int
    rotary: int
    query_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model and of its passes."""

    family: str = "llama"
    """The model_name by which its operators are looked up."""
    hidden: int = 4096
    inner: int = 11008
    heads: int = 32
    kv_heads: int = 32
    head_dim: int = 128
    vocabulary: int = 32064
    rows: int = 280
    """Rows of a prefill."""
    stages: int = 7
    """K, action tokens per frame."""
    group: int = 0
    """G of projections in 4 bits, 0 for floats."""
    step_rows: int = 0
    """Rows of a denoising step, of which a frame has K - 1; 0 where answers are tokens."""
    products: tuple[Product, ...] = ()
    """The products of the model; empty for those of a Llama of these sizes, with projections in one format and a head
    of floats.
    """
    latent: LatentRows | None = None
    """The latent rows of a model with latent KV, whose kv_heads and head_dim are those of the slots; None where slots
    hold keys and values.
    """

    def __post_init__(self) -> None:
        others = ("family", "group", "step_rows", "products", "latent")
        for name in (each.name for each in fields(self) if each.name not in others):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_SIZE:
                raise ConfigError(f"model shape: {name} must be an integer from 1 to {MAX_SIZE}, got {value!r}")
        if self.heads % self.kv_heads or (self.head_dim % 2 and self.latent is None):
            raise ConfigError("model shape: kv_heads must divide heads, and head_dim must be even")

    @property
    def every_product(self) -> tuple[Product, ...]:
        """The products of a layer, and the head."""
        if self.products:
            return self.products
        width, heads = self.hidden, self.heads * self.head_dim
        sizes = {
            "qkv": (heads + 2 * self.kv_heads * self.head_dim, width),
            "output": (width, heads),
            "gate_up": (2 * self.inner, width),
            "down": (width, self.inner),
        }
        return products_of(sizes, self.group, self.vocabulary, width)

    @classmethod
    def of_config(
        cls, config: Mapping[str, Any], rows: int, stages: int = 7, family: str = "llama", group: int = 0
    ) -> ModelShape:
        """The shape in the decoder's part of a config.json; what it leaves out is as in Llama 7B."""
        given = {mine: config[theirs] for mine, theirs in NAMES.items() if config.get(theirs) is not None}
        plain = {"kv_heads": given.get("heads", 32), **given}
        if "head_dim" not in plain and isinstance(plain.get("heads"), int) and plain["heads"] > 0:
            plain["head_dim"] = plain.get("hidden", 4096) // plain["heads"]
        return cls(**plain, rows=rows, stages=stages, family=family, group=group)
