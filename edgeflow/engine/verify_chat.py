"""Check a chat model against outputs recorded from the original implementation, in fp32, in every way it is run.

Once: chat text, input ids, pixel values (of the torchvision preprocessor, which is the one followed), image rows,
positions, hidden states and logits of the prompt. In each mode: the first and the last logits, all greedy tokens and
their text. Modes: alone; the prompt in chunks; beginning with a fixed prefix, in its slot or copied; all cases packed
into shared passes, each starting one pass after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.engine.chat_bundle import ChatCase, read_chat_bundle
from edgeflow.engine.comparison import CheckResult, compare, mismatches
from edgeflow.engine.generate import FixedPrefix, Generation, run_pass
from edgeflow.engine.sampling import SamplingParams
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt

CPU = torch.device("cpu")
PIXEL_TOLERANCE = 1e-6
FEATURE_TOLERANCE = 1e-4
CHUNKS = (1, 5, 64)
PACKED_CHUNK = 7
PREFIX_CHUNK = 16


@dataclass(frozen=True, slots=True)
class _Case:
    """A recorded case and its prompt as the model prepares it."""

    recorded: ChatCase
    prompt: Prompt
    rendered: str | None

    @property
    def name(self) -> str:
        return self.recorded.name


Answers = list[tuple[list[int], list[Tensor]]]
"""Of each case: tokens, and the logits [V] that each was taken from."""


def verify_chat(
    directory: Path, progress: Callable[[str, int, int], None] = lambda *_: None
) -> list[tuple[str, CheckResult]]:
    """All comparisons with their mode; CheckpointError when the directory is no bundle."""
    model = load_chat_model(directory, torch.float32, CPU)
    cases = [_prepared(case, model) for case in read_chat_bundle(directory)]
    modes = _modes(model)
    results: list[tuple[str, CheckResult]] = []
    progress("prompts", 0, len(modes) + 1)
    with torch.inference_mode():
        for case in cases:
            results += [("prompt", result) for result in _check_prompt(case, model)]
    answered = [case for case in cases if case.recorded.greedy_ids]
    for index, (name, run) in enumerate(modes.items(), start=1):
        progress(name, index, len(modes) + 1)
        for case, answer in zip(answered, run(answered), strict=True):
            results += [(name, result) for result in _check_answer(case, *answer, model)]
    return results


def _prepared(case: ChatCase, model: ChatModel) -> _Case:
    if case.messages is None:
        return _Case(case, model.text_prompt(case.prompt or ""), None)
    rendered = model.render(case.messages)
    return _Case(case, model.chat_prompt(rendered, case.images), rendered)


def _check_prompt(case: _Case, model: ChatModel) -> Iterator[CheckResult]:
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


def _check_forward(case: _Case, model: ChatModel) -> Iterator[CheckResult]:
    """Every row of the prompt, in one pass."""
    decoder, prompt = model.decoder, case.prompt
    layout = PackedLayout.of([Span(0, 0, len(prompt))], CPU, prompt.positions)
    hidden = decoder.forward(model.embed_prompt(prompt), layout, decoder.kv_slots(1, len(prompt)))
    logits = decoder.logits(hidden)
    yield from _checked(case, "final hidden", "final_hidden", decoder.final_norm(hidden), FEATURE_TOLERANCE)
    yield from _checked(case, "logits", "logits", logits, FEATURE_TOLERANCE)
    yield from _checked(case, "best ids", "logits_argmax", logits.argmax(-1), 0)
    yield from _checked(case, "last logits", "logits_last", logits[-1], FEATURE_TOLERANCE)


def _check_answer(case: _Case, tokens: list[int], logits: list[Tensor], model: ChatModel) -> Iterator[CheckResult]:
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
        best = logits[0].topk(len(recorded.tensors["top_ids"]))
        yield from _checked(case, "largest ids", "top_ids", best.indices, 0)
        yield from _checked(case, "largest logits", "top_logits", best.values, FEATURE_TOLERANCE)


def _checked(case: _Case, quantity: str, name: str, found: Tensor, tolerance: float) -> Iterator[CheckResult]:
    """`found` against the tensor of that name, where the bundle has it."""
    if name in case.recorded.tensors:
        yield compare(case.name, quantity, found, case.recorded.tensors[name], tolerance)


def _modes(model: ChatModel) -> dict[str, Callable[[list[_Case]], Answers]]:
    chunked = {
        f"chunks of {size}": lambda cases, size=size: [_alone(model, case, size) for case in cases] for size in CHUNKS
    }
    return {
        "alone": lambda cases: [_alone(model, case, len(case.prompt)) for case in cases],
        **chunked,
        "prefix": lambda cases: [_after_prefix(model, case, slot=0) for case in cases],
        "prefix, copied": lambda cases: [_after_prefix(model, case, slot=1) for case in cases],
        "packed": lambda cases: _packed(model, cases),
    }


def _alone(model: ChatModel, case: _Case, chunk: int) -> tuple[list[int], list[Tensor]]:
    kv = model.decoder.kv_slots(1, _capacity(case))
    return _run(model, kv, [_generation(model, case, 0, kv.capacity)], chunk)[0]


def _after_prefix(model: ChatModel, case: _Case, slot: int) -> tuple[list[int], list[Tensor]]:
    """The first half of the prompt is computed by itself, once, in slot 0; slot: where the request runs, twice."""
    kv = model.decoder.kv_slots(2, _capacity(case))
    prefix = FixedPrefix(case.prompt.head(max(1, len(case.prompt) // 2)), 0)
    for _ in prefix.compute(model, kv, PREFIX_CHUNK):
        pass
    for _ in range(2):
        known = prefix.lend(kv, case.prompt, slot)
        (answer,) = _run(model, kv, [_generation(model, case, slot, kv.capacity, known)], PREFIX_CHUNK)
    return answer


def _packed(model: ChatModel, cases: list[_Case]) -> Answers:
    """One slot a case, by descending index, so that rows of a pass lie in no order of slots."""
    kv = model.decoder.kv_slots(len(cases), max(map(_capacity, cases)))
    slots = range(len(cases) - 1, -1, -1)
    generations = [_generation(model, case, slot, kv.capacity) for case, slot in zip(cases, slots, strict=True)]
    return _run(model, kv, generations, PACKED_CHUNK)


def _capacity(case: _Case) -> int:
    return len(case.prompt) + len(case.recorded.greedy_ids)


def _generation(model: ChatModel, case: _Case, slot: int, capacity: int, known: int = 0) -> Generation:
    params = SamplingParams(max_tokens=len(case.recorded.greedy_ids))
    return Generation(model, case.prompt, params, slot, capacity, known=known, ignore_stop=True)


def _run(model: ChatModel, kv: KVSlots, generations: list[Generation], chunk: int) -> Answers:
    """Shared passes; each generation starts one pass after the one before it."""
    logits: list[list[Tensor]] = [[] for _ in generations]
    started = 0
    while any(each.finish is None for each in generations):
        started = min(started + 1, len(generations))
        busy = [index for index in range(started) if generations[index].finish is None]
        if busy:
            found = run_pass(model.decoder, kv, [generations[index].rows(chunk) for index in busy])
            for index, row in zip(busy, found, strict=True):
                generations[index].take(row)
                logits[index] += [] if row is None else [row]
    return [(each.tokens, rows) for each, rows in zip(generations, logits, strict=True)]
