"""Random chat checkpoints as transformers saves them, small enough for every test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<|end|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
IMAGE_TOKEN = 256 + SPECIALS.index("<|image_pad|>")
VISION_START = 256 + SPECIALS.index("<|vision_start|>")
END = 256 + SPECIALS.index("<|im_end|>")
VOCAB = 272  # more than the tokenizer has, as published models have
TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_heads": 2,
    "out_hidden_size": 48,
    "fullatt_block_indexes": [1],
    "window_size": 112,
}
TEXT = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB,
}
LATENT = {
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": TEXT["num_hidden_layers"],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.8,
}
PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 401408,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def their_model(family: str, **config: Any) -> Any:
    """A random model of transformers' own; its weights are far from those it would start training with."""
    transformers = pytest.importorskip("transformers", minversion="5.23", reason="names of its older versions differ")
    sizes = {**TEXT, **config, "eos_token_id": END, "bos_token_id": None, "pad_token_id": None}
    if family == "qwen2_5_vl":
        text = {**sizes, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
        settings = transformers.Qwen2_5_VLConfig(
            text_config=text,
            vision_config={**VISION, "out_hidden_size": sizes["hidden_size"]},
            image_token_id=IMAGE_TOKEN,
            vision_start_token_id=VISION_START,
            tie_word_embeddings=sizes.get("tie_word_embeddings", False),
        )
        made = transformers.Qwen2_5_VLForConditionalGeneration
    else:
        sizes = {**LATENT, **sizes, "num_key_value_heads": None} if family.startswith("deepseek") else sizes
        name = "".join(part.capitalize() for part in family.split("_"))
        settings = getattr(transformers, f"{name}Config")(**sizes)
        made = getattr(transformers, f"{name}ForCausalLM")
    settings._attn_implementation = "eager"
    torch.manual_seed(5)
    model = made(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            wide = parameter.dim() > 1
            parameter.normal_(0 if wide else 0.5, 1.5 * parameter[0].numel() ** -0.5 if wide else 0.2)
    return model


def write_chat_checkpoint(directory: Path, family: str, **config: Any) -> Any:
    """All files of a checkpoint; gives back the model of transformers that was saved."""
    model = their_model(family, **config)
    model.save_pretrained(directory)
    tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    if family == "qwen2_5_vl":
        (directory / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def tokenizer() -> Tokenizer:
    """One token a byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True) for each in SPECIALS])
    return made
