"""Models that attend over latents, against transformers: 32 greedy tokens and logits in every way a model is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from edgeflow.lab.verify.chat import verify_chat
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.lab.verify.comparison import FEATURE_TOLERANCE
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import ConfigError
from tests.chat_checkpoint import VOCAB, YARN, write_chat_checkpoint
from tests.lab.verify.test_chat import MODES

TOKENS = 32
PROMPTS = ["put the carrot on the plate", "a", "the gripper has been closed since second 12: why?"]
PLAIN_YARN = {name: value for name, value in YARN.items() if not name.startswith("mscale")}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale_all_dim": 0.8,
}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "v2": ("deepseek_v2", {}),
    "v2, queries in two, YaRN": ("deepseek_v2", {"q_lora_rank": 24, "rope_parameters": YARN}),
    "v2, YaRN without scaled scores": ("deepseek_v2", {"rope_parameters": PLAIN_YARN}),
    "v3": ("deepseek_v3", {"q_lora_rank": 24, "rope_parameters": YARN, "rms_norm_eps": 1e-5}),
    "v3, halves": ("deepseek_v3", {"rope_interleave": False}),
    "v3, llama3": ("deepseek_v3", {"rope_parameters": LLAMA3}),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the answers of transformers' own generation."""
    directory = tmp_path_factory.mktemp(request.param)
    family, config = LAYOUTS[request.param]
    theirs = write_chat_checkpoint(directory, family, **config)
    encode = TextTokenizer(directory, VOCAB).encode
    cases, logits = [], {}
    for index, prompt in enumerate(PROMPTS):
        ids = torch.tensor([encode(prompt, special=True)])
        with torch.inference_mode():
            logits[f"case{index}.logits"] = theirs(ids).logits[0]
            answer = theirs.generate(ids, max_new_tokens=TOKENS, eos_token_id=None, pad_token_id=0, do_sample=False)
        greedy = answer[0, ids.shape[1] :].tolist()
        cases.append({"prompt": prompt, "input_ids": ids[0].tolist(), "greedy_ids": greedy})
    assert len({token for case in cases for token in case["greedy_ids"]}) > 5, "the comparison must be able to fail"
    (directory / "cases.json").write_text(json.dumps({"cases": cases}))
    save_file(logits, directory / "expected.safetensors")
    return directory


def test_every_way_gives_the_tokens_of_transformers(bundle: Path):
    results = verify_chat(bundle)
    assert [each for each in results if not each[1].ok] == []
    tokens = [(mode, result.case) for mode, result in results if result.quantity == "greedy tokens"]
    assert sorted(tokens) == sorted((mode, f"case{index}") for mode in MODES for index in range(len(PROMPTS)))
    assert {result.tolerance for _, result in results if result.quantity == "first logits"} == {FEATURE_TOLERANCE}
    assert FEATURE_TOLERANCE <= 1e-4


def test_another_format_for_latents_is_rejected_with_the_reason(bundle: Path):
    with pytest.raises(ConfigError, match=r"kv: int8 is for keys and values of heads, .* one latent row per position"):
        verify_checkpoint(bundle, [], lambda *_: None, kv="int8")
