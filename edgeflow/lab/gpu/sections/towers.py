"""Section: a policy's vision towers, one after the other and both at once, launched and replayed.

The language model has only one layer, which does not run here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from edgeflow.contract import CaptureError
from edgeflow.engine.graphs import CudaRecord
from edgeflow.kernels.timing import median_us
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.subjects.engines import policy_of
from edgeflow.lab.gpu.subjects.floors import tower_work
from edgeflow.policies.openvla.policy import OpenVLAPolicy

SAMPLES = 15
Features = Callable[[], list[Tensor]]


@torch.inference_mode()
def towers(setting: SectionSetting) -> Found:
    """Milliseconds per frame for each way, and the largest difference of its features from those of one after the
    other. "as served" is the policy's own way.
    """
    size = replace(setting.size, text=replace(setting.size.text, num_hidden_layers=1))
    policy = policy_of(setting, size)
    pixels = torch.randn(1, *policy.pixel_shape, device=setting.device).to(setting.dtype)
    first, *others = (tower_work(tower, size.image_tokens) for tower in size.towers)
    floor_ms = 1e3 * setting.measured.floor_s(sum(others, first)) if setting.measured else None
    found: Found = {"floor ms": floor_ms, "ways": []}
    right = _one_after_the_other(policy, pixels)
    for graphs in (False, True) if setting.graphs else (False,):
        for name, features in _ways(policy, pixels).items():
            if setting.left_s < 0:
                found.setdefault(LEFT_OUT, []).append(f"{name}{', graphs' * graphs}")
                continue
            row = {"way": name, "graphs": graphs}
            found["ways"].append(row | _measured(setting, features, right, graphs=graphs))
            setting.publish(found)
    return found


def _ways(policy: OpenVLAPolicy, pixels: Tensor) -> dict[str, Features]:
    ways: dict[str, Features] = {
        "as served": lambda: policy.vision.features(pixels),
        "one after the other": lambda: _one_after_the_other(policy, pixels),
    }
    for index in range(len(policy.vision.towers)):
        ways[f"tower {index} alone"] = lambda index=index: [_tower(policy, pixels, index)]  # type: ignore[misc]
    return ways


def _one_after_the_other(policy: OpenVLAPolicy, pixels: Tensor) -> list[Tensor]:
    return [_tower(policy, pixels, index) for index in range(len(policy.vision.towers))]


def _tower(policy: OpenVLAPolicy, pixels: Tensor, index: int) -> Tensor:
    return policy.vision.towers[index].forward(pixels[:, 3 * index : 3 * index + 3])


def _measured(setting: SectionSetting, features: Features, right: list[Tensor], *, graphs: bool) -> Found:
    """A way that cannot be recorded, or fails, is reported as such, and the others are timed."""
    run: Callable[[], Any] = features
    try:
        made = features()
        if graphs:
            run, made = CudaRecord(setting.device)(features)
            run()
        us = median_us({"call": run}, setting.device, SAMPLES)["call"]
    except (RuntimeError, CaptureError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    found: Found = {"ms": us / 1e3}
    if len(made) == len(right):
        pairs = zip(right, made, strict=True)
        found["largest difference"] = max(float((one - other).abs().max()) for one, other in pairs)
    return found
