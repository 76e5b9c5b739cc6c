"""A checkpoint's outputs against those of the original implementation, quantity by quantity, in float32.

A bundle is a checkpoint directory with `cases.json` (inputs and expected tokens and actions), `expected.safetensors`
(expected tensors, `<case>.<quantity>`) and perhaps `expected_resize_variants.safetensors`
(`<case>.pixel_values_first3.<strategy>`). Quantities a bundle does not hold are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from edgeflow.engine.engine import PolicyEngine
from edgeflow.engine.offline import Decoded, OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import CheckpointError
from edgeflow.models.checkpoint import read_json, read_tensors
from edgeflow.models.openvla.policy import OpenVLAPolicy
from edgeflow.models.openvla.preprocess import Preprocessor
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

EXACT = 0.0
PIXELS_TOLERANCE = 1e-6
FEATURES_TOLERANCE = 1e-4  # of the root mean square of what is expected, where that is above 1
LOGITS_TOLERANCE = 1e-4
ACTIONS_TOLERANCE = 1e-12
TOWER_KEYS = ("dino_patches", "siglip_patches")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One comparison. deviation: the largest, or for ids how many differ; inf when the shapes do."""

    case: str
    quantity: str
    deviation: float
    tolerance: float
    ok: bool


@dataclass(frozen=True, slots=True)
class _Case:
    """A case of a bundle; `expected` holds its tensors by quantity."""

    name: str
    image: NDArray[np.uint8]
    instruction: str
    unnorm_key: str | None
    input_ids: list[int]
    action_ids: list[int]
    normalized: list[float]
    actions: list[float]
    expected: dict[str, Tensor]


def verify_bundle(path: Path, mode: Mode) -> list[CheckResult]:
    """All cases of a bundle. serial: each alone. pipelined: all packed together, each several times over, through
    the scheduler; the largest deviation counts. CheckpointError when the bundle cannot be read."""
    policy = OpenVLAPolicy.load(path, torch.float32, torch.device("cpu"))
    cases = _read_cases(path)
    frames = [PreparedFrame(policy.preprocess(case.image), policy.prompt_ids(case.instruction)) for case in cases]
    decoded = _decode(policy, frames, mode)
    results: list[CheckResult] = []
    for case, frame, runs in zip(cases, frames, decoded, strict=True):
        results += _check_inputs(policy, case, frame)
        results += _worst([_check_outputs(policy, case, run) for run in runs])
    return results


def _decode(policy: OpenVLAPolicy, frames: list[PreparedFrame], mode: Mode) -> list[list[Decoded]]:
    """Every time a frame was decoded, frame by frame."""
    sessions = 1 if mode is Mode.SERIAL else 2
    capacity = policy.image_tokens + max(len(frame.prompt_ids) for frame in frames) + policy.K
    engine = PolicyEngine(policy, policy.K * sessions, capacity, torch.device("cpu"), keep_logits=True)
    if mode is Mode.SERIAL:
        return [[decoded] for decoded in decode_serially(engine, frames)]
    count = len(frames)
    forth = [index % count for index in range(max(count, policy.K + 1))]  # long enough to fill the pipeline
    orders = [forth, forth[::-1]]
    run = OfflineRun(engine, Scheduler(limits_for(policy.K, sessions=sessions)), [mode] * sessions)
    decoded_streams = run.decode([[frames[index] for index in order] for order in orders])
    grouped: list[list[Decoded]] = [[] for _ in frames]
    for order, stream in zip(orders, decoded_streams, strict=True):
        for index, decoded in zip(order, stream, strict=True):
            grouped[index].append(decoded)
    return grouped


@torch.inference_mode()
def _check_inputs(policy: OpenVLAPolicy, case: _Case, frame: PreparedFrame) -> list[CheckResult]:
    """What is computed before the language model runs."""
    features = policy.tower_features(frame.pixel_values[None])
    keys = TOWER_KEYS if len(features) == len(TOWER_KEYS) else [key for key in case.expected if "patches" in key]
    results = [_ids(case, "input ids", frame.prompt_ids, case.input_ids)]
    compare = _Comparison(case, results)
    compare("pixel_values", frame.pixel_values[None], PIXELS_TOLERANCE)
    for key, tower in zip(keys, features, strict=False):
        compare(key, tower, FEATURES_TOLERANCE)
    compare("projected", policy.project(features), FEATURES_TOLERANCE)
    for key in case.expected:
        prefix, _, strategy = key.partition(".")
        if prefix == "pixel_values_first3":
            image_config = replace(policy.config.image, strategy=strategy)
            compare(key, torch.from_numpy(Preprocessor(image_config)(case.image)[None, :3]), PIXELS_TOLERANCE)
    return results


def _check_outputs(policy: OpenVLAPolicy, case: _Case, decoded: Decoded) -> list[CheckResult]:
    """What comes out of the language model."""
    results: list[CheckResult] = []
    compare = _Comparison(case, results)
    compare("prefill_last_logits", decoded.logits[0], LOGITS_TOLERANCE)
    top_ids = case.expected.get("step_top32_ids")
    if top_ids is not None and top_ids.shape[0] == policy.K:
        compare("step_top32_logits", torch.stack(decoded.logits).gather(1, top_ids), LOGITS_TOLERANCE)
    ids = decoded.sampled.token_ids
    results.append(_ids(case, "action tokens", ids, case.action_ids))
    normalized, actions = policy.normalized_actions(ids), policy.decode_actions(ids, case.unnorm_key)
    results.append(_numbers(case, "normalized actions", normalized, case.normalized))
    results.append(_numbers(case, "actions", actions, case.actions))
    return results


class _Comparison:
    """Compares a tensor with the expected one of its name, if the bundle has it."""

    def __init__(self, case: _Case, results: list[CheckResult]) -> None:
        self._case = case
        self._results = results

    def __call__(self, quantity: str, actual: Tensor, tolerance: float) -> None:
        expected = self._case.expected.get(quantity)
        if expected is None:
            return
        tolerance *= self._scale(quantity, expected)
        same = actual.shape == expected.shape
        deviation = (actual - expected).abs().max().item() if same else math.inf
        self._results.append(_result(self._case, quantity.replace("_", " "), deviation, tolerance))

    def _scale(self, quantity: str, expected: Tensor) -> float:
        """Float32 noise grows with the numbers: their root mean square where it is above 1."""
        if quantity.startswith("pixel_values"):
            return 1.0
        if quantity.startswith("step_top"):  # the largest logits; noise is that of all of them
            expected = self._case.expected.get("prefill_last_logits", expected.new_ones(1))
        return max(1.0, expected.square().mean().sqrt().item())


def _ids(case: _Case, quantity: str, actual: Sequence[int], expected: Sequence[int]) -> CheckResult:
    pairs = zip(actual, expected, strict=False)
    different = sum(a != b for a, b in pairs) + abs(len(actual) - len(expected))
    return _result(case, quantity, float(different), EXACT)


def _numbers(case: _Case, quantity: str, actual: NDArray[np.float64], expected: list[float]) -> CheckResult:
    wanted = np.asarray(expected, np.float64)
    deviation = float(np.abs(actual - wanted).max()) if actual.shape == wanted.shape else math.inf
    return _result(case, quantity, deviation, ACTIONS_TOLERANCE * max(1.0, float(np.abs(wanted).max())))


def _result(case: _Case, quantity: str, deviation: float, tolerance: float) -> CheckResult:
    return CheckResult(case.name, quantity, deviation, tolerance, ok=deviation <= tolerance)


def _worst(runs: list[list[CheckResult]]) -> list[CheckResult]:
    """Of the same quantities checked several times, the one that is off or else has the largest deviation."""
    return [max(same, key=lambda result: (not result.ok, result.deviation)) for same in zip(*runs, strict=True)]


def _read_cases(path: Path) -> list[_Case]:
    tensors = read_tensors(path / "expected.safetensors")
    variants = path / "expected_resize_variants.safetensors"
    if variants.is_file():
        tensors |= read_tensors(variants)
    entries = read_json(path / "cases.json").get("cases")
    if not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{path / 'cases.json'} holds no cases: verify needs a bundle with expected outputs")
    try:
        return [_case(path, entry, tensors) for entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / 'cases.json'}: a case lacks or spoils {error}") from error


def _case(path: Path, entry: dict[str, Any], tensors: dict[str, Tensor]) -> _Case:
    name = str(entry["name"])
    return _Case(
        name=name,
        image=_read_image(path / entry["image"]),
        instruction=entry["instruction"],
        unnorm_key=entry.get("unnorm_key"),
        input_ids=entry["input_ids_after_29871"],
        action_ids=entry["action_token_ids"],
        normalized=entry["normalized_actions"],
        actions=entry["actions"],
        expected={key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")},
    )


def _read_image(path: Path) -> NDArray[np.uint8]:
    """RGB [H, W, 3], whatever the file's own mode (grey, palette, transparency)."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise CheckpointError(f"{path} is missing or not an image") from error
