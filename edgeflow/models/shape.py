"""The shape of a checkpoint's decoder, as the operator table and its tuner see it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.table.model_shape import LatentRows, ModelShape, Product, products_of
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.kernels.weights import FLOAT
from edgeflow.models.attention.latent import LatentSizes
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.models.grouped import CROSS, GroupedDecoder, HeadSizes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.published import DEEPSEEK, family_of, read_published
from edgeflow.models.quantization import Quantization, read_quantization
from edgeflow.models.stack_norms import StackSizes
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import ConfigError

MODULES = {"self_attn.q_proj": "qkv", "self_attn.o_proj": "output", "mlp.gate_proj": "gate_up", "mlp.down_proj": "down"}
"""Roles of the products of a layer, by the first module of each."""
IN_TWO = {"self_attn.q_a_proj": "qkv", "self_attn.q_b_proj": "query"}
"""The same where queries are projected in two steps."""
_WEIGHT = re.compile(r"layers\.(\d+)\.(\w+\.\w+)\.(weight|qweight)$")


def checkpoint_shape(directory: Path, rows: int, head: str = FLOAT) -> ModelShape:
    """Read the shape from `config.json`, and the formats of quantised weights from the headers of the files.

    rows: of the longest prefill. head: the format in which the head is held. ConfigError where it has no decoder.
    """
    config = read_json(directory / "config.json")
    if "text_config" not in config and "hidden_size" not in config:
        raise ConfigError(
            f"{directory}: config.json has neither text_config nor hidden_size, so the model has no decoder whose "
            "operators are chosen"
        )
    decoder = config.get("text_config", config)
    if not isinstance(decoder, dict):
        raise ConfigError(f"{directory}: text_config in config.json must be an object")
    quantization, family = Quantization.of(config, f"{directory}: "), family_of(config)
    group = 0 if quantization is None else quantization.group
    text = read_published(directory).text if family in DEEPSEEK else None
    if text is not None and text.latent is not None:
        shape = latent_shape(text, text.latent, family, rows, group)
    else:
        shape = ModelShape.of_config(decoder, rows, family=family, group=group)
    return with_head(shape if quantization is None else _in_formats(shape, directory), head)


def latent_shape(config: LlamaConfig, sizes: LatentSizes, family: str, rows: int, group: int = 0) -> ModelShape:
    """The shape of a model that attends over latents. group: G of projections in 4 bits, 0 of floats."""
    linears = config.attention.linears
    entry = linears["q_a_proj" if sizes.query_rank else "q_proj"]
    width, inner = config.hidden_size, config.intermediate_size
    products = {
        "qkv": (entry[0] + sizes.width, width),
        **({"query": linears["q_b_proj"]} if sizes.query_rank else {}),
        "output": linears["o_proj"],
        "gate_up": (2 * inner, width),
        "down": (width, inner),
    }
    return ModelShape(
        family=family,
        hidden=width,
        inner=inner,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        rows=rows,
        group=group,
        products=products_of(products, group, config.vocab_size, width),
        latent=LatentRows(rank=sizes.rank, rotary=sizes.rotary, query_rank=sizes.query_rank),
    )


def with_head(shape: ModelShape, head: str) -> ModelShape:
    """The shape with a head of floats held in another format."""
    if head == FLOAT:
        return shape
    products = (
        replace(each, format=head) if each.role == "head" and each.format == FLOAT else each
        for each in shape.every_product
    )
    return replace(shape, products=tuple(products))


def _in_formats(shape: ModelShape, directory: Path) -> ModelShape:
    """The shape of a checkpoint in 4 bits with the formats in which its files hold each projection and the head."""
    names = tensor_shapes(directory)
    roles = MODULES | IN_TWO
    stored = {(roles[module], format) for _, module, format in _stored(names)}
    stored.add(("head", AWQ if any(name.endswith("lm_head.qweight") for name in names) else FLOAT))
    products = tuple(
        replace(each, format=format, group=shape.group if format == AWQ else 0)
        for each in shape.every_product
        for format in (AWQ, FLOAT)
        if (each.role, format) in stored
    )
    return shape if products == shape.every_product else replace(shape, products=products)


def _stored(names: Iterable[str], stem: str = "") -> Iterator[tuple[int, str, str]]:
    """Layer, module and format of the first module of each product. stem: the end of what stands before the layers."""
    for name in names:
        found = _WEIGHT.search(name)
        if found and found[2] in MODULES | IN_TWO and name[: found.start()].endswith(stem):
            yield int(found[1]), found[2], AWQ if found[3] == "qweight" else FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStack:
    """A stack of a grouped decoder."""

    sizes: StackSizes
    stem: str
    """The part of its tensors' names before `layers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStacks:
    """The stacks of a decoder (models/grouped.py) that prefixes and denoising steps read."""

    name: str
    """The decoder's model_name in the operator table."""
    heads: HeadSizes
    prefix: NamedStack
    steps: NamedStack

    def decoder(self, weights: Weights, table: OperatorTable) -> GroupedDecoder:
        """The decoder; CheckpointError names the tensor at fault."""
        prefix, steps = ((each.sizes, weights.under(each.stem)) for each in (self.prefix, self.steps))
        return GroupedDecoder(self.heads, prefix, steps, name=self.name, table=table)

    def shape(self, directory: Path, rows: int, *, count: int, step_rows: int) -> ModelShape:
        """The sizes and products of both stacks. rows: of a prefix. count: denoising steps of `step_rows` rows."""
        heads, sizes, quantization = self.heads, self.prefix.sizes, read_quantization(directory)
        group = 0 if quantization is None else quantization.group
        stored = tensor_shapes(directory) if group else {}
        products = [
            *_stack_products(heads, self.prefix, stored, group, of_steps=False),
            *_stack_products(heads, self.steps, stored, group, of_steps=True),
        ]
        if CROSS in heads.kinds:  # the keys and values of the prefix that steps see
            products.append(Product(role="qkv", outputs=heads.kv_width, inputs=heads.kv_width))
        return ModelShape(
            family=self.name,
            hidden=sizes.width,
            inner=sizes.inner,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            vocabulary=1,
            rows=rows,
            stages=1 + count,
            step_rows=step_rows,
            products=tuple(dict.fromkeys(products)),
        )


def _stack_products(
    heads: HeadSizes, stack: NamedStack, stored: Iterable[str], group: int, *, of_steps: bool
) -> Iterator[Product]:
    """The products of each layer; without files, all of floats."""
    quantised = {(layer, module) for layer, module, format in _stored(stored, stack.stem) if format == AWQ}
    width, inner = stack.sizes.width, stack.sizes.inner
    for layer, kind in enumerate(heads.kinds):
        others = 0 if of_steps and kind == CROSS else 2 * heads.kv_width
        sizes = {
            "qkv": (heads.q_width + others, width),
            "output": (width, heads.q_width),
            "gate_up": (2 * inner, width),
            "down": (width, inner),
        }
        for module, role in MODULES.items():
            outputs, inputs = sizes[role]
            small = (layer, module) in quantised
            yield Product(
                role=role,
                outputs=outputs,
                inputs=inputs,
                format=AWQ if small else FLOAT,
                group=group if small else 0,
                of_steps=of_steps,
            )
