"""Answers that follow a JSON schema, whatever the model would rather say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.chat import grammar as grammar_module
from edgeflow.engine.chat.build import build_chat
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.grammar import PATIENCE_S, Grammars
from edgeflow.engine.chat.grammar_child import COMPILE, HANDLE, KEPT, KEPT_ANSWERS, MASK, Compiler, following
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.ipc.chat_messages import ChatDone, ChatRejected, ChatStart, ChatToken
from edgeflow.ipc.messages import Message
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.worker.inbox import Inbox
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import InvalidArgument, RequestError, Unavailable
from tests.chat_checkpoint import END
from tests.engine.chat.constrained import constrained, under
from tests.engine.chat.test_loop import request_of

CAPACITY = 400
CPU = torch.device("cpu")
SHORT = {"type": "string", "maxLength": 5}
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cup", "arm"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "n": SHORT,
    },
    "required": ["kind", "count", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(chat_directory) -> ChatModel:
    return load_chat_model(chat_directory, torch.float32, CPU)


@pytest.fixture(scope="module")
def grammars(model: ChatModel) -> Grammars:
    return Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)


def compiled(grammars: Grammars, schema: Any):
    return grammars.compile(json.dumps(schema)).result(timeout=30)


def answer(model: ChatModel, grammars: Grammars, schema: Any, **params: Any) -> tuple[str, str, Any]:
    """Text, finish, tokens."""
    prompt = model.text_prompt("go")
    engine = ChatEngine(model, model.decoder.kv_slots(1, CAPACITY))
    settings = SamplingParams(**{"max_tokens": 390, **params})
    generation = constrained(engine, prompt, settings)
    sampled = list(under(compiled(grammars, schema), engine, generation, 100))
    assert generation.finish is not None
    return model.tokenizer.decode(generation.tokens), generation.finish.value, sampled


@pytest.mark.parametrize("seed", range(6))
def test_a_random_model_s_answer_follows_the_schema(model: ChatModel, grammars: Grammars, seed: int):
    text, finish, sampled = answer(model, grammars, SCHEMA, temperature=1.0, seed=seed)
    values = json.loads(text)
    assert values["kind"] in ("cup", "arm") and 1 <= values["count"] <= 9 and len(values["n"]) <= 5
    assert finish == "stop" and sampled[-1].tokens == (END,)


def test_greedy_answers_and_penalties_keep_to_it_too(model: ChatModel, grammars: Grammars):
    for params in ({}, {"repetition_penalty": 1.5, "frequency_penalty": 2.0}):
        assert json.loads(answer(model, grammars, SCHEMA, **params)[0])["kind"] in ("cup", "arm")


def test_without_the_schema_the_answer_is_another_one(model: ChatModel, grammars: Grammars):
    """That the tests above can fail."""
    engine = ChatEngine(model, model.decoder.kv_slots(1, CAPACITY))
    generation = Generation(engine, model.text_prompt("go"), SamplingParams(max_tokens=20))
    list(generate(engine, generation, 100))
    with pytest.raises(ValueError):
        json.loads(model.tokenizer.decode(generation.tokens))


def test_log_probabilities_are_the_model_s_own(model: ChatModel, grammars: Grammars):
    _, _, sampled = answer(model, grammars, {"const": "x"}, logprobs=2)
    _, _, free = answer(model, grammars, {"type": "string", "maxLength": 3}, logprobs=2)
    assert sampled[0].logprobs[0].top == free[0].logprobs[0].top, "before the schema forbids anything"
    assert all(value > float("-inf") for each in sampled for _, value in each.logprobs[0].top)


def test_an_answer_may_be_cut_by_its_length(model: ChatModel, grammars: Grammars):
    text, finish, _ = answer(model, grammars, SCHEMA, max_tokens=4)
    assert (len(text), finish) == (4, "length")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"$ref": "http://localhost/x"},
        {"$ref": "#/$defs/none"},
        {"not": {"type": "string"}},
        {"allOf": [{"type": "string"}, {"type": "number"}]},
        {"type": "array", "uniqueItems": True},
        False,
    ],
    ids=str,
)
def test_an_impossible_schema_is_rejected_with_the_reason(grammars: Grammars, schema: Any):
    with pytest.raises(InvalidArgument) as caught:
        compiled(grammars, schema)
    assert (caught.value.field, caught.value.reason) == ("schema", "SCHEMA")
    assert 10 < len(caught.value.text) < 250


def test_the_impossible_alternative_is_named(grammars: Grammars):
    strange = {"$ref": "#/$defs/strange"}
    schema = {
        "$defs": {"strange": {"if": {}}},
        "anyOf": [{"type": "string"}, {"type": "object", "items": strange}, strange],
    }
    with pytest.raises(InvalidArgument, match="Unimplemented keys") as caught:
        grammars.compile(json.dumps(schema)).result(timeout=30)
    assert caught.value.field in ("schema.1", "schema.2") and caught.value.text.count("schema.") == 1
    assert grammars.compile('{"type": "string"}').result(timeout=30)
    for others in ([], [5], 5, [{"if": {}}], {"a": 1}):
        with pytest.raises(InvalidArgument) as caught:
            grammars.compile(json.dumps({"anyOf": others, "not": {}})).result(timeout=30)
        assert caught.value.field.partition(".")[0] == "schema"


def test_text_that_is_not_json_is_rejected(grammars: Grammars):
    with pytest.raises(InvalidArgument):
        grammars.compile("{").result(timeout=30)


def test_a_model_that_cannot_end_cannot_follow_a_schema(model: ChatModel):
    with pytest.raises(InvalidArgument, match="no token that ends"):
        Grammars(model.tokenizer, model.config.vocab_size, (), CPU).compile("{}").result(timeout=30)


def test_a_tokenizer_that_the_library_does_not_know_is_reported(model: ChatModel):
    with pytest.raises(InvalidArgument, match="tokenizer cannot"):
        Grammars(Strange(), model.config.vocab_size, (END,), CPU).compile("{}").result(timeout=30)


class Strange:
    """A tokenizer of no known kind."""

    definition = '{"model": {"type": "Runes"}}'


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [{"type": "array", "items": schema}, {"type": "object", "properties": {"a": schema}}]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 1_000_000, "maxLength": 10_000_000},
        {"type": "array", "minItems": 1_000_000, "items": {"type": "integer"}},
        {"type": "object", "properties": {f"k{i}": {"type": "string", "minLength": i} for i in range(900)}},
        {"anyOf": [{"type": "string", "maxLength": n} for n in range(2, 900)]},
        {"type": "number", "multipleOf": 1e-9, "minimum": 1e-300, "maximum": 1e300},
        {"enum": ["a" * n for n in range(300)]},
        nested(9),
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_hostile_schemas_are_compiled_or_rejected_in_bounded_time(grammars: Grammars, schema: Any):
    future = grammars.compile(json.dumps(schema))
    assert future.exception(timeout=60) is None or isinstance(future.exception(), InvalidArgument)
    if future.exception() is None:
        assert future.result().allowed().any()


# A few hundred bytes, and work that the library's own limits do not stop.
PRODUCT = {"allOf": [{"type": "number", "multipleOf": step} for step in (0.7, 0.9, 1.1, 1.3, 1.7, 1.9, 2.3)]}


def test_a_schema_that_compiles_for_too_long_is_killed_and_the_next_is_compiled(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch
):
    grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)
    compiled(grammars, {"const": 1})
    process = grammars._process._process
    monkeypatch.setattr(grammar_module, "PATIENCE_S", 0.5)
    with pytest.raises(InvalidArgument, match=r"takes longer than 0\.5 s") as caught:
        compiled(grammars, PRODUCT)
    assert (caught.value.field, caught.value.reason) == ("schema", "SCHEMA")
    assert process.returncode == -9, "killed, not left to work"
    monkeypatch.undo()
    assert compiled(grammars, {"const": 1}).allowed().any()


def limited(model: ChatModel, monkeypatch: pytest.MonkeyPatch, **limits: object) -> Grammars:
    """Whose process has other limits of its own."""
    changes = "".join(f"c.{name} = {value!r}; " for name, value in limits.items())
    code = f"import sys; sys.path[:] = {sys.path!r}; import edgeflow.engine.chat.grammar_child as c; {changes}c.main()"
    command, popen = [sys.executable, "-c", code], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **rest: popen(command, **rest))
    return Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)


def test_the_kernel_ends_what_uses_the_processor_for_too_long(model: ChatModel, monkeypatch: pytest.MonkeyPatch):
    """Also when nobody is left to kill it."""
    monkeypatch.setattr(grammar_module, "PATIENCE_S", 240)
    grammars = limited(model, monkeypatch, COMPILE_S=1)
    with pytest.raises(InvalidArgument, match="needs more than 5 s of processor time"):
        compiled(grammars, PRODUCT)


def test_the_kernel_rejects_memory_beyond_the_limit(model: ChatModel, monkeypatch: pytest.MonkeyPatch):
    grammars = limited(model, monkeypatch, MEMORY_BYTES=1 << 20)
    with pytest.raises(InvalidArgument, match=r"needs (more than 512 MiB|too much memory)"):
        compiled(grammars, {"enum": [f"{i:04}" * 8 for i in range(1500)]})


@pytest.mark.parametrize(
    ("dying", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGXCPU)", "processor time"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "512 MiB"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "512 MiB"),
        ("c._start = lambda _: bytes(1 << 60); c.main()", "512 MiB"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "was lost"),
        ("sys.exit(1)", "was lost"),
        ("sys.exit(0)", "was lost"),
    ],
)
def test_the_exit_code_gives_the_cause_even_after_the_pipe_has_closed(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch, dying: str, told: str
):
    imports = f"import sys; sys.path[:] = {sys.path!r}; import edgeflow.engine.chat.grammar_child as c"
    code = f"{imports}; import os, select, signal; os.close(1); select.select([], [], [], 0.3); {dying}"
    command, popen = [sys.executable, "-c", code], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **rest: popen(command, **rest))
    grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)
    with pytest.raises(RequestError, match=told):
        compiled(grammars, SCHEMA)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_killed_or_stopped_process_is_not_blamed_on_a_schema(model: ChatModel, number: signal.Signals):
    grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)
    grammar = compiled(grammars, SCHEMA)
    process = grammars._process._process
    os.kill(process.pid, number)
    began = time.monotonic()
    grammar.accept([int(grammar.allowed()[0].nonzero()[0])])
    with pytest.raises(Unavailable, match="the process that handles schemas was lost: try again") as caught:
        grammar.allowed()
    assert caught.value.reason == "SCHEMA_PROCESS_LOST" and time.monotonic() - began < PATIENCE_S / 2
    assert process.returncode is not None
    assert compiled(grammars, SCHEMA).allowed().any()


def test_a_tokenizer_with_more_tokens_than_the_model_follows_a_schema(chat_directory: Path, tmp_path: Path):
    shutil.copytree(chat_directory, tmp_path, dirs_exist_ok=True)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    made.add_special_tokens([f"<|{number}|>" for number in range(20)])
    made.save(str(tmp_path / "tokenizer.json"))
    padded = load_chat_model(tmp_path, torch.float32, CPU)
    assert made.get_vocab_size() > padded.config.vocab_size
    grammars = Grammars(padded.tokenizer, padded.config.vocab_size, padded.stop_ids, CPU)
    text, finish, _ = answer(padded, grammars, {"enum": ["cup", "arm"]})
    assert json.loads(text) in ("cup", "arm") and finish == "stop"


def test_a_process_lost_between_two_requests_is_replaced(model: ChatModel):
    grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)
    compiled(grammars, SCHEMA)
    process = grammars._process._process._process
    process.kill()
    process.wait()
    assert compiled(grammars, SCHEMA).allowed().any()


def test_the_process_ends_with_its_owner(model: ChatModel):
    grammars = Grammars(model.tokenizer, model.config.vocab_size, model.stop_ids, CPU)
    compiled(grammars, {"const": 1})
    process = grammars._process._process._process
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.fixture
def compiler(model: ChatModel) -> Compiler:
    definition, vocab = model.tokenizer.definition, model.config.vocab_size
    return Compiler(LLTokenizer(definition, n_vocab=vocab, eos_token=sorted(model.stop_ids)))


def ask(compiler: Compiler, handle: int, schema: Any) -> bytes:
    return compiler.answer(COMPILE + HANDLE.pack(handle) + json.dumps(schema).encode())


def test_compiled_schemas_and_answers_are_kept_and_bounded(compiler: Compiler):
    for index in range(KEPT + 5):
        ask(compiler, index, {"const": index})
    assert len(compiler._kept) == KEPT and len(compiler._answers) == KEPT_ANSWERS
    first, second = ask(compiler, 90, {"const": 40}), ask(compiler, 91, {"const": 40})
    assert first == second and first[:1] == MASK
    token = int(np.unpackbits(np.frombuffer(first[1:], np.uint8), bitorder="little").nonzero()[0][0])
    after = compiler.answer(following(90, [token]))
    assert after != first
    assert compiler.answer(following(91, [token])) == after, "answers do not share a place"


class SlowGrammars:
    """Grammars whose thread waits for the test."""

    def __init__(self, grammars: Grammars) -> None:
        self.go = threading.Event()
        self._grammars = grammars

    def compile(self, schema: str, wake: Callable[[], None]):
        self._grammars._thread.submit(self.go.wait, 30)
        return self._grammars.compile(schema, wake)


def start(model: ChatModel, request: int, schema: str) -> ChatStart:
    return replace(request_of(list(model.text_prompt("go").ids), request), max_tokens=390, schema=schema)


def test_the_loop_goes_on_while_a_schema_is_compiled(model: ChatModel, grammars: Grammars):
    said: list[Message] = []
    config = ChatConfig.model_validate({"alias": "small", "capacity": CAPACITY})
    plane = build_chat(config, model, "f", lambda *_: None).loop(config, ManualClock(), said.append)
    slow = plane._grammars = SlowGrammars(grammars)
    inbox = Inbox()
    plane.wake = inbox.wake
    plane.start(start(model, 1, json.dumps(SCHEMA)))
    assert not plane.busy, "nothing to run yet: control passes go on"
    plane.start(start(model, 2, '{"type": "nothing"}'))
    plane.stop(1, "cancelled")
    assert not plane.busy
    plane.start(start(model, 3, json.dumps(SCHEMA)))
    slow.go.set()
    inbox.wait(30)
    for _ in range(800):
        if plane.busy:
            running = plane.launch(100, 0)
            if running is not None:
                plane.commit(running)
        elif len(said) > 2 and isinstance(said[-1], ChatDone):
            break
        else:
            inbox.wait(30)
    cancelled, refused, *tokens, done = said
    assert isinstance(cancelled, ChatDone) and cancelled.reason == "cancelled"
    assert isinstance(refused, ChatRejected) and (refused.request, refused.code) == (2, "INVALID_ARGUMENT")
    assert isinstance(done, ChatDone) and (done.request, done.reason) == (3, "stop")
    text = model.tokenizer.decode([token.token for token in tokens if isinstance(token, ChatToken)])
    assert json.loads(text)["kind"] in ("cup", "arm")
