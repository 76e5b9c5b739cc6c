"""A pass of chat may be launched before the one before it is collected: the same tokens, whatever ends an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.chat.build import BuiltChat, build_chat
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.executor import Executor, Stamp
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.ipc.chat_messages import ChatDone, ChatStart, ChatStop, ChatToken, PrefixSet, SetPrefix
from edgeflow.ipc.messages import Message
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.shared_passes import run_pass
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.cost import ChunkTimes
from edgeflow.scheduler.requests import Finish
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from tests.engine.chat.test_generate import engine_of
from tests.engine.chat.test_loop import request_of
from tests.engine.recorded_graphs import record

CPU = torch.device("cpu")
CAPACITY = 96
PATIENCE_S = 30.0
CHUNKS = (1, 5, 64)
TEXT = "the cup is red. what is red?"
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.2, "top_p": 0.95, "seed": 11},
    "penalised": {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    "all": {"temperature": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.2, "seed": 5, "logprobs": 3},
}
REPLAYABLE = built_in_table().forcing(packed_attention="masked", linear="gemm")


@pytest.fixture(scope="module", params=["run", "replayed"])
def model(request, chat_directory) -> ChatModel:
    table = REPLAYABLE if request.param == "replayed" else built_in_table()
    return load_chat_model(chat_directory, torch.float32, CPU, table=table)


@pytest.fixture
def graphs(model: ChatModel, request) -> bool:
    return request.node.callspec.params["model"] == "replayed"


@dataclass(frozen=True)
class Reached:
    """A mark that the device has reached when it is made."""

    recorded_ns: int
    reached: bool = True

    def wait(self) -> None: ...

    def since_ns(self, earlier: Stamp) -> int:
        return self.recorded_ns - earlier.recorded_ns


def ahead(engine: ChatEngine, clock: ManualClock | None = None) -> ChatEngine:
    """The engine, launching one pass ahead as on a GPU, though launching computes."""
    for executor in engine._executors:
        lead(executor, clock or ManualClock())
    assert engine.launch_ahead == 1
    return engine


def lead(executor: Executor, clock: ManualClock) -> None:
    executor.launch_ahead = 1
    executor.stamp = lambda: Reached(clock.now_ns())  # type: ignore[method-assign]


def chat_engine(model: ChatModel, graphs: bool, slots: int = 1, chunk: int = 64) -> ChatEngine:
    if not graphs:
        return engine_of(model, slots, CAPACITY)
    engine = engine_of(model, slots + 1, CAPACITY, chunk=chunk, graphs=True, record=record)
    engine.record_all(lambda *_: None)
    engine.seal()
    return engine


def asked(engine: ChatEngine, name: str, text: str = TEXT, slot: int = 0, count: int = 12) -> Generation:
    return Generation(engine, engine.model.text_prompt(text), SamplingParams(max_tokens=count, **PARAMS[name]), slot)


def alone(model: ChatModel, name: str, text: str = TEXT, count: int = 12) -> Generation:
    """The answer of passes that are run, one by one, with the whole prompt in the first."""
    engine = engine_of(model, 1, CAPACITY)
    generation = asked(engine, name, text, count=count)
    list(generate(engine, generation, 1000))
    assert engine.launch_ahead == 0
    return generation


@pytest.fixture
def stopping(model: ChatModel) -> Iterator[ChatModel]:
    """The model with a stop token that a seeded answer meets in the middle."""
    plain = alone(model, "seeded").tokens
    token = next(each for at, each in enumerate(plain) if 2 <= at < 10 and each not in plain[:at])
    kept = model.generation
    model.generation = replace(kept, stop_ids=frozenset({token}))
    yield model
    model.generation = kept


def test_a_pass_is_launched_before_the_one_before_it_is_collected(model: ChatModel, graphs: bool, monkeypatch):
    """That the other tests here test something."""
    engine = ahead(chat_engine(model, graphs))
    order: list[str] = []
    for name in ("launch", "collect"):
        function = getattr(engine, name)
        monkeypatch.setattr(
            engine,
            name,
            lambda *given, name=name, function=function, **how: (order.append(name), function(*given, **how))[1],
        )
    list(generate(engine, asked(engine, "greedy", count=3), 64))
    assert order == ["launch", "launch", "collect", "launch", "collect", "collect"]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", PARAMS)
def test_tokens_are_those_of_passes_one_by_one(model: ChatModel, graphs: bool, name: str, chunk: int):
    engine = ahead(chat_engine(model, graphs))
    generation = asked(engine, name)
    passes = list(generate(engine, generation, chunk))
    expected = alone(model, name)
    assert (generation.tokens, generation.finish) == (expected.tokens, Finish.LENGTH)
    assert len(passes) == -(-generation.plan.rows // chunk) - 1 + 12 and generation.plan.passes == 0


@pytest.mark.parametrize("name", PARAMS)
def test_requests_directly_after_each_other_in_one_slot(model: ChatModel, graphs: bool, name: str):
    """The pass that a stop left under way has no part in the next answer, nor have the tokens of the one before."""
    engine = ahead(chat_engine(model, graphs))
    for text, count, stop_at in (
        (TEXT, 12, 5),
        ("the arm", 12, 0),
        ("a", 12, 1),
        (TEXT, 12, 0),
        ("what", 1, 0),
        (TEXT, 9, 0),
    ):
        generation = asked(engine, name, text, count=count)
        for _ in generate(engine, generation, 5):
            if stop_at and len(generation.tokens) == stop_at:
                generation.plan.finish = Finish.STOP
        expected = alone(model, name, text, count).tokens
        assert generation.tokens == (expected[:stop_at] if stop_at else expected)
        assert generation.finish is (Finish.STOP if stop_at else Finish.LENGTH)


def test_nothing_follows_a_stop_token(stopping: ChatModel, graphs: bool):
    engine = ahead(chat_engine(stopping, graphs))
    for text in (TEXT, "the arm", TEXT):
        generation, expected = asked(engine, "seeded", text), alone(stopping, "seeded", text)
        list(generate(engine, generation, 5))
        assert (generation.tokens, generation.finish) == (expected.tokens, expected.finish)
        if text == TEXT:
            assert generation.finish is Finish.STOP and len(generation.tokens) < 12


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_seeded_answer_does_not_depend_on_what_shares_its_pass(model: ChatModel, chunk: int):
    """Of several kinds of sampling, each beginning one pass after the one before, in slots in reverse order."""
    asks = [
        ("seeded", TEXT),
        ("greedy", "the arm"),
        ("all", "what is red?"),
        ("penalised", "red red red"),
        ("seeded", "a"),
    ]
    engine = engine_of(model, len(asks), CAPACITY)
    generations = [asked(engine, name, text, len(asks) - 1 - at) for at, (name, text) in enumerate(asks)]
    number = 0
    while any(each.finish is None for each in generations):
        number += 1
        busy = [each for each in generations[:number] if each.finish is None]
        if busy:
            run_pass(engine, busy, chunk)
    assert [each.tokens for each in generations] == [alone(model, *ask).tokens for ask in asks]


class LaunchAheadBench:
    """A worker whose engines launch one pass ahead."""

    def __init__(self, policy: OpenVLAPolicy, model: ChatModel, graphs: bool, **changes: Any) -> None:
        self.clock = ManualClock()
        self.said: list[Message] = []
        config = ChatConfig.model_validate({"alias": "small", "capacity": CAPACITY, "prefill_chunk": 16, **changes})
        built: BuiltChat = build_chat(config, model, "f", lambda *_: None, graphs="on" if graphs else "", record=record)
        built = replace(built, times=ChunkTimes(step_ns=1_000_000, row_ns=100_000))
        ahead(built.engine, self.clock)
        limits = SchedulerLimits(7, 1, 1000, 0)
        control = PolicyEngine(policy, limits.slots, 80)
        lead(control, self.clock)
        self.plane = built.loop(config, self.clock, self.said.append)
        self.worker = Worker(control, Scheduler(limits), self.clock, self.said.append, chat=self.plane)

    def tell(self, *messages: Message) -> None:
        for message in messages:
            self.worker.inbox.put_chat(message)

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    def run(self, count: int = 1, kind: type[Message] = ChatDone) -> None:
        """Turns of the loop, with its sleeps, until so many answers of that kind."""
        for _ in range(300):
            if len(self.of(kind)) >= count:
                return
            stepped = self.worker.step()
            if not stepped and self.worker.wake_at_ns() is None and len(self.of(kind)) < count:
                self.worker.inbox.wait(PATIENCE_S)
            self.clock.advance_ns(1_000_000)
        raise AssertionError(f"{len(self.of(kind))} of {count} {kind.__name__}")

    def tokens(self, request: int) -> list[int]:
        return [each.token for each in self.of(ChatToken) if each.request == request]


def start(model: ChatModel, request: int, name: str, text: str = TEXT, count: int = 12, **changes: Any) -> ChatStart:
    ids = list(model.text_prompt(text).ids)
    return replace(request_of(ids, request), max_tokens=count, **PARAMS[name], **changes)


def test_the_worker_answers_with_the_same_tokens(model: ChatModel, graphs: bool, policy: OpenVLAPolicy):
    """All at once, so that each request follows directly on the one before it, in one slot."""
    bench = LaunchAheadBench(policy, model, graphs)
    bench.tell(*(start(model, at, name) for at, name in enumerate(PARAMS)))
    bench.run(len(PARAMS))
    for at, name in enumerate(PARAMS):
        assert bench.tokens(at) == alone(model, name).tokens
    assert [(done.request, done.reason, done.answer_tokens) for done in bench.of(ChatDone)] == [
        (at, "length", 12) for at in range(len(PARAMS))
    ]


def test_the_worker_sends_nothing_after_a_stop(stopping: ChatModel, graphs: bool, policy: OpenVLAPolicy):
    bench = LaunchAheadBench(policy, stopping, graphs)
    bench.tell(start(stopping, 1, "seeded"), start(stopping, 2, "seeded", "the arm"), start(stopping, 3, "seeded"))
    while len(bench.tokens(2)) < 3:
        bench.run(len(bench.of(ChatToken)) + 1, ChatToken)
    bench.tell(ChatStop(2, cancelled=False))
    bench.run(3)
    expected = alone(stopping, "seeded")
    assert expected.finish is Finish.STOP
    assert bench.tokens(1) == bench.tokens(3) == expected.tokens
    assert bench.tokens(2) == alone(stopping, "seeded", "the arm").tokens[: len(bench.tokens(2))]
    assert {done.request: (done.reason, done.answer_tokens) for done in bench.of(ChatDone)} == {
        request: ("stop", len(bench.tokens(request))) for request in (1, 2, 3)
    }


def test_the_worker_sleeps_once_all_is_answered(model: ChatModel, graphs: bool, policy: OpenVLAPolicy):
    bench = LaunchAheadBench(policy, model, graphs)
    bench.tell(start(model, 1, "greedy", count=2))
    bench.run()
    for _ in range(3):
        bench.worker.step()
    assert not bench.worker.step() and not bench.plane.busy and bench.worker.wake_at_ns() is None


@pytest.mark.parametrize("schema", ["", '{"enum": ["cup", "arm"]}'])
def test_the_worker_does_not_sleep_beside_work(model: ChatModel, graphs: bool, policy: OpenVLAPolicy, schema: str):
    """A pass that is committed may make work: the next chunk of a prompt, the next token of a grammar."""
    bench = LaunchAheadBench(policy, model, graphs)
    bench.tell(start(model, 1, "greedy", count=6, schema=schema))
    while not bench.of(ChatDone):
        if not bench.worker.step():
            assert not bench.plane.busy, "a request may wait for its grammar only"
            bench.worker.inbox.wait(PATIENCE_S)
    assert len(TEXT) > 16, "several chunks"


def test_the_worker_changes_a_prefix_between_requests(model: ChatModel, graphs: bool, policy: OpenVLAPolicy):
    bench = LaunchAheadBench(policy, model, graphs, slots=[{"id": "rest", "text": TEXT[:12]}])
    other = list(model.text_prompt("the arm is at rest").ids)
    bench.tell(
        start(model, 1, "seeded"), SetPrefix(2, "rest", other), start(model, 3, "seeded", "the arm is at rest. so?")
    )
    bench.run(2)
    assert [done.reused for done in bench.of(ChatDone)] == [12, len(other)]
    (changed,) = bench.of(PrefixSet)
    assert changed.tokens == len(other)
    assert bench.tokens(1) == alone(model, "seeded").tokens
    assert bench.tokens(3) == alone(model, "seeded", "the arm is at rest. so?").tokens


@pytest.mark.parametrize("name", ["greedy", "seeded"])
def test_a_grammar_knows_each_token_before_the_next(model: ChatModel, graphs: bool, policy: OpenVLAPolicy, name: str):
    answers = []
    for launch_ahead in (0, 1):
        bench = LaunchAheadBench(policy, model, graphs)
        for executor in bench.plane.engine._executors:
            executor.launch_ahead = launch_ahead
        schema = '{"type": "object", "properties": {"n": {"enum": ["cup", "arm"]}}, "required": ["n"]}'
        bench.tell(start(model, 1, name, count=40, schema=schema), start(model, 2, name))
        bench.run(2)
        answers.append(model.tokenizer.decode(bench.tokens(1)))
        assert bench.tokens(2) == alone(model, name).tokens
    assert answers[0] == answers[1] and answers[0].startswith("{")
