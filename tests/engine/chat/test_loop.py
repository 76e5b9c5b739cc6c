"""Chat in the worker: the same tokens whatever runs beside, prefixes reused, control first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.contract import Pace
from edgeflow.engine.chat import build as chat_build
from edgeflow.engine.chat.build import BuiltChat, build_chat
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.profile import DeviceProfile, Pacer
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.ipc.chat_messages import ChatDone, ChatRejected, ChatStart, ChatStop, ChatToken, PrefixSet, SetPrefix
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate import GateRules
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.cost import ChunkTimes
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.worker.worker import CHAT_PATIENCE_NS, Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import ConfigError
from tests.random_gates import random_gate

CPU = torch.device("cpu")
CAPACITY = 96
PATIENCE_S = 30.0
K = 7
PASS_NS = 5_000_000
PREFIX = "the arm is at rest and "
PROMPT = PREFIX + "the cup is red. what is red?"


@pytest.fixture(scope="module")
def model(chat_directory) -> ChatModel:
    return load_chat_model(chat_directory, torch.float32, CPU)


def built(model: ChatModel, **changes: object) -> BuiltChat:
    config = ChatConfig.model_validate({"alias": "small", "capacity": CAPACITY, "prefill_chunk": 16, **changes})
    made = build_chat(config, model, "f", lambda *_: None)
    return replace(made, times=ChunkTimes(step_ns=1_000_000, row_ns=100_000))


SLOTS = [{"id": "rest", "text": PREFIX}, {"id": "arm", "text": PREFIX[:8]}]


class ChatBench:
    """A worker with a robot's policy and a chat model, on a clock that control passes move."""

    def __init__(self, policy: OpenVLAPolicy, chat: BuiltChat) -> None:
        self.clock = ManualClock()
        self.said: list[Message] = []
        limits = SchedulerLimits(K, 2, 1000, 0)
        times = DeviceProfile(name="steady", prefill_ns=PASS_NS, decode_ns=PASS_NS, packed_ns=PASS_NS).times(K)
        pacer = Pacer(times, self.clock, lambda seconds: self.clock.advance_ns(round(seconds * 1e9)))
        config = ChatConfig(capacity=CAPACITY, prefill_chunk=16)
        engine = PolicyEngine(policy, limits.slots, 80)
        plane = chat.loop(config, self.clock, self.said.append)
        self.worker = Worker(engine, Scheduler(limits), self.clock, self.said.append, pacer=pacer, chat=plane)

    def tell(self, *messages: Message) -> None:
        inbox = self.worker.inbox
        for message in messages:
            (inbox.put_chat if isinstance(message, (ChatStart, ChatStop, SetPrefix)) else inbox.put)(message)

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.said if isinstance(message, kind)]

    def run(self, until: type[Message], steps: int = 400) -> None:
        """Steps until an answer of that kind."""
        for _ in range(steps):
            if self.of(until):
                return
            if not self.worker.step():
                self.clock.advance_ns(1_000_000)
                if self.worker.wake_at_ns() is None:
                    self.worker.inbox.wait(PATIENCE_S)  # a thread prepares an image, or compiles a schema
        raise AssertionError(f"no {until.__name__} in {steps} steps: {self.said[-3:]}")


def start(chat: ChatModel, text: str = PROMPT, request: int = 1, **changes: object) -> ChatStart:
    return replace(request_of(list(chat.text_prompt(text).ids), request), **changes)


def request_of(ids: list[int], request: int = 1) -> ChatStart:
    """A greedy request of 8 tokens."""
    return ChatStart(
        request=request,
        model="small",
        ids=ids,
        sizes=[],
        max_tokens=8,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        seed=-1,
        logprobs=-1,
        schema="",
        payload=b"",
    )


def frame(seq: int) -> SubmitFrame:
    pixels = np.random.default_rng(seq).integers(0, 256, (8, 10, 3), np.uint8)
    return SubmitFrame(session=1, epoch=1, seq=seq, sizes=[8, 10], instruction="go", payload=pixels.tobytes())


def alone(model: ChatModel, text: str = PROMPT, **params: object) -> list[int]:
    engine = ChatEngine(model, model.decoder.kv_slots(1, CAPACITY))
    generation = Generation(engine, model.text_prompt(text), SamplingParams(max_tokens=8, **params))
    list(generate(engine, generation, 1000))
    return generation.tokens


def tokens(bench: ChatBench) -> list[int]:
    return [message.token for message in bench.said if isinstance(message, ChatToken)]


@pytest.mark.parametrize("slots", [[], SLOTS], ids=["no prefix", "prefixes"])
def test_the_answer_is_that_of_the_model_by_itself(model, policy, slots):
    bench = ChatBench(policy, built(model, slots=slots))
    bench.tell(start(model))
    bench.run(ChatDone)
    assert tokens(bench) == alone(model)
    (done,) = bench.of(ChatDone)
    assert (done.request, done.reason, done.answer_tokens) == (1, "length", 8)
    assert (done.slot, done.reused > 0) == (("rest", True) if slots else ("", False)), "the longest that matches"
    bench.said.clear()
    bench.tell(start(model, request=2))
    bench.run(ChatDone)
    assert tokens(bench) == alone(model), "a prefix stays as it was"


def test_the_answer_is_the_same_beside_a_robot_and_the_robot_goes_first(model, policy):
    bench = ChatBench(policy, built(model, slots=SLOTS))
    bench.tell(
        OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", deadline_ns=60_000_000, period_ns=60_000_000)
    )
    bench.tell(start(model, temperature=1.0, seed=3))
    for seq in range(1, 12):
        due_ns = bench.clock.now_ns() + 60_000_000
        bench.tell(frame(seq))
        while bench.clock.now_ns() < due_ns:
            bench.worker.step()
            bench.clock.advance_ns(500_000)
    assert tokens(bench) == alone(model, temperature=1.0, seed=3)
    queued = [result.queue_ns for result in bench.said if isinstance(result, FrameResult)]
    assert len(queued) > 5 and max(queued) <= PASS_NS


def test_chat_waits_while_control_decodes_a_frame(model, policy):
    """A frame that the front has had for 20 ms: the next one is expected there, 40 ms from now."""
    bench = ChatBench(policy, built(model))
    bench.tell(
        OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key="", deadline_ns=60_000_000, period_ns=60_000_000)
    )
    bench.tell(start(model, max_tokens=80), replace(frame(1), waited_ns=20_000_000))
    told = {}
    for now_ms in range(60):
        bench.clock.advance_to_ns(max(bench.clock.now_ns(), now_ms * 1_000_000))
        bench.worker.step()
        told[bench.clock.now_ns() // 1_000_000] = len(tokens(bench))
    assert told[59] == told[40] > told[35] > 0


def test_chat_moves_on_beside_a_robot_that_leaves_no_gap(model, policy):
    bench = ChatBench(policy, built(model))
    bench.tell(
        OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", deadline_ns=PASS_NS, period_ns=PASS_NS),
        start(model),
    )
    for seq in range(1, 2 * CHAT_PATIENCE_NS // PASS_NS):
        bench.tell(frame(seq))
        bench.worker.step()
        if seq * PASS_NS < CHAT_PATIENCE_NS - PASS_NS:
            assert not bench.of(ChatToken)
    bench.tell(ChatStop(1, cancelled=True))
    bench.worker.step()
    (done,) = bench.of(ChatDone)
    assert done.reason == "cancelled"
    assert bench.clock.now_ns() >= CHAT_PATIENCE_NS


def test_requests_run_one_after_the_other_and_a_cancelled_one_is_gone(model, policy):
    bench = ChatBench(policy, built(model))
    bench.tell(start(model, request=1, max_tokens=3), start(model, request=2), start(model, "what?", request=3))
    bench.tell(ChatStop(2, cancelled=True))
    while len(bench.of(ChatDone)) < 3:
        assert bench.worker.step()
    told = [message.request for message in bench.said if isinstance(message, ChatToken)]
    assert told == [1] * 3 + [3] * 8
    assert [(done.request, done.reason) for done in bench.of(ChatDone)] == [
        (2, "cancelled"),
        (1, "length"),
        (3, "length"),
    ]
    assert tokens(bench)[3:] == alone(model, "what?")


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"model": "other"}, "NOT_FOUND", "model"),
        ({"ids": [1] * (CAPACITY + 1)}, "INVALID_ARGUMENT", "prompt"),
        ({"ids": []}, "INVALID_ARGUMENT", "prompt"),
        ({"ids": [1 << 20]}, "INVALID_ARGUMENT", "prompt"),
        ({"temperature": 9.0}, "INVALID_ARGUMENT", "temperature"),
        ({"sizes": [4, 4], "payload": b"x"}, "INVALID_ARGUMENT", "payload"),
        ({"sizes": [1, 1], "payload": b"rgb"}, "INVALID_ARGUMENT", "messages"),
    ],
)
def test_an_impossible_request_is_rejected_and_the_next_is_answered(model, policy, changes, code, field):
    bench = ChatBench(policy, built(model))
    bench.tell(start(model, **changes), start(model, request=2))
    bench.run(ChatDone)
    (refused,) = bench.of(ChatRejected)
    assert (refused.request, refused.code, refused.field) == (1, code, field)
    assert tokens(bench) == alone(model)


def test_sampling_and_log_probabilities_cross(model, policy):
    bench = ChatBench(policy, built(model))
    bench.tell(start(model, temperature=1.0, seed=5, logprobs=2))
    bench.run(ChatDone)
    assert tokens(bench) == alone(model, temperature=1.0, seed=5)
    for said in bench.of(ChatToken):
        assert len(said.logprobs) == 3 and len(said.top) == 2 and said.logprobs[1] >= said.logprobs[2]


def ids_of(model: ChatModel, text: str) -> list[int]:
    return list(model.text_prompt(text).ids)


def test_a_prefix_is_changed_after_the_answers_before_it(model, policy):
    """One request before the change, one after it; all answers are those of the model alone."""
    bench = ChatBench(policy, built(model, slots=SLOTS[:1]))
    other = "the cup is red and "
    asked = other + "what is red? what is?"
    bench.tell(start(model), SetPrefix(2, "rest", ids_of(model, other)), start(model, asked, request=3))
    while len(bench.of(ChatDone)) < 2:
        assert bench.worker.step()
    first, second = bench.of(ChatDone)
    assert first.reused == len(ids_of(model, PREFIX)), "it keeps its prefix"
    (changed,) = bench.of(PrefixSet)
    assert (changed.request, changed.slot, changed.tokens) == (2, "rest", len(ids_of(model, other)))
    assert bench.said.index(first) < bench.said.index(changed) < bench.said.index(second)
    assert (second.slot, second.reused) == ("rest", changed.tokens)
    assert tokens(bench) == alone(model) + alone(model, asked)
    bench.said.clear()
    bench.tell(start(model, request=4), start(model, asked, request=5))
    while len(bench.of(ChatDone)) < 2:
        assert bench.worker.step()
    assert [done.slot for done in bench.of(ChatDone)] == ["", "rest"], "the old one is gone"
    assert tokens(bench) == alone(model) + alone(model, asked)


def folded(chat: BuiltChat, rules: GateRules) -> BuiltChat:
    """The same model in slots with memory."""
    model, longest = chat.engine.model, 4 * CAPACITY
    gate = random_gate(model.config, rules)
    kv = model.decoder.kv_slots(1 + len(chat.prefixes), rules.threshold, memory_format(gate, longest))
    return replace(chat, engine=ChatEngine(model, kv, folding=folding_of(rules)), length=longest)


def test_a_prefix_whose_memory_is_not_finite_is_rejected_and_gone(model, policy):
    chat = folded(built(model, slots=SLOTS[:1]), GateRules(sink=2, window=2, segment=4))
    bench, ids = ChatBench(policy, chat), ids_of(model, PREFIX)
    bench.tell(SetPrefix(1, "rest", ids))
    bench.run(PrefixSet)
    bench.tell(SetPrefix(2, "rest", ids))
    assert bench.worker.step()
    chat.engine.kv.layer(0).norms[1] = float("nan")
    bench.run(ChatRejected)
    (refused,) = bench.of(ChatRejected)
    assert (refused.request, refused.code, refused.reason) == (2, "INTERNAL", "MEMORY_NOT_FINITE")
    bench.tell(start(model, request=3))
    bench.run(ChatDone)
    (done,) = bench.of(ChatDone)
    assert (done.slot, done.reused, done.answer_tokens) == ("", 0, 8)
    bench.said.clear()
    bench.tell(SetPrefix(4, "rest", ids), start(model, request=5))
    bench.run(ChatDone)
    (done,) = bench.of(ChatDone)
    assert (done.slot, done.route) == ("rest", "long")


def test_a_fold_is_expected_to_take_as_long_as_its_rows(model, policy):
    """While it is decoding; the worker plans with what the pass will take."""
    bench = ChatBench(policy, folded(built(model), GateRules(sink=2, window=6, segment=8)))
    expected, told = [], bench.worker._gaps.launched
    bench.worker._gaps.launched = lambda now_ns, expected_ns: (expected.append(expected_ns), told(now_ns, expected_ns))
    bench.tell(request_of(ids_of(model, PROMPT)[:14]))
    bench.run(ChatDone)
    step_ns, row_ns = 1_000_000, 100_000
    assert max(expected[1:]) >= step_ns + 5 * row_ns


def test_a_prefix_is_taken_away_and_given_again(model, policy):
    bench = ChatBench(policy, built(model, slots=SLOTS))
    bench.tell(SetPrefix(1, "rest", []), start(model, request=2))
    bench.run(ChatDone)
    assert (bench.of(PrefixSet)[0].tokens, bench.of(ChatDone)[0].slot) == (0, "arm")
    bench.said.clear()
    bench.tell(SetPrefix(3, "rest", ids_of(model, PREFIX)), start(model, request=4))
    bench.run(ChatDone)
    assert bench.of(ChatDone)[0].slot == "rest" and tokens(bench) == alone(model)


def test_a_prefix_is_computed_in_the_gaps_beside_a_robot(model, policy):
    bench = ChatBench(policy, built(model, slots=SLOTS))
    bench.tell(
        OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", deadline_ns=60_000_000, period_ns=60_000_000)
    )
    ids = ids_of(model, "the cup is red and the arm is at rest. " * 2)
    for seq in range(1, 8):
        due_ns = bench.clock.now_ns() + 60_000_000
        bench.tell(frame(seq))
        if seq == 2:
            bench.tell(SetPrefix(1, "rest", ids[:-8]))
        while bench.clock.now_ns() < due_ns:
            bench.worker.step()
            bench.clock.advance_ns(500_000)
    (changed,) = bench.of(PrefixSet)
    assert changed.tokens == len(ids) - 8
    queued = [result.queue_ns for result in bench.said if isinstance(result, FrameResult)]
    assert len(queued) > 2 and max(queued) <= PASS_NS


@pytest.mark.parametrize(
    ("slot", "ids", "code", "field"),
    [
        ("none", [1], "NOT_FOUND", "slot"),
        ("rest", [1] * CAPACITY, "INVALID_ARGUMENT", "prefix"),
        ("rest", [1 << 20], "INVALID_ARGUMENT", "prompt"),
    ],
)
def test_an_impossible_change_is_rejected_and_the_prefix_stays(model, policy, slot, ids, code, field):
    bench = ChatBench(policy, built(model, slots=SLOTS))
    bench.tell(SetPrefix(1, slot, ids), start(model, request=2))
    bench.run(ChatDone)
    (refused,) = bench.of(ChatRejected)
    assert (refused.request, refused.code, refused.field) == (1, code, field)
    assert bench.of(ChatDone)[0].slot == "rest" and tokens(bench) == alone(model)


def test_a_prefix_that_does_not_fit_is_reported(model):
    with pytest.raises(ConfigError, match=r"chat.slots long: has \d+ tokens, chat.capacity is 96"):
        built(model, slots=[{"id": "long", "text": "x" * 200}])


def test_slots_that_do_not_fit_are_rejected_with_the_sum(model, monkeypatch):
    monkeypatch.setattr(chat_build, "free_bytes", lambda device: 10)
    sum_of_it = r"no memory for 1 slots of 96 positions: 1 x 36864 bytes in 3 layers, and .* are 0 MiB, 0 MiB are free"
    with pytest.raises(ConfigError, match=sum_of_it):
        built(model)


def test_free_memory_is_asked_of_the_machine():
    assert 1 << 20 < chat_build.free_bytes(CPU) < 1 << 50
