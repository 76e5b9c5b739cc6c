"""The model for logs and its gate, as they are shipped."""

import random

import pytest
import torch

from edgeflow.config.service import load_config
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format, read_long
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.demo.chat.logs.held_out import EvidencePlace, LogQuestion, draw_question
from edgeflow.lab.demo.chat.logs.robot_log import LINE_TOKENS
from edgeflow.model_paths import EMBEDDED_LOG_MODEL, EMBEDDED_LOGS
from edgeflow.models.chat import load_chat_model

CPU = torch.device("cpu")
LONGEST, ANSWER = 2048, 12
LINES = 180  # 1,260 tokens, of which a slot holds 384
MANY = 40  # lines, up to which events are rare for the gate
FOLDED = range(10, 120)  # beyond the sink, and before what a slot holds at the end


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load_chat_model(EMBEDDED_LOG_MODEL, torch.float32, CPU)


@pytest.fixture(scope="module")
def gate():
    """As a service reads it, which compares it with the base."""
    config = load_config(None, {"chat.model": EMBEDDED_LOGS, "chat.long.gate": "gate.json"})
    assert config.chat_path == EMBEDDED_LOG_MODEL
    return read_long(config.chat, EMBEDDED_LOG_MODEL, CPU, torch.float32)


def answered(model, engine, question) -> str:
    prompt = model.chat_prompt(model.render(question.messages()))
    generation = Generation(engine, prompt, SamplingParams(max_tokens=ANSWER))
    list(generate(engine, generation, 512))
    return model.tokenizer.decode(generation.tokens)


def asked_of(rng, kind):
    """A log and a question that rests on many folded lines, or, where the answer is no, on none."""
    while True:
        log, asked = draw_question(rng, kind, LINES, FOLDED)
        if not 0 < len(asked.lines) <= MANY:
            return log, asked


def test_questions_about_many_folded_lines_are_answered(model, gate):
    """By chance about a quarter would be."""
    rng, rules = random.Random("shipped"), gate.rules
    assert (len(FOLDED) * LINE_TOKENS, rules.threshold) == (770, 384)
    kv = model.decoder.kv_slots(1, rules.threshold, memory_format(gate, LONGEST))
    engine = ChatEngine(model, kv, folding=folding_of(rules))
    right = 0
    for kind in ("ever fault", "ever held", "most fault", "most held") * 6:
        log, asked = asked_of(rng, kind)
        right += answered(model, engine, LogQuestion(log, asked, EvidencePlace.ANYWHERE)) == asked.answer
    assert right >= 18


def test_a_gate_is_a_small_part_of_its_base(gate):
    size = sum(each.stat().st_size for each in EMBEDDED_LOG_MODEL.iterdir())
    assert gate.parameters < 40_000 and size < 6 << 20
