"""Checks a chat model against outputs recorded from the original implementation, in float32, in every mode.

Once: chat text, input ids, pixel values (of the torchvision preprocessor, the reference), image rows, positions,
hidden states and logits of the prompt. In each mode: the first and the last logits, all greedy tokens and their text.
Modes: alone; the prompt in chunks; after a fixed prefix, in its slot or copied; all cases packed into shared passes,
each starting one pass after the other (lab/verify/chat_modes.py). For a KV format: the logits of recorded answers
against those over dense KV, its own tokens in every mode, its memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.artifacts.sessions import Runtime
from edgeflow.engine.exported.chat import read_exported_chat
from edgeflow.engine.placement import choose_dtype, operator_table
from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.linear import Reference
from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.verify.chat_bundle import ChatCase, read_chat_bundle
from edgeflow.lab.verify.chat_modes import ChatModes, PromptCase
from edgeflow.lab.verify.comparison import (
    FEATURE_TOLERANCE,
    KV_BOUNDS,
    PIXEL_TOLERANCE,
    CheckResult,
    LogitBounds,
    Progress,
    Results,
    artifact_of,
    compare,
    judged,
    logit_errors,
    mismatches,
    mismatches_but_ties,
    silent,
)
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.checkpoint import Weights, read_tensors
from edgeflow.models.prompt import Prompt
from edgeflow.models.published import read_published

CPU = torch.device("cpu")
CAPACITY = 2048  # positions of a slot whose memory is reported
SERVED_BOUNDS = LogitBounds(largest=0.45, mean=0.065, lost=0.2)
"""Bounds of the operators that serve a quantised model, whose rows may be rounded to 8 bits. Measured with such rows:
0.35, 0.050 and 0.16 with random weights, which amplify every error; 0.13, 0.011 and 0 with trained ones. Rows in 7
bits give 0.64, 0.089 and 0.28 with random weights.
"""
LINEARS_FILE = "expected_linears.safetensors"
MODE = "projections"


@dataclass(frozen=True, slots=True)
class _ChatCase:
    """A recorded case and its prompt as the model prepares it."""

    recorded: ChatCase
    prompt: Prompt
    rendered: str | None

    @property
    def name(self) -> str:
        return self.recorded.name

    @property
    def asked(self) -> PromptCase:
        return PromptCase(self.prompt, len(self.recorded.greedy_ids))


def verify_chat(directory: Path, progress: Progress = silent, device: torch.device = CPU) -> Results:
    """Every comparison with its mode; CheckpointError if the directory is not a bundle.

    A quantised model is computed by the reference, then compared with the operators that serve it, in the served dtype
    of the device.
    """
    quantised = read_published(directory).quantization is not None
    table = built_in_table().forcing(linear=REFERENCE) if quantised else None
    model = load_chat_model(directory, torch.float32, device, table=table)
    cases = _prepared_cases(directory, model)
    results: Results = []
    if quantised:
        results += check_linears(directory, device)
        served = load_chat_model(directory, choose_dtype("auto", device), device)
        results += _forced_errors(cases, ChatModes(model), ChatModes(served), "as served", SERVED_BOUNDS)
    progress("prompts", 0, len(ChatModes(model).all()) + 1)
    with torch.inference_mode():
        for case in cases:
            results += [("prompt", result) for result in _check_prompt(case, model)]
    return results + _checked_answers(cases, model, progress)


def _checked_answers(cases: Sequence[_ChatCase], model: ChatModel, progress: Progress) -> Results:
    answered, modes = [case for case in cases if case.recorded.greedy_ids], ChatModes(model).all()
    results = []
    for index, (name, run) in enumerate(modes.items(), start=1):
        progress(name, index, len(modes) + 1)
        for case, answer in zip(answered, run([case.asked for case in answered]), strict=True):
            results += [(name, result) for result in _check_answer(case, *answer, model)]
    return results


def verify_kv(
    directory: Path,
    kv_format: KVFormat,
    progress: Progress = silent,
    device: torch.device = CPU,
) -> Results:
    """The cost of a KV format; all modes must give the same answer. Logit errors are in standard deviations."""
    model = load_chat_model(directory, torch.float32, device)
    cases = [case for case in _prepared_cases(directory, model) if case.recorded.greedy_ids]
    asked = [case.asked for case in cases]
    modes, mode = ChatModes(model, kv_format).all(), f"{kv_format.name} KV"
    bounds = KV_BOUNDS[kv_format.name]
    results = _forced_errors(cases, ChatModes(model, DENSE), ChatModes(model, kv_format), mode, bounds)
    results.append((mode, _memory(model, kv_format)))
    alone = modes["alone"](asked)
    for index, (name, run) in enumerate(modes.items(), start=1):
        progress(name, index, len(modes) + 1)
        for case, wanted, (tokens, _) in zip(cases, alone, run(asked), strict=True):
            off = mismatches_but_ties(tokens, *wanted, kv_format.name)
            results.append((name, CheckResult(case.name, "tokens, against alone", off, 0)))
    return results


def verify_chat_weights(directory: Path, weights: str, bounds: LogitBounds, device: torch.device = CPU) -> Results:
    """The cost of weights and rows in another precision: recorded answers predicted in it, compared with float32."""
    table = operator_table(None, weights, device, torch.float32)
    model, other = (load_chat_model(directory, torch.float32, device, table=each) for each in (None, table))
    return _forced_errors(_prepared_cases(directory, model), ChatModes(model), ChatModes(other), weights, bounds)


def _forced_errors(
    cases: Sequence[_ChatCase], exact: ChatModes, found: ChatModes, mode: str, bounds: LogitBounds
) -> Results:
    """The logits of recorded answers from one model compared with those from another."""
    results: Results = []
    for case in cases:
        if case.recorded.greedy_ids:
            errors = logit_errors(case.name, _forced(case, exact), _forced(case, found), bounds)
            results += [(mode, result) for result in errors]
    return results


@torch.inference_mode()
def _forced(case: _ChatCase, ways: ChatModes) -> Tensor:
    """Logits [tokens, V] of the recorded answer, each given the recorded tokens before it."""
    return _all_logits(case, ways)[len(case.prompt) - 1 :]


def _all_logits(case: _ChatCase, ways: ChatModes) -> Tensor:
    """Logits of every row of the prompt and of the recorded answer but its last token."""
    decoder, prompt, answer = ways.model.decoder, case.prompt, case.recorded.greedy_ids[:-1]
    count = len(prompt) + len(answer)
    hidden = torch.cat([ways.model.prompt_rows(prompt), ways.model.embed(answer)])
    after = torch.arange(len(prompt), count) + prompt.shift
    positions = torch.cat([prompt.positions, after.expand(len(prompt.positions), -1)], dim=1)
    layout = PackedLayout.of([Span(0, 0, count)], hidden.device, positions)
    return decoder.logits(decoder.forward(hidden, layout, ways.kv(1, count)), "prefill")


def _memory(model: ChatModel, kv_format: KVFormat) -> CheckResult:
    """Bytes per position of a slot with default settings, including scales and everything a slot has once."""
    capacity = min(CAPACITY, model.config.max_position_embeddings)
    exact, found = (ChatModes(model, each).kv(1, capacity).nbytes / capacity for each in (DENSE, kv_format))
    return CheckResult("all", f"bytes per position, {found:.5g} for {exact:.5g}", found / exact, 1)


def _prepared_cases(directory: Path, model: ChatModel) -> list[_ChatCase]:
    return [_prepared(case, model) for case in read_chat_bundle(directory)]


def _prepared(case: ChatCase, model: ChatModel) -> _ChatCase:
    if case.messages is None:
        ids = model.prompt(case.input_ids) if case.prompt is None else model.text_prompt(case.prompt)
        return _ChatCase(case, ids, None)
    rendered = model.render(case.messages)
    return _ChatCase(case, model.chat_prompt(rendered, case.images), rendered)


def _check_prompt(case: _ChatCase, model: ChatModel) -> Iterator[CheckResult]:
    recorded, prompt = case.recorded, case.prompt
    if recorded.rendered is not None:
        yield CheckResult(case.name, "chat text", float(case.rendered != recorded.rendered), 0)
    yield CheckResult(case.name, "input ids", mismatches(prompt.ids, recorded.input_ids), 0)
    if recorded.rope_delta is not None:
        yield CheckResult(case.name, "rope delta", abs(prompt.shift - recorded.rope_delta), 0)
    yield from _checked(case, "position ids", "position_ids", prompt.positions[:, None], 0)
    if prompt.images and model.vision is not None:
        pixels = torch.cat([image.patches.values for image in prompt.images])
        yield from _checked(case, "pixel values (torchvision)", "pixel_values", pixels, PIXEL_TOLERANCE)
        grids = torch.tensor([(1, *image.patches.grid) for image in prompt.images])
        yield from _checked(case, "image grids", "image_grid_thw", grids, 0)
        rows = torch.cat([model.vision.tower.forward(image.patches) for image in prompt.images])
        yield from _checked(case, "image rows", "image_embeds", rows, FEATURE_TOLERANCE)
    yield from _check_forward(case, model)


def _check_forward(case: _ChatCase, model: ChatModel) -> Iterator[CheckResult]:
    """Check every row of the prompt, computed in one pass."""
    decoder, prompt = model.decoder, case.prompt
    layout = PackedLayout.of([Span(0, 0, len(prompt))], model.device, prompt.positions)
    hidden = decoder.forward(model.prompt_rows(prompt), layout, decoder.kv_slots(1, len(prompt)))
    logits = decoder.logits(hidden, "prefill")
    yield from _checked(case, "final hidden", "final_hidden", decoder.final_norm(hidden, "prefill"), FEATURE_TOLERANCE)
    yield from _checked(case, "logits", "logits", logits, FEATURE_TOLERANCE)
    if (best := case.recorded.tensors.get("logits_argmax")) is not None:
        yield check_best(case.name, "best ids", logits, best[:, None])
    yield from _checked(case, "last logits", "logits_last", logits[-1], FEATURE_TOLERANCE)
    if "all_logits" in case.recorded.tensors:
        every = _all_logits(case, ChatModes(model))
        yield from _checked(case, "logits of prompt and answer", "all_logits", every, FEATURE_TOLERANCE)


def _check_answer(case: _ChatCase, tokens: list[int], logits: list[Tensor], model: ChatModel) -> Iterator[CheckResult]:
    recorded = case.recorded
    yield CheckResult(case.name, "greedy tokens", mismatches(tokens, recorded.greedy_ids), 0)
    if recorded.text is not None:
        text = model.tokenizer.decode(tokens, special=True)
        yield CheckResult(case.name, "text", float(text != recorded.text), 0)
    if recorded.whole_text is not None:
        text = model.tokenizer.decode([*case.prompt.ids, *tokens])
        yield CheckResult(case.name, "text", float(text != recorded.whole_text), 0)
    if "logits" in recorded.tensors:
        yield compare(case.name, "first logits", logits[0], recorded.tensors["logits"][-1], FEATURE_TOLERANCE)
    yield from _checked(case, "first logits", "logits_last", logits[0], FEATURE_TOLERANCE)
    yield from _checked(case, "last step's logits", "step_logits_last", logits[-1], FEATURE_TOLERANCE)
    if "top_ids" in recorded.tensors:
        ids = recorded.tensors["top_ids"]
        yield check_best(case.name, "largest ids", logits[0][None], ids[None])
        yield from _checked(case, "largest logits", "top_logits", logits[0].topk(len(ids)).values, FEATURE_TOLERANCE)


def check_best(case: str, quantity: str, logits: Tensor, ids: Tensor) -> CheckResult:
    """Distance of the recorded ids [rows, k] from the k largest of these logits [rows, V]: 0 except for near ties."""
    logits, ids = logits.cpu(), ids.long()
    if len(ids) != len(logits) or not bool(((ids >= 0) & (ids < logits.shape[1])).all()):
        return CheckResult(case, quantity, math.inf, FEATURE_TOLERANCE)
    largest = logits.topk(ids.shape[1]).values
    return compare(case, quantity, largest - logits.gather(1, ids), torch.zeros(ids.shape), FEATURE_TOLERANCE)


def _checked(case: _ChatCase, quantity: str, name: str, found: Tensor, tolerance: float) -> Iterator[CheckResult]:
    """Compare `found` with the recorded tensor of that name, if there is one."""
    if name in case.recorded.tensors:
        yield compare(case.name, quantity, found, case.recorded.tensors[name], tolerance)


def check_linears(directory: Path, device: torch.device) -> Iterator[tuple[str, CheckResult]]:
    """Dequantised weights, equal to the bit, and outputs in float32; nothing if the bundle has not recorded any."""
    if not (directory / LINEARS_FILE).is_file():
        return
    recorded, weights = read_tensors(directory / LINEARS_FILE), Weights(directory, torch.float32, device)
    for name in sorted({each.rpartition(".")[0] for each in recorded}):
        dequantised = recorded[f"{name}.dequantized_in_out"].t().float()
        weight = weights.linear(name, *dequantised.shape)
        biased = f"{name}.bias" in weights
        found = Reference(weight, weights[f"{name}.bias"] if biased else None)(recorded[f"{name}.x"].float().to(device))
        yield MODE, compare(name, "dequantised weight", weight.floats(), dequantised, 0)
        yield MODE, compare(name, "output", found, recorded[f"{name}.y_fp32"], FEATURE_TOLERANCE)


def verify_exported_chat(directory: Path, artifact: Path, progress: Progress) -> Results:
    """Logits, tokens and texts of all recorded answers; ConfigError for an artifact of another checkpoint."""
    manifest = artifact_of(directory, artifact)
    model = read_exported_chat(artifact).load(Runtime(threads=torch.get_num_threads()))
    with torch.inference_mode():
        return judged(manifest, _checked_answers(_prepared_cases(directory, model), model, progress))
