"""A Qwen2 checkpoint as GGUF with quantised matrices, the file that llama.cpp and OpenVINO GenAI read.

    PYTHON write_gguf.py CHECKPOINT OUT [KIND]      # PYTHON: an environment with gguf and safetensors

KIND: of the projections, Q8_0 by default; the tied embedding is Q8_0, and with F16 projections F16.
Formats: GGUF v3; tensor names and metadata keys as llama.cpp knows them for `qwen2`. Every vocabulary entry gets its
own text, since a checkpoint with random weights has no tokenizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{f"self_attn.{name}_proj.{kind}": f"attn_{name}.{kind}" for name in "qkv" for kind in ("weight", "bias")},
    "self_attn.o_proj.weight": "attn_output.weight",
    **{f"mlp.{name}_proj.weight": f"ffn_{name}.weight" for name in ("gate", "up", "down")},
}
EMBEDDING = "token_embd.weight"
OUTSIDE = {"model.embed_tokens.weight": EMBEDDING, "model.norm.weight": "output_norm.weight"}


def main() -> None:
    checkpoint, out = map(Path, sys.argv[1:3])
    kind = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) > 3 else "Q8_0"]
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "qwen2")
    _add_sizes(writer, config, kind)
    _add_tokenizer(writer, config["vocab_size"])
    with safe_open(checkpoint / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118
            _add_tensor(writer, _renamed(name), file.get_tensor(name), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, object], kind: gguf.GGMLQuantizationType) -> None:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Single bytes first, as byte-level BPE writes them, then made-up words; one merge, since none is rejected."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    signs = [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*signs, *(f"word{index}" for index in range(256, vocab))])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges(["w o"])
    writer.add_eos_token_id(vocab - 1)
    writer.add_bos_token_id(vocab - 1)
    writer.add_add_bos_token(False)


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, projections: gguf.GGMLQuantizationType) -> None:
    tensor = tensor.astype(np.float32)
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor)
        return
    whole = gguf.GGMLQuantizationType.F16
    embedding = gguf.GGMLQuantizationType.Q8_0 if projections != whole else whole
    kind = embedding if name == EMBEDDING else projections
    writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def _renamed(name: str) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}"


if __name__ == "__main__":
    main()
