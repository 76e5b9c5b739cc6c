"""Small random checkpoints of SmolVLA, π0 and π0.5 in LeRobot's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from tests.policies.flow.weights import Tiny, weights_of

TOP, WRIST, STATE, ACTION = "observation.images.top", "observation.images.wrist", "observation.state", "action"
BEFORE, AFTER = "policy_preprocessor", "policy_postprocessor"
STATISTICS = "statistics.safetensors"
STEP_MS, MOST_DELAY_MS = 200, 600
KINDS = ("smolvla", "pi0", "pi05")
WRITERS = {
    "smolvla": "smolvla_new_line_processor",
    "pi0": "pi0_new_line_processor",
    "pi05": "pi05_prepare_state_tokenizer_processor_step",
}
CHARACTERS = ["<pad>", "<bos>", *map(chr, range(32, 127)), "\n"]


def write_checkpoint(
    directory: Path, tiny: Tiny, *, norm: str = "MEAN_STD", prefix: str = "model.", **config: Any
) -> Path:
    """Write the files of a checkpoint. norm: of state and action. prefix: of the tensors' names. config: entries of
    config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", {**config_of(tiny), **config})
    past = {"history": {"frames": tiny.history, "step_ms": STEP_MS}} if tiny.history > 1 else {}
    if past or tiny.delay:
        write_json(directory / "edgeflow.json", past | ({"most_delay_ms": MOST_DELAY_MS} if tiny.delay else {}))
    vlm = directory / ("vlm" if tiny.kind == "smolvla" else "tokenizer")
    vlm.mkdir(exist_ok=True)
    tokenizer(bos=tiny.kind != "smolvla").save(str(vlm / "tokenizer.json"))
    if tiny.kind == "smolvla":
        write_json(vlm / "config.json", _vlm_config(tiny))
    _write_processors(directory, tiny, vlm.name, norm)
    weights = {f"{prefix}{name}": tensor for name, tensor in weights_of(tiny, len(CHARACTERS)).items()}
    save_file(weights, directory / "model.safetensors")
    return directory


def config_of(tiny: Tiny) -> dict[str, Any]:
    """config.json"""
    camera = {"type": "VISUAL", "shape": [3, 12, 20]}
    config: dict[str, Any] = {
        "type": tiny.kind,
        "input_features": {TOP: camera, WRIST: camera, STATE: {"type": "STATE", "shape": [tiny.state]}},
        "output_features": {ACTION: {"type": "ACTION", "shape": [tiny.action]}},
        "chunk_size": tiny.chunk,
        "n_action_steps": tiny.chunk,
        "max_state_dim": tiny.state_dims,
        "max_action_dim": tiny.dims,
        "tokenizer_max_length": 64,
    }
    if tiny.kind == "smolvla":
        return config | {
            "resize_imgs_with_padding": [tiny.side] * 2,
            "num_steps": tiny.steps,
            "num_vlm_layers": tiny.layers,
            "vlm_model_name": "./vlm",
        }
    stack = {"depth": tiny.layers, "num_heads": tiny.heads, "num_kv_heads": 1, "head_dim": tiny.head_dim}
    return config | {
        "image_resolution": [tiny.side] * 2,
        "num_inference_steps": tiny.steps,
        "oracle_sizes": {
            "paligemma": {**stack, "width": tiny.width, "mlp_dim": tiny.inner},
            "action_expert": {**stack, "width": tiny.expert, "mlp_dim": tiny.expert_inner},
            "vision": {
                "hidden_size": tiny.vision,
                "intermediate_size": 3 * tiny.vision,
                "num_hidden_layers": tiny.vision_layers,
                "num_attention_heads": tiny.vision_heads,
                "patch_size": tiny.patch,
            },
        },
    }


def _vlm_config(tiny: Tiny) -> dict[str, Any]:
    text = {
        "hidden_size": tiny.width,
        "intermediate_size": tiny.inner,
        "num_hidden_layers": tiny.layers + 1,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
    }
    vision = {
        "hidden_size": tiny.vision,
        "intermediate_size": 3 * tiny.vision,
        "num_hidden_layers": tiny.vision_layers,
        "num_attention_heads": tiny.vision_heads,
        "patch_size": tiny.patch,
        "image_size": tiny.side,
    }
    return {"scale_factor": tiny.scale, "text_config": text, "vision_config": vision}


def _write_processors(directory: Path, tiny: Tiny, tokens: str, norm: str) -> None:
    """Both pipelines, in the order of the family's, and the statistics."""
    norms = {"VISUAL": "IDENTITY", "STATE": norm, "ACTION": norm}
    features = {**config_of(tiny)["input_features"], **config_of(tiny)["output_features"]}
    normalise = _step("normalizer_processor", features=features, norm_map=norms)
    text = [
        _step(WRITERS[tiny.kind]),
        _step("tokenizer_processor", max_length=64, padding_side="right", truncation=True, tokenizer_name=tokens),
    ]
    first = [_step("rename_observations_processor", rename_map={}), _step("to_batch_processor")]
    relative = _step("relative_actions_processor", enabled=False)
    before = [*first, relative, *([normalise, *text] if tiny.kind == "pi05" else [*text, normalise])]
    after = [_step("unnormalizer_processor", norm_map=norms), _step("absolute_actions_processor", enabled=False)]
    device = _step("device_processor", device="cuda", float_dtype=None)
    for name, steps in ((BEFORE, [*before, device]), (AFTER, [*after, device])):
        write_json(directory / f"{name}.json", {"name": name, "steps": steps})
    save_file(statistics_of(tiny), directory / STATISTICS)


def _step(name: str, **config: Any) -> dict[str, Any]:
    step = {"registry_name": name, "config": config}
    return {**step, "state_file": STATISTICS} if name.endswith("normalizer_processor") else step


def statistics_of(tiny: Tiny) -> dict[str, Tensor]:
    """Made-up ones: means, deviations, and quantiles around zero."""
    found = {}
    for feature, size in ((STATE, tiny.state_inputs), (ACTION, tiny.action)):
        steps = torch.arange(1.0, size + 1)
        found |= {f"{feature}.mean": steps / 10, f"{feature}.std": steps / 4}
        found |= {f"{feature}.q01": -steps, f"{feature}.q99": steps * 3}
    return found


def tokenizer(*, bos: bool) -> Tokenizer:
    """One token for each character."""
    made = Tokenizer(models.WordLevel({each: index for index, each in enumerate(CHARACTERS)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return made


def ids_of(text: str, *, bos: bool) -> tuple[int, ...]:
    return (*([1] if bos else []), *(CHARACTERS.index(each) for each in text))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def change_json(path: Path, change: Any) -> None:
    """Rewrite a JSON file. change: called with its content, which it alters."""
    content = json.loads(path.read_text())
    change(content)
    write_json(path, content)


def change_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Replace a file of tensors."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
