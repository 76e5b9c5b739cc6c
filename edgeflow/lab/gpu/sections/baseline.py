"""Section: the policy through plain `transformers`, one frame at a time.

edgeflow's vision towers and projector run eagerly, then `LlamaForCausalLM.generate` answers K tokens greedily from the
embedded prompt. The published model's code processes a frame in the same way, and its towers are no faster. The
weights are those of the other sections, so the tokens can be compared with edgeflow's serial ones.
"""

from __future__ import annotations

import importlib.metadata
from statistics import median
from time import perf_counter
from typing import Any

import torch

from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.gpu.section_order import Found
from edgeflow.lab.gpu.section_setting import SectionSetting, SkipError
from edgeflow.lab.gpu.subjects.engines import engine_of, policy_of
from edgeflow.lab.gpu.subjects.random_policy import TEXT_SIZES, PolicySize, policy_tensors, random_frames
from edgeflow.lab.openvla_policy import embed_prefill
from edgeflow.policies.openvla.policy import OpenVLAPolicy

FEWEST = 3
PREFIX = "language_model."


def baseline(setting: SectionSetting) -> Found:
    """Median over frames after one warm-up frame; at least FEWEST frames, more while half of the time is left."""
    size = setting.size
    llama = _llama(setting, size)
    policy = policy_of(setting, size, table=built_in_table())
    frames = random_frames(size, policy, max(FEWEST, setting.frames // 4))
    run = _DecodeFrame(setting, size, policy, llama)
    run(frames[0])
    half_s = setting.left_s / 2  # the rest is for edgeflow's own tokens
    seconds: list[float] = []
    ids: list[list[int]] = []
    for frame in frames:
        if len(ids) >= FEWEST and setting.left_s < half_s:
            break
        started = perf_counter()
        ids.append(run(frame))
        seconds.append(perf_counter() - started)
    ours = decode_serially(engine_of(policy, size, setting, graphs=False), frames[: len(ids)])
    pairs = [
        pair
        for mine, theirs in zip(ours, ids, strict=True)
        for pair in zip(mine.sampled.token_ids, theirs, strict=True)
    ]
    return {
        "transformers": importlib.metadata.version("transformers"),
        "attention": llama.config._attn_implementation,
        "frames": len(ids),
        "frames/s": 1 / median(seconds),
        "ms/frame": 1e3 * median(seconds),
        "share of our tokens that differ": sum(a != b for a, b in pairs) / len(pairs),
    }


class _DecodeFrame:
    """Decodes one frame to its token ids."""

    def __init__(self, setting: SectionSetting, size: PolicySize, policy: OpenVLAPolicy, llama: Any) -> None:
        self._device = setting.device
        self._stages = size.stages
        self._policy = policy
        self._llama = llama

    @torch.inference_mode()
    def __call__(self, frame: PreparedFrame) -> list[int]:
        pixels = frame.pixel_values[None].to(self._device)
        (hidden,) = embed_prefill(self._policy, pixels, [frame.prompt_ids])
        mask = torch.ones(1, len(hidden), dtype=torch.long, device=self._device)
        out = self._llama.generate(
            inputs_embeds=hidden[None], attention_mask=mask, max_new_tokens=self._stages, do_sample=False
        )
        ids: list[int] = out[0].tolist()
        return ids


def _llama(setting: SectionSetting, size: PolicySize) -> Any:
    """The language model of `transformers` with the policy's weights; no token ends an answer."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM  # only this section needs it
    except ImportError as error:
        raise SkipError(f"transformers cannot be imported: {error}") from None
    text = size.text
    config = LlamaConfig(
        **{name: getattr(text, name) for name in TEXT_SIZES},
        rms_norm_eps=text.rms_norm_eps,
        max_position_embeddings=text.max_position_embeddings,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with setting.device:
        llama = LlamaForCausalLM._from_config(config, dtype=setting.dtype).eval()
    tensors = policy_tensors(size, setting.device, setting.dtype)
    with torch.inference_mode():
        for name, parameter in llama.named_parameters():
            parameter.copy_(tensors[PREFIX + name])
    return llama
