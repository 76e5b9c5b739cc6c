"""LeRobot's SmolVLA policy, timed: one chunk for each line of stdin, its times in a line of JSON on stdout.

    LEROBOT_PYTHON benchmarks/smolvla/lerobot_chunks.py FOLDER INPUTS DTYPE THREADS

Runs in LeRobot's own environment; `benchmarks.smolvla` starts it. INPUTS: the file of `random_smolvla.write_inputs`.
A line of stdin is a number of cameras. DTYPE is that of the language model, the vision tower and the expert; the
projections around them stay float32, as in the policy that LeRobot makes from published weights.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

IMAGE_TOKENS = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)


class PartTimes:
    """Milliseconds by part, summed over calls; `steps` also one by one."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self.steps: list[float] = []

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its time added to a part."""

        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            answer = function(*arguments, **named)
            taken = (time.perf_counter() - started) * 1e3
            self.parts[part] += taken
            if part == "steps":
                self.steps.append(taken)
            return answer

        return call


def main(folder: Path, inputs: Path, dtype: str, threads: int) -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # LeRobot prints
    torch.set_num_threads(threads)
    policy = load_policy(folder)
    model = policy.model
    model.vlm_with_expert.to(getattr(torch, dtype))
    clock = PartTimes()
    policy.prepare_images = clock.timed("images", policy.prepare_images)
    model.vlm_with_expert.embed_image = clock.timed("vision", model.vlm_with_expert.embed_image)
    model.embed_prefix = clock.timed("embed", model.embed_prefix)
    model.denoise_step = clock.timed("steps", model.denoise_step)
    tensors = load_file(inputs)
    print(json.dumps({"ready": sum(value.numel() for value in policy.state_dict().values())}), file=answers)
    for line in sys.stdin:
        cameras = int(line)
        batch = _batch(tensors, cameras)
        clock.parts.clear()
        clock.steps.clear()
        started, used = time.perf_counter(), time.process_time()
        chunk = policy.predict_action_chunk(batch, noise=tensors["noise"].clone())
        taken, used = (time.perf_counter() - started) * 1e3, (time.process_time() - used) * 1e3
        save_file({"chunk": chunk.float().contiguous()}, inputs.with_name(f"lerobot-{dtype}-{cameras}.safetensors"))
        print(json.dumps({"cpu_ms": used, **_parts(clock, taken)}), file=answers)


def load_policy(folder: Path) -> SmolVLAPolicy:
    """The policy in evaluation mode, in the types of its parameters as LeRobot leaves them.

    `vlm_model_name` is made absolute, since LeRobot reads it beside the working directory. The policy asks the model's
    image processor for two token ids, which it uses only with `add_image_special_tokens`; a folder without image
    processor files gets a stand-in for it.
    """
    config = PreTrainedConfig.from_pretrained(folder)
    config.vlm_model_name = str((folder / config.vlm_model_name).resolve())
    config.device = "cpu"
    stand_in = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=IMAGE_TOKENS))
    smolvlm_with_expert.AutoProcessor = stand_in
    return SmolVLAPolicy.from_pretrained(folder, config=config).eval()


def _batch(tensors: Mapping[str, Tensor], cameras: int) -> dict[str, Tensor]:
    """A processed frame of the first cameras: images as fractions, tokens of the text, normalised state."""
    images = {f"observation.images.{name}": tensors[name] for name in ("camera1", "camera2", "camera3")[:cameras]}
    return {
        **{name: pixels[None].float() / 255 for name, pixels in images.items()},
        "observation.state": tensors["state"].clone(),
        "observation.language.tokens": tensors["tokens"],
        "observation.language.attention_mask": tensors["mask"].bool(),
    }


def _parts(clock: PartTimes, chunk_ms: float) -> dict[str, object]:
    """Parts that add up to the chunk. embed: the prefix's embeddings but for images. prefix: the rest, so its pass."""
    images, vision, steps = (clock.parts[name] for name in ("images", "vision", "steps"))
    embed = clock.parts["embed"] - vision
    prefix = chunk_ms - images - vision - embed - steps
    parts = {"images": images, "vision": vision, "embed": embed, "prefix": prefix, "steps": steps}
    return {"chunk_ms": chunk_ms, "parts_ms": parts, "step_ms": list(clock.steps)}


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3], int(sys.argv[4]))
