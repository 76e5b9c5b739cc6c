"""Drafts of an EAGLE-3 head in the middle of an answer: those of the same head that reads all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.drafts.kinds import Eagle
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.shared_passes import lend, run_pass
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.memory_gate import GateRules
from edgeflow.models.prompt import Prompt
from tests.engine.drafts.drafters import Helped, answer, eagle_head, engine_of, taught
from tests.engine.drafts.varied_models import varied_model
from tests.random_gates import random_gate

IMAGE = np.random.default_rng(0).integers(0, 256, (90, 60, 3), np.uint8)
COUNT = 24
Fresh = Callable[[Helped | None], ChatEngine]


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    """In float64, since drafts that nearly tie change places with the rounding of other passes."""
    return varied_model(tmp_path_factory.mktemp(request.param), request.param, torch.float64)


@pytest.fixture(scope="module")
def head(model: ChatModel, tmp_path_factory: pytest.TempPathFactory) -> Eagle3Head:
    """A head that proposes any token, so that some drafts are right."""
    return eagle_head(tmp_path_factory.mktemp("head"), model, drafts=model.config.vocab_size)


def kinds_of(head: Eagle3Head) -> list[Helped]:
    wide = TreeSizes(rows=40, depth=3, width=6)
    return [Helped(eagle=Eagle(head=head, tree=wide, depth=2)), Helped(eagle=Eagle(head=head, tree=None, depth=5))]


def ids_of(model: ChatModel, text: str) -> list[int]:
    """With the place of an image in the middle, for models that see."""
    if model.vision is None:
        return list(model.text_prompt(text).ids)
    half = len(text) // 2
    return list(
        model.tokenizer.encode(f"{text[:half]}<|vision_start|><|image_pad|><|vision_end|>{text[half:]}", special=True)
    )


def prompt_of(model: ChatModel, ids: list[int]) -> Prompt:
    return model.prompt(ids, [IMAGE] if model.vision is not None else [])


def check(fresh: Fresh, kind: Helped, ids: list[int], slot: int, chunk: int, known: int, engine: ChatEngine) -> int:
    """Run an answer; what the head drafts is always what a fresh one does. Returns how many drafts were accepted."""
    model, params = engine.model, SamplingParams(max_tokens=COUNT)
    prompt, other_kind = prompt_of(model, ids), Helped(eagle=kind.eagle)
    wanted = answer(fresh(None), prompt, params).tokens
    asked = Generation(engine, prompt, params, slot, known=known, ignore_stop=True)
    taught(kind, prompt, wanted, slot)
    while asked.finish is None:
        run_pass(engine, [asked], chunk)
        if asked.tokens and asked.finish is None:
            other = fresh(other_kind)
            whole = prompt_of(model, [*ids, *asked.tokens[:-1]])
            again = Generation(other, whole, SamplingParams(max_tokens=9), ignore_stop=True)
            while not again.tokens:
                run_pass(other, [again], 200)
            assert again.tokens == asked.tokens[-1:]
            assert kind.made[slot] == other_kind.made[0], len(asked.tokens)
    assert asked.tokens == wanted
    return asked.plan.drafts.counts.accepted


def test_in_an_answer(model: ChatModel, head: Eagle3Head):
    """Whatever was accepted, and however the prompt was cut."""
    for kind in kinds_of(head):
        engine = engine_of(model, kind)
        for text, chunk in (("hello", 100), ("the cup is red", 7), ("hello", 100)):
            ids = ids_of(model, text)
            assert check(lambda each: engine_of(model, each), kind, ids, 0, chunk, 0, engine) > 8


def test_rows_after_a_prefix(model: ChatModel, head: Eagle3Head):
    """The last row that is shared runs again, since the token after it is another."""
    for kind in kinds_of(head):
        engine, ids = engine_of(model, kind, slots=3), ids_of(model, "shared words")
        prefix = FixedPrefix(prompt_of(model, ids), 1)
        for _ in prefix.compute(engine, 6):
            pass
        for slot, text in ((1, " and more"), (2, " but"), (1, " so")):
            whole = [*ids, *model.tokenizer.encode(text, special=False)]
            known = lend(prefix, engine, prompt_of(model, whole), slot)
            assert known == len(prefix.prompt) - 1
            check(lambda each: engine_of(model, each), kind, whole, slot, 8, known, engine)


def test_in_slots_with_memory(tmp_path: Path):
    """After a fold that runs the window again, the head has read it again too. Memories are in float32."""
    model = varied_model(tmp_path / "base", "qwen2")
    head = eagle_head(tmp_path / "head", model, drafts=model.config.vocab_size)
    rules = GateRules(sink=3, window=6, segment=8)

    def with_memory(kind: Helped | None) -> ChatEngine:
        kv = model.decoder.kv_slots(1, rules.threshold, memory_format(random_gate(model.config, rules), 160))
        return ChatEngine(model, kv, folding=folding_of(rules), drafts=kind)

    for kind in kinds_of(head):
        engine = with_memory(kind)
        for text in ("hello", "the cup is red and the arm is at rest"):
            assert check(with_memory, kind, ids_of(model, text), 0, 100, 0, engine) > 4
