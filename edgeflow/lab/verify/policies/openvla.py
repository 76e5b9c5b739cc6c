"""Checks of an OpenVLA checkpoint against outputs recorded from the original implementation, in float32.

Frames are preprocessed on the host. Compared where the bundle records it: text ids, pixel values, also of other resize
strategies (`pixel_values_first3.<strategy>`), tower features, projected tokens, the prefill's last hidden state and
logits, logits of each step, action tokens, normalised actions and actions. Of exported graphs: logits, tokens and
actions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.artifacts.sessions import Runtime
from edgeflow.contract import Pace, StageProgram
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, limits_for
from edgeflow.engine.placement import operator_table
from edgeflow.engine.policy import Placement, PreparedFrame, TokenPolicy
from edgeflow.kernels.kv.formats import CONFIGURED, DENSE, KVFormat, check_action_tokens
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.lab.openvla_policy import embed_prefill, load_openvla
from edgeflow.lab.verify.bundle import RecordedCase, read_cases, read_image
from edgeflow.lab.verify.comparison import (
    FEATURE_TOLERANCE,
    FP8_BOUNDS,
    KV_BOUNDS,
    PIXEL_TOLERANCE,
    CheckResult,
    Progress,
    Results,
    Verification,
    artifact_of,
    compare,
    judged,
    logit_errors,
    mismatches,
    mismatches_but_ties,
    silent,
)
from edgeflow.lab.verify.offline import decode_arrivals, paces_by_mode
from edgeflow.policies.openvla.config import RESIZE_STRATEGIES, load_config
from edgeflow.policies.openvla.exported import StaticOpenVLACheckpoint
from edgeflow.policies.openvla.policy import OpenVLAFrames, OpenVLAPolicy
from edgeflow.policies.openvla.preprocess import Preprocessor
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode

CPU = torch.device("cpu")
ACTION_TOLERANCE = 1e-12
TOWER_KEYS = ("dino_patches", "siglip_patches")
MODES = (Mode.SERIAL, Mode.PIPELINED, Mode.SPECULATIVE)
EXPORTED_MODES = (Mode.SERIAL, Mode.PIPELINED)
OTHERS = (Mode.PIPELINED, Mode.DEPTH, Mode.SPECULATIVE)
SERIAL = Pace(1)
TEXT_ROWS = 128  # of a slot as served by default, where KV formats are measured
SERIALLY = "tokens, against serial"
PIPELINE_FILLS = 3  # frames a check runs, in multiples of K: fill, steady state, drain


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVLACase:
    """A recorded case. A quantity that is None, or that has no tensor of its name, was not recorded."""

    name: str
    image: NDArray[np.uint8]
    """RGB [H, W, 3]."""
    instruction: str
    unnorm_key: str | None
    input_ids: list[int] | None
    """Text tokens, with or without the final space piece."""
    prompt_ids: list[int] | None
    """Text tokens with the final space piece."""
    action_token_ids: list[int]
    normalized_actions: list[float] | None
    actions: list[float] | None
    tensors: Mapping[str, Tensor]


def read_bundle(directory: Path) -> list[OpenVLACase]:
    """Read all cases; CheckpointError names the case and the wrong entry."""
    return [_case(directory, recorded) for recorded in read_cases(directory)]


def _case(directory: Path, recorded: RecordedCase) -> OpenVLACase:
    entry = recorded.entry
    return OpenVLACase(
        name=recorded.name,
        image=read_image(directory / entry.text("image")),
        instruction=entry.text("instruction"),
        unnorm_key=entry.optional_text("unnorm_key"),
        input_ids=entry.optional_ids("input_ids"),
        prompt_ids=entry.optional_ids("input_ids_after_29871"),
        action_token_ids=entry.ids("action_token_ids"),
        normalized_actions=entry.optional_numbers("normalized_actions"),
        actions=entry.optional_numbers("actions"),
        tensors=recorded.tensors,
    )


@dataclass(frozen=True, slots=True)
class _PreparedCase:
    """A recorded case and its frame, prepared by the policy."""

    recorded: OpenVLACase
    frame: PreparedFrame

    @property
    def name(self) -> str:
        return self.recorded.name


def verify(directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle, or of its exported graphs, with its mode; or the cost of another precision of
    weights.
    """
    if asked.artifact is not None:
        return verify_exported(directory, asked.artifact, asked)
    if asked.weights != "float":
        return _weights_cost(directory, asked.weights, asked.device)
    if asked.kv != "model":
        return _kv_cost(directory, CONFIGURED[asked.kv], asked)
    table = operator_table(asked.operators, "float", asked.device, torch.float32)
    return [
        (name, result)
        for name, pace in paces_by_mode(asked.modes or MODES, _program(directory)).items()
        for result in verify_bundle(directory, pace, asked.progress, table, asked.device)
    ]


def _program(directory: Path) -> StageProgram:
    """The program of the widest action, which every frame of a check has."""
    return StageProgram.tokens(load_config(directory).action_width)


def _weights_cost(directory: Path, weights: str, device: torch.device) -> Results:
    """Logits and tokens with weights and rows in another precision, compared with float32."""
    table = operator_table(None, weights, device, torch.float32)
    exact, other = (load_openvla(directory, torch.float32, device, table=each) for each in (None, table))
    results: Results = []
    for case in (prepared(case, exact) for case in read_bundle(directory)):
        wanted, found = (_forced(case, policy) for policy in (exact, other))
        results += [(weights, result) for result in logit_errors(case.name, wanted, found, FP8_BOUNDS)]
    return results


def _kv_cost(directory: Path, kv_format: KVFormat, asked: Verification) -> Results:
    """Logits and tokens over slots of a format compared with the model's own, its tokens in every mode, and its
    memory.

    ConfigError for a format that cannot serve the checkpoint, before its weights are read.
    """
    check_action_tokens("kv", kv_format, load_config(directory).action_width)
    table = operator_table(asked.operators, "float", asked.device, torch.float32)
    policy = load_openvla(directory, torch.float32, asked.device, table=table)
    cases, mode = [prepared(case, policy) for case in read_bundle(directory)], f"{kv_format.name} KV"
    results: Results = []
    for case in cases:
        wanted, found = (_forced(case, policy, each) for each in (DENSE, kv_format))
        results += [(mode, result) for result in logit_errors(case.name, wanted, found, KV_BOUNDS[kv_format.name])]
    capacity = rounded_capacity(policy.fixed_rows + TEXT_ROWS + policy.K)
    exact, own = (policy.decoder.kv_slots(1, capacity, each).nbytes / capacity for each in (DENSE, kv_format))
    results.append((mode, CheckResult("all", f"bytes per position, {own:.5g} for {exact:.5g}", own / exact, 1)))
    alone = [decodings[0] for decodings in decode(cases, policy, SERIAL, table, kv_format=kv_format)]
    for name, pace in paces_by_mode(asked.modes or OTHERS, _program(directory)).items():
        for shift in Shift:
            asked.progress(f"{name}, {shift.value}", 0, 1)
            decoded = decode(cases, policy, pace, table, kv_format=kv_format, shift=shift)
            for case, serial, decodings in zip(cases, alone, decoded, strict=True):
                ids = serial.sampled.token_ids
                off = max(
                    mismatches_but_ties(each.sampled.token_ids, ids, serial.logits, kv_format.name)
                    for each in decodings
                )
                results.append((f"{name}, {shift.value}", CheckResult(case.name, SERIALLY, off, 0)))
    return results


@torch.inference_mode()
def _forced(case: _PreparedCase, policy: OpenVLAPolicy, kv_format: KVFormat = DENSE) -> Tensor:
    """Logits [K, V] of the recorded action tokens, each given the recorded tokens before it."""
    device = policy.device
    (rows,) = embed_prefill(policy, case.frame.pixel_values[None].to(device), [case.frame.prompt_ids])
    before = torch.tensor(case.recorded.action_token_ids[:-1], device=device)
    hidden = torch.cat([rows, policy.decoder.embed(before)])
    layout = PackedLayout.of([Span(0, 0, len(hidden))], device)
    hidden = policy.decoder.forward(hidden, layout, policy.decoder.kv_slots(1, len(hidden), kv_format))
    return policy.decoder.logits(hidden[len(rows) - 1 :], "prefill")


def verify_bundle(
    directory: Path,
    pace: Pace,
    progress: Progress = silent,
    table: OperatorTable | None = None,
    device: torch.device = CPU,
) -> list[CheckResult]:
    """Every comparison of a policy's bundle, case by case; CheckpointError if it is not one."""
    policy = load_openvla(directory, torch.float32, device, table=table)
    cases = [prepared(case, policy) for case in read_bundle(directory)]
    results: list[CheckResult] = []
    for index, case in enumerate(cases):
        progress(case.name, index, len(cases) + 1)
        with torch.inference_mode():
            results += _check_inputs(case)
            results += _check_resize_variants(case, policy)
            results += _check_vision(case, policy, device)
            results += _check_hidden(case, policy, device)
    progress("decoding", len(cases), len(cases) + 1)
    for case, decodings in zip(cases, decode(cases, policy, pace, table), strict=True):
        results += check_decoding(case, decodings, policy)
    names = [case.name for case in cases]
    return sorted(results, key=lambda result: names.index(result.case))


def prepared(case: OpenVLACase, policy: OpenVLAFrames) -> _PreparedCase:
    """A recorded case prepared by the policy."""
    policy.action_schema(case.unnorm_key)  # reject an unknown key before anything runs
    return _PreparedCase(case, PreparedFrame(policy.preprocess(case.image), policy.prompt_ids(case.instruction)))


def _check_inputs(case: _PreparedCase) -> Iterator[CheckResult]:
    found, plain, extended = case.frame.prompt_ids, case.recorded.input_ids, case.recorded.prompt_ids
    off = [] if extended is None else [mismatches(found, extended)]
    if plain is not None:
        off.append(min(mismatches(found, plain), mismatches(found[:-1], plain)))
    if off:
        yield CheckResult(case.name, "input ids", max(off), 0)
    yield from _checked(case, "pixel values", "pixel_values", case.frame.pixel_values[None], PIXEL_TOLERANCE)


def _check_resize_variants(case: _PreparedCase, policy: OpenVLAPolicy) -> Iterator[CheckResult]:
    """Compare the first tower's pixels under the other resize strategies."""
    for name in case.recorded.tensors:
        quantity, _, strategy = name.partition(".")
        if quantity == "pixel_values_first3" and strategy in RESIZE_STRATEGIES:
            variant = Preprocessor(replace(policy.config.image, strategy=strategy))
            found = torch.from_numpy(variant(case.recorded.image)[None, :3])
            yield from _checked(case, f"pixel values, {strategy}", name, found, PIXEL_TOLERANCE)


def _check_vision(case: _PreparedCase, policy: OpenVLAPolicy, device: torch.device) -> Iterator[CheckResult]:
    features = policy.vision.features(case.frame.pixel_values[None].to(device))
    keys = TOWER_KEYS if len(features) > 1 else [key for key in TOWER_KEYS if key in case.recorded.tensors]
    for key, feature in zip(keys, features, strict=False):
        yield from _checked(case, key.replace("_", " "), key, feature, FEATURE_TOLERANCE)
    yield from _checked(case, "projected", "projected", policy.vision.project(features), FEATURE_TOLERANCE)


def _check_hidden(case: _PreparedCase, policy: OpenVLAPolicy, device: torch.device) -> Iterator[CheckResult]:
    """Compare the prefill's last row, the input of the head."""
    if "final_hidden_last" in case.recorded.tensors:
        (rows,) = embed_prefill(policy, case.frame.pixel_values[None].to(device), [case.frame.prompt_ids])
        layout = PackedLayout.of([Span(0, 0, len(rows))], device)
        hidden = policy.decoder.forward(rows, layout, policy.decoder.kv_slots(1, len(rows)))
        found = policy.decoder.final_norm(hidden[layout.sampled_rows], "prefill")[0]
        yield from _checked(case, "final hidden", "final_hidden_last", found, FEATURE_TOLERANCE)


def decode(
    cases: list[_PreparedCase],
    policy: TokenPolicy,
    pace: Pace,
    table: OperatorTable | None,
    kv_format: KVFormat = DENSE,
    shift: Shift = Shift.ROTATE,
) -> list[list[DecodedFrame]]:
    """Decode every case several times, so that the pipeline fills, runs full and drains; decodings case by case.

    Drafting frames first follow each other at once, so that some are overtaken, and then one by one.
    """
    longest = max(len(case.frame.prompt_ids) for case in cases)
    capacity = policy.fixed_rows + longest + policy.K
    engine = PolicyEngine(policy, policy.K, capacity, keep_logits=True, table=table, kv_format=kv_format)
    rounds = 1 if pace == SERIAL else -(-PIPELINE_FILLS * policy.K // len(cases))
    run = OfflineRun(engine, Scheduler(limits_for(policy.K, shift=shift)), [pace])
    frames = [case.frame for case in cases]
    if pace.speculation is not None:
        alone = [(policy.K, frame) for frame in frames]
        decoded = decode_arrivals(run, [(0, frame) for frame in frames * rounds] + alone)
    else:
        (decoded,) = run.decode([frames * rounds])
    of_cases: list[list[DecodedFrame]] = [[] for _ in cases]
    for each in decoded:
        of_cases[(each.sampled.frame.seq - 1) % len(cases)].append(each)
    return of_cases


def check_decoding(case: _PreparedCase, decodings: list[DecodedFrame], policy: OpenVLAFrames) -> Iterator[CheckResult]:
    """Compare logits, tokens and actions of the decodings of a case."""
    recorded, key = case.recorded, case.recorded.unnorm_key
    logits = torch.stack([torch.stack(decoded.logits) for decoded in decodings]).cpu()
    yield from _checked(case, "prefill logits", "prefill_last_logits", logits[:, 0], FEATURE_TOLERANCE)
    yield from _check_steps(case, logits)
    width = len(policy.action_schema(key).names)
    ids = [decoded.sampled.token_ids[:width] for decoded in decodings]
    off = max(mismatches(found, recorded.action_token_ids) for found in ids)
    yield CheckResult(case.name, "action tokens", off, 0)
    for quantity, wanted, values in (
        ("normalized actions", recorded.normalized_actions, [policy.action_decoder.normalized(found) for found in ids]),
        ("actions", recorded.actions, [policy.decode_actions(found, key) for found in ids]),
    ):
        if wanted is not None:
            found = torch.tensor(np.array(values))
            yield compare(case.name, quantity, found, torch.tensor(wanted, dtype=torch.float64), ACTION_TOLERANCE)


def _check_steps(case: _PreparedCase, logits: Tensor) -> Iterator[CheckResult]:
    """Compare logits [n, K, V] with the largest ones of each step: `step_top<n>_ids` and `step_top<n>_logits`."""
    for name, ids in case.recorded.tensors.items():
        if not re.fullmatch(r"step_top\d+_ids", name):
            continue
        stages, vocab = logits.shape[1:]
        fits = ids.dtype == torch.int64 and ids.dim() == 2 and len(ids) <= stages
        if fits and bool(((ids >= 0) & (ids < vocab)).all()):
            found = logits[:, : len(ids)].gather(2, ids.expand(len(logits), -1, -1))
            yield from _checked(case, "step logits", name.replace("_ids", "_logits"), found, FEATURE_TOLERANCE)
        else:
            yield CheckResult(case.name, "step logits", math.inf, FEATURE_TOLERANCE)


def _checked(case: _PreparedCase, quantity: str, name: str, found: Tensor, tolerance: float) -> Iterator[CheckResult]:
    """Compare `found` with the recorded tensor of that name, if there is one."""
    if name in case.recorded.tensors:
        yield compare(case.name, quantity, found, case.recorded.tensors[name], tolerance)


def verify_exported(directory: Path, artifact: Path, asked: Verification) -> Results:
    """The graphs' answers to all recordings; ConfigError for an artifact of another checkpoint."""
    manifest = artifact_of(directory, artifact)
    runtime = Runtime(threads=torch.get_num_threads())
    placement = Placement(dtype=torch.float32, device=asked.device, table=built_in_table(), runtime=runtime)
    policy = StaticOpenVLACheckpoint(artifact, center_crop=False).load(placement)
    cases = [prepared(case, policy) for case in read_bundle(directory)]
    results: Results = []
    paces = paces_by_mode(_exported_modes(asked.modes), policy.program())
    for index, (name, pace) in enumerate(paces.items()):
        asked.progress(name, index, len(paces))
        for case, decodings in zip(cases, decode(cases, policy, pace, placement.table), strict=True):
            results += [(name, each) for each in check_decoding(case, decodings, policy)]
    return judged(manifest, results)


def _exported_modes(asked: Sequence[Mode]) -> Sequence[Mode]:
    if Mode.SPECULATIVE in asked:
        names = ", ".join(mode.value for mode in (*EXPORTED_MODES, Mode.DEPTH, Mode.AUTO))
        raise ConfigError(f"mode: exported graphs are not run speculative, since they verify no drafts; use {names}")
    return asked or EXPORTED_MODES
