"""Run by test_triton.py with TRITON_INTERPRET=1: a decoder with latent slots on the kernels that a GPU takes for it.

Prints the largest difference of its logits from those of torch's operators, over prompts, a chunk beside a decode row,
and a prefix that is copied to another slot.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.models.attention.latent import LatentSizes
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from tests.kernels.interpreted_engine import in_triton

CPU = torch.device("cpu")
CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=90,
    latent=LatentSizes(rank=20, rotary=8, plain=12, value=10, query_rank=24),
)


def random_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    width, inner, form = CONFIG.hidden_size, CONFIG.intermediate_size, CONFIG.attention
    attention: dict[str, tuple[int, ...]] = {**form.linears, **form.absorbed}
    attention |= {"q_a_layernorm": (24,), "kv_a_layernorm": (20,)}
    of_layer = {f"self_attn.{name}": shape for name, shape in attention.items()}
    of_layer |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
    of_layer |= {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    shapes = {f"layers.{index}.{name}": shape for index in range(2) for name, shape in of_layer.items()}
    shapes |= {"embed_tokens": (90, width), "norm": (width,)}
    named = {f"model.{name}.weight": shape for name, shape in shapes.items()} | {"lm_head.weight": (90, width)}
    return {
        name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.2)
        + (len(shape) == 1)
        for name, shape in named.items()
    }


@torch.inference_mode()
def logits(table: OperatorTable) -> Tensor:
    decoder = LlamaDecoder(CONFIG, Weights.of(random_weights(), torch.float32, CPU), table=table)
    kv, found = decoder.kv_slots(3, 20), []
    kv.data.fill_(torch.nan)
    for spans in ([Span(2, 0, 6)], [Span(0, 0, 4)], [Span(1, 6, 3), Span(0, 4, 1)]):
        rows = decoder.embed(torch.arange(sum(span.length for span in spans)) + 9)
        found.append(decoder.logits(decoder.forward(rows, PackedLayout.of(spans, CPU), kv), "packed"))
        kv.copy_rows(2, 1, 6)
    return torch.cat(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    expected = logits(built_in_table())
    off = (logits(in_triton()) - expected).abs().max() / expected.std()
    print(json.dumps({"off": off.item(), "spread": expected.std().item()}), flush=True)
