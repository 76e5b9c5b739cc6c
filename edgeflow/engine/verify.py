"""Check a checkpoint against outputs recorded from the original implementation, case by case, in fp32.

A bundle is a checkpoint directory with `cases.json` (image, instruction, unnorm_key, expected ids and actions) and
`expected.safetensors` (`<case>.<quantity>`: pixel values, tower features, projected tokens, logits); it may have
`expected_resize_variants.safetensors` (`<case>.pixel_values_first3.<strategy>`). What a bundle does not record is not
checked; what it records must agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from edgeflow.engine.engine import PolicyEngine
from edgeflow.engine.offline import Decoded, OfflineRun, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import CheckpointError
from edgeflow.models.checkpoint import read_json, read_tensors
from edgeflow.models.openvla.config import RESIZE_STRATEGIES
from edgeflow.models.openvla.policy import OpenVLAPolicy
from edgeflow.models.openvla.preprocess import Preprocessor
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

PIXEL_TOLERANCE = 1e-6
FEATURE_TOLERANCE = 1e-4  # absolute, fp32: reordered sums give about 1e-5, any wrong operator far more
ACTION_TOLERANCE = 1e-12
VARIANTS_FILE = "expected_resize_variants.safetensors"
TOWER_KEYS = ("dino_patches", "siglip_patches")
PIPELINE_FILLS = 3  # frames a check runs, in multiples of K: fill, steady state, drain


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One comparison. deviation: largest absolute difference, or the number of ids that differ."""

    case: str
    quantity: str
    deviation: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.deviation <= self.tolerance


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    recorded: Mapping[str, Any]
    expected: Mapping[str, Tensor]
    image: NDArray[np.uint8]
    frame: PreparedFrame


def verify_bundle(
    directory: Path, mode: Mode, progress: Callable[[str, int, int], None] = lambda *_: None
) -> list[CheckResult]:
    """All comparisons of a bundle; CheckpointError when it is not one."""
    policy = OpenVLAPolicy.load(directory, torch.float32, torch.device("cpu"))
    cases = _load_cases(directory, policy)
    results: list[CheckResult] = []
    for index, case in enumerate(cases):
        progress(case.name, index, len(cases) + 1)
        with torch.inference_mode():
            results += _check_inputs(case)
            results += _check_resize_variants(case, policy)
            results += _check_vision(case, policy)
    progress("decoding", len(cases), len(cases) + 1)
    for case, decodings in zip(cases, _decode(cases, policy, mode), strict=True):
        results += _check_decoding(case, decodings, policy)
    return results


def _load_cases(directory: Path, policy: OpenVLAPolicy) -> list[_Case]:
    recorded = read_json(directory / "cases.json").get("cases")
    if not isinstance(recorded, list) or not recorded:
        raise CheckpointError(f"{directory / 'cases.json'} lists no cases")
    try:
        tensors = read_tensors(directory / "expected.safetensors")
        if (directory / VARIANTS_FILE).is_file():
            tensors |= read_tensors(directory / VARIANTS_FILE)
        return [_case(directory, entry, tensors, policy) for entry in recorded]
    except OSError as error:
        raise CheckpointError(f"{directory}: an image of cases.json is missing or unreadable: {error}") from error
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{directory / 'cases.json'}: a case lacks {error}") from error


def _case(directory: Path, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], policy: OpenVLAPolicy) -> _Case:
    prefix = entry["name"] + "."
    expected = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    with Image.open(directory / entry["image"]) as picture:
        image = np.asarray(picture.convert("RGB"))
    frame = PreparedFrame(policy.preprocess(image), policy.prompt_ids(entry["instruction"]))
    return _Case(entry["name"], entry, expected, image, frame)


def _check_inputs(case: _Case) -> Iterator[CheckResult]:
    ids = case.recorded.get("input_ids_after_29871") or case.recorded.get("input_ids")
    if ids is not None:
        yield CheckResult(case.name, "input ids", _mismatches(case.frame.prompt_ids, ids), 0)
    if "pixel_values" in case.expected:
        found = case.frame.pixel_values[None]
        yield _compare(case, "pixel values", found, case.expected["pixel_values"], PIXEL_TOLERANCE)


def _check_resize_variants(case: _Case, policy: OpenVLAPolicy) -> Iterator[CheckResult]:
    """The first tower's pixels as other resize strategies give them."""
    for name, wanted in case.expected.items():
        quantity, _, strategy = name.partition(".")
        if quantity == "pixel_values_first3" and strategy in RESIZE_STRATEGIES:
            variant = Preprocessor(replace(policy.config.image, strategy=strategy))
            found = torch.from_numpy(variant(case.image)[None, :3])
            yield _compare(case, f"pixel values, {strategy}", found, wanted, PIXEL_TOLERANCE)


def _check_vision(case: _Case, policy: OpenVLAPolicy) -> Iterator[CheckResult]:
    features = policy.tower_features(case.frame.pixel_values[None])
    keys = TOWER_KEYS if len(features) == len(TOWER_KEYS) else [key for key in TOWER_KEYS if key in case.expected]
    for key, feature in zip(keys, features, strict=False):
        if key in case.expected:
            yield _compare(case, key.replace("_", " "), feature, case.expected[key], FEATURE_TOLERANCE)
    if "projected" in case.expected:
        yield _compare(case, "projected", policy.project(features), case.expected["projected"], FEATURE_TOLERANCE)


def _decode(cases: list[_Case], policy: OpenVLAPolicy, mode: Mode) -> list[list[Decoded]]:
    """Every case several times over, so that the pipeline fills, runs full and drains; decodings case by case."""
    longest = max(len(case.frame.prompt_ids) for case in cases)
    capacity = policy.image_tokens + longest + policy.K
    engine = PolicyEngine(policy, policy.K, capacity, torch.device("cpu"), keep_logits=True)
    rounds = 1 if mode is Mode.SERIAL else -(-PIPELINE_FILLS * policy.K // len(cases))
    run = OfflineRun(engine, Scheduler(limits_for(policy.K)), [mode])
    (decoded,) = run.decode([[case.frame for case in cases] * rounds])
    return [decoded[index :: len(cases)] for index in range(len(cases))]


def _check_decoding(case: _Case, decodings: list[Decoded], policy: OpenVLAPolicy) -> Iterator[CheckResult]:
    if "prefill_last_logits" in case.expected:
        logits = torch.stack([decoded.logits[0] for decoded in decodings])
        yield _compare(case, "prefill logits", logits, case.expected["prefill_last_logits"], FEATURE_TOLERANCE)
    yield from _check_steps(case, decodings)
    tokens = case.recorded["action_token_ids"]
    width = len(policy.action_schema(case.recorded.get("unnorm_key")).names)
    ids = [decoded.sampled.token_ids[:width] for decoded in decodings]
    yield CheckResult(case.name, "action tokens", max(_mismatches(found, tokens) for found in ids), 0)
    key = case.recorded.get("unnorm_key")
    for quantity, values in (
        ("normalized_actions", [policy.normalized_actions(found) for found in ids]),
        ("actions", [policy.decode_actions(found, key) for found in ids]),
    ):
        if quantity in case.recorded:
            found, wanted = torch.tensor(np.array(values)), torch.tensor(case.recorded[quantity], dtype=torch.float64)
            yield _compare(case, quantity.replace("_", " "), found, wanted, ACTION_TOLERANCE)


def _check_steps(case: _Case, decodings: list[Decoded]) -> Iterator[CheckResult]:
    """Logits of each step where the bundle keeps the largest ones: `step_top<n>_ids` and `step_top<n>_logits`."""
    for name, ids in case.expected.items():
        if re.fullmatch(r"step_top\d+_ids", name):
            found = torch.stack([torch.stack(decoded.logits).gather(1, ids) for decoded in decodings])
            wanted = case.expected[name.replace("_ids", "_logits")]
            yield _compare(case, "step logits", found, wanted, FEATURE_TOLERANCE)


def _compare(case: _Case, quantity: str, found: Tensor, wanted: Tensor, tolerance: float) -> CheckResult:
    """`found` may hold several runs of what is `wanted`; another shape or a NaN is an infinite deviation."""
    if found.shape[found.dim() - wanted.dim() :] != wanted.shape:
        return CheckResult(case.name, quantity, math.inf, tolerance)
    deviation = (found.double() - wanted.double()).abs().max().item()
    return CheckResult(case.name, quantity, math.inf if math.isnan(deviation) else deviation, tolerance)


def _mismatches(found: tuple[int, ...], wanted: list[int]) -> int:
    """Ids that differ, counting a difference in length."""
    same = sum(a == b for a, b in zip(found, wanted, strict=False))
    return max(len(found), len(wanted)) - same
