"""Write SmolVLA's processor files as LeRobot saves them, and what its pipelines answer to a few inputs.

    LEROBOT_PYTHON benchmarks/smolvla/processor_cases.py CHECKPOINT tests/policies/smolvla/data

Runs in LeRobot's own environment. CHECKPOINT: the folder of a small SmolVLA with its tokenizer, such as `smolvla-tiny`.
Statistics and inputs are drawn from a fixed seed. `data/README.md` says what the files hold.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lerobot import __version__
from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from safetensors.torch import save_file
from torch import Tensor

STATE, ACTION = "observation.state", "action"
NUMBERS, STEPS = 6, 10
RENAMES = {"observation.images.front": "observation.images.top", "observation.joints": STATE}
LONG = "put the carrot on the plate and " * 12 + "stop"


@dataclass(frozen=True)
class Variant:
    """A checkpoint's processors."""

    state: str = "MEAN_STD"
    action: str = "MEAN_STD"
    """Both: normalisation modes."""
    padding: str = "longest"
    renamed: bool = False
    statistics: bool = True


VARIANTS = {
    "mean_std": Variant(),
    "renamed": Variant(padding="max_length", renamed=True),
    "identity": Variant("IDENTITY", "IDENTITY"),
    "min_max": Variant("MIN_MAX", "QUANTILES"),
    "quantiles": Variant("QUANTILES", "QUANTILE10"),
    "no_statistics": Variant(statistics=False),
}
CASES: tuple[tuple[str, str, str | list[str]], ...] = (
    ("plain", "mean_std", "put carrot on plate"),
    ("newline", "mean_std", "put carrot on plate\n"),
    ("two_newlines", "mean_std", "put carrot on plate\n\n"),
    ("spaces", "mean_std", "  put the_carrot\non plate "),
    ("empty", "mean_std", ""),
    ("truncated", "mean_std", LONG),
    ("batch", "mean_std", ["put carrot on plate", "stack the green block on the yellow block"]),
    ("padded", "renamed", "put carrot on plate"),
    ("padded_truncated", "renamed", LONG),
    ("identity", "identity", "put carrot on plate"),
    ("min_max", "min_max", "put carrot on plate"),
    ("quantiles", "quantiles", "put carrot on plate"),
    ("no_statistics", "no_statistics", "put carrot on plate"),
)
IMAGES = {
    "wide": {"resize": (24, 16), "cameras": {"top": (9, 20)}},
    "tall": {"resize": (24, 16), "cameras": {"top": (21, 8)}},
    "as_is": {"resize": (24, 16), "cameras": {"top": (16, 24)}},
    "first_missing": {"resize": (16, 16), "cameras": {"wrist": (12, 16)}, "empty": 1},
    "missing_not_filled": {"resize": (16, 16), "cameras": {"top": (12, 16)}, "empty": 0},
}


def main(checkpoint: Path, out: Path) -> None:
    """Write the processors of every variant, cases.json and cases.safetensors."""
    os.chdir(checkpoint)  # `vlm_model_name` is relative
    draws = torch.Generator().manual_seed(14)
    statistics = _statistics(draws)
    pipelines = {name: _pipelines(variant, statistics, out / name) for name, variant in VARIANTS.items()}
    tensors: dict[str, Tensor] = {}
    cases = [_case(name, folder, task, pipelines[folder], tensors, draws) for name, folder, task in CASES]
    images = [_images(name, case, tensors, draws) for name, case in IMAGES.items()]
    made = {"lerobot": __version__, "torch": torch.__version__, "cases": cases, "images": images}
    (out / "cases.json").write_text(_lines(made))
    save_file(tensors, out / "cases.safetensors")


def _statistics(draws: torch.Generator) -> dict[str, dict[str, Tensor]]:
    """As a data set's: all kinds for every feature. Of the six numbers one has a std of 1e-6, and one never varies."""
    found = {}
    for name in (STATE, ACTION):
        mean, std = torch.randn(NUMBERS, generator=draws), 0.1 + torch.rand(NUMBERS, generator=draws)
        std[4], std[5] = 1e-6, 0.0
        bounds = {"min": -3.0, "q01": -2.0, "q10": -1.0, "q50": 0.0, "q90": 1.5, "q99": 2.5, "max": 4.0}
        found[name] = {"mean": mean, "std": std, "count": torch.tensor([200])}
        found[name] |= {kind: mean + factor * std for kind, factor in bounds.items()}
    pixels = {"mean": 0.4, "std": 0.2, "min": 0.0, "max": 1.0}
    found["observation.images.top"] = {kind: torch.full((3, 1, 1), value) for kind, value in pixels.items()}
    return found


def _pipelines(variant: Variant, statistics: dict[str, dict[str, Tensor]], folder: Path) -> tuple[Any, Any]:
    config = PreTrainedConfig.from_pretrained(".")
    config.pad_language_to = variant.padding
    config.normalization_mapping = {
        "VISUAL": NormalizationMode.IDENTITY,
        "STATE": NormalizationMode(variant.state),
        "ACTION": NormalizationMode(variant.action),
    }
    made = make_pre_post_processors(config, dataset_stats=statistics if variant.statistics else None)
    for pipeline in made:
        pipeline.save_pretrained(folder)
    if variant.renamed:
        overrides = {"rename_observations_processor": {"rename_map": RENAMES}}
        loaded, _ = make_pre_post_processors(config, pretrained_path=str(folder), preprocessor_overrides=overrides)
        loaded.save_pretrained(folder)
    return make_pre_post_processors(config, pretrained_path=str(folder))


def _case(
    name: str, folder: str, task: str | list[str], pipelines: tuple[Any, Any], tensors: dict[str, Tensor],
    draws: torch.Generator,
) -> dict[str, object]:  # fmt: skip
    before, after = pipelines
    shape = (NUMBERS,) if isinstance(task, str) else (len(task), NUMBERS)
    state = 2 * torch.randn(shape, generator=draws)
    chunk = 1.5 * torch.randn((1, STEPS, NUMBERS), generator=draws)
    key = "observation.joints" if VARIANTS[folder].renamed else STATE
    answer = before({key: state.clone(), "task": task})
    tensors[f"{name}.state"] = state
    tensors[f"{name}.normalised_state"] = answer[STATE].contiguous()
    tensors[f"{name}.chunk"] = chunk
    tensors[f"{name}.actions"] = after(chunk.clone()).contiguous()
    return {
        "name": name,
        "processors": folder,
        "state_key": key,
        "task": task,
        "tokens": answer["observation.language.tokens"].tolist(),
        "mask": answer["observation.language.attention_mask"].int().tolist(),
    }


def _images(name: str, case: dict[str, Any], tensors: dict[str, Tensor], draws: torch.Generator) -> dict[str, object]:
    """An image case: 8-bit pictures in, the policy's own preparation of them as fractions out."""
    features = [f"observation.images.{camera}" for camera in ("top", "wrist")]
    settings = {"image_features": features, "resize_imgs_with_padding": case["resize"]}
    config = SimpleNamespace(**settings, empty_cameras=case.get("empty", 0))
    batch = {}
    for camera, size in case["cameras"].items():
        pixels = torch.randint(0, 256, (3, *size), generator=draws, dtype=torch.uint8)
        tensors[f"image.{name}.{camera}"] = pixels
        batch[f"observation.images.{camera}"] = pixels[None].float() / 255
    made, masks = SmolVLAPolicy.prepare_images(SimpleNamespace(config=config), batch)
    tensors[f"image.{name}.out"] = torch.cat(made)
    facts = {"name": name, "cameras": list(case["cameras"]), "resize_imgs_with_padding": case["resize"]}
    return {**facts, "empty_cameras": config.empty_cameras, "masks": [bool(mask) for mask in masks]}


def _lines(made: dict[str, Any]) -> str:
    """JSON with one line per case."""
    heads = [f'"{key}": {json.dumps(value)}' for key, value in made.items() if not isinstance(value, list)]
    lists = [
        f'"{key}": [\n  ' + ",\n  ".join(json.dumps(case) for case in value) + "\n ]"
        for key, value in made.items()
        if isinstance(value, list)
    ]
    return "{\n " + ",\n ".join(heads + lists) + "\n}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
