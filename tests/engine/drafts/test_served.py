"""Drafts in the worker: the tokens of the model alone, what is told of them, beside robots, cancelled, constrained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgeflow.contract import Pace
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.drafts.kinds import DraftKind, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.ipc.chat_messages import ChatDone, ChatRejected, ChatStart, ChatStop, ChatToken, PrefixSet, SetPrefix
from edgeflow.ipc.messages import FrameResult, OpenSession
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.cost import ChunkTimes
from edgeflow.scheduler.plan import DraftForm
from tests.engine.chat.test_launch_ahead import ahead
from tests.engine.chat.test_loop import CAPACITY, CPU, PASS_NS, SLOTS, ChatBench, K, built, frame, request_of, start
from tests.engine.drafts.drafters import Knowing, answer, eagle, eagle_head, engine_of, poisoned, taught
from tests.engine.drafts.varied_models import write_talkative
from tests.tiny_checkpoint import write_checkpoint

TEXT = "the arm is at rest and the cup is red. what is red?"
SCHEMA = {"enum": ["red cup", "red arm", "blue cup"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    folder = tmp_path_factory.mktemp("model")
    write_talkative(folder, "qwen2")
    return load_chat_model(folder, torch.float32, CPU, table=built_in_table().forcing(packed_attention="masked"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    return load_openvla(write_checkpoint(tmp_path_factory.mktemp("tiny")), torch.float32, CPU)


def bench_of(
    policy: OpenVLAPolicy, model: ChatModel, kind: DraftKind, row_ns: int = 100_000, **changes: object
) -> ChatBench:
    """A worker whose chat model drafts; its prefixes are computed. row_ns: what a row more takes."""
    chat = built(model, **changes)
    engine = ChatEngine(model, poisoned(model, 1 + len(chat.prefixes), CAPACITY), drafts=kind, chunk=16)
    engine.row_permille = 0  # all drafts are verified
    for prefix in chat.prefixes.values():
        list(prefix.compute(engine, 16))
    return ChatBench(policy, replace(chat, engine=engine, times=ChunkTimes(step_ns=1_000_000, row_ns=row_ns)))


def alone(model: ChatModel, text: str = TEXT, **params: object) -> list[int]:
    params = {"max_tokens": 24, **params}
    return answer(engine_of(model, capacity=CAPACITY), model.text_prompt(text), SamplingParams(**params)).tokens


def asked(model: ChatModel, request: int = 1, text: str = TEXT, **changes: object) -> ChatStart:
    return start(model, text, request, **{"max_tokens": 24, **changes})


def tokens(bench: ChatBench, request: int = 1) -> list[int]:
    return [message.token for message in bench.said if isinstance(message, ChatToken) and message.request == request]


def finished(bench: ChatBench, count: int) -> list[ChatDone]:
    for _ in range(2000):
        done = bench.of(ChatDone)
        if len(done) + len(bench.of(ChatRejected)) >= count:
            return done
        if not bench.worker.step():
            bench.clock.advance_ns(1_000_000)
            if bench.worker.wake_at_ns() is None:
                bench.worker.inbox.wait(30)
    raise AssertionError(f"{count} answers were expected")


def test_the_report_of_drafts(model: ChatModel, policy: OpenVLAPolicy):
    """Of 24 tokens the first comes with the prompt; each verification of right drafts gives six."""
    kind = taught(Knowing(form=DraftForm.CHAIN, rows=6, sure=1.0, fixed=True), model.text_prompt(TEXT), alone(model))
    bench = bench_of(policy, model, kind)
    bench.tell(asked(model))
    (done,) = finished(bench, 1)
    assert tokens(bench) == alone(model)
    assert (done.draft, done.answer_tokens, done.reason) == ("knowing", 24, "length")
    assert (done.drafted, done.accepted, done.draft_passes, done.plain_passes) == (19, 19, 4, 0)
    kind.truth.clear()
    bench.tell(asked(model, 2))
    _, done = finished(bench, 2)
    assert tokens(bench, 2) == alone(model)
    assert done.accepted == 0 and done.drafted == 5 * 18 + 4 + 3 + 2 + 1
    assert (done.draft_passes, done.plain_passes) == (22, 1), "no draft stands behind the token before the last"


def test_requests_one_after_the_other(model: ChatModel, policy: OpenVLAPolicy, tmp_path: Path):
    """With prefixes in their slots, drawn ones with log probabilities among them."""
    head = eagle_head(tmp_path, model)
    wanted, drawn = alone(model), alone(model, temperature=1.0, seed=4)
    knowing = taught(taught(Knowing(), model.text_prompt(TEXT), wanted, 1), model.text_prompt(TEXT), wanted)
    for kind in (Lookup(), eagle(head), eagle(head, tree=False), knowing):
        bench = bench_of(policy, model, kind, slots=SLOTS)
        bench.tell(asked(model), asked(model, 2, temperature=1.0, seed=4, logprobs=2), asked(model, 3))
        first, second, third = finished(bench, 3)
        assert tokens(bench, 1) == tokens(bench, 3) == wanted and tokens(bench, 2) == drawn
        prefix = len(model.text_prompt(SLOTS[0]["text"]))
        assert first.slot == "rest" and first.reused == prefix - (1 if kind.name == "eagle3" else 0)
        assert second.drafted >= second.accepted and third.answer_tokens == 24
        told = [each for each in bench.of(ChatToken) if each.request == 2]
        assert all(len(each.logprobs) == 3 and len(each.top) == 2 for each in told)


def test_a_prefix_that_is_changed(model: ChatModel, policy: OpenVLAPolicy, tmp_path: Path):
    bench = bench_of(policy, model, eagle(eagle_head(tmp_path, model)), slots=SLOTS)
    other = "the cup is blue and "
    bench.tell(asked(model), SetPrefix(2, "rest", list(model.text_prompt(other).ids)), asked(model, 3, other + "so?"))
    _, done = finished(bench, 2)
    assert len(bench.of(PrefixSet)) == 1 and done.slot == "rest" and done.reused == len(other) - 1
    assert tokens(bench, 1) == alone(model) and tokens(bench, 3) == alone(model, other + "so?")


def test_a_request_that_is_cancelled_in_its_answer(model: ChatModel, policy: OpenVLAPolicy):
    kind = taught(Knowing(rows=6, sure=0.9), model.text_prompt(TEXT), alone(model))
    bench = bench_of(policy, model, kind)
    bench.tell(asked(model), asked(model, 2))
    while len(tokens(bench)) < 8:
        assert bench.worker.step()
    bench.tell(ChatStop(1, cancelled=True))
    first, second = finished(bench, 2)
    assert (first.reason, first.answer_tokens) == ("cancelled", len(tokens(bench)))
    assert tokens(bench) == alone(model)[: first.answer_tokens]
    assert first.accepted + first.draft_passes + first.plain_passes + 1 == first.answer_tokens
    assert tokens(bench, 2) == alone(model) and second.reason == "length"


@pytest.mark.parametrize("form", [DraftForm.CHAIN, DraftForm.TREE])
def test_verifications_shrink_beside_a_robot(model: ChatModel, policy: OpenVLAPolicy, form: DraftForm):
    """A verification costs what its rows cost: in a short gap it has few, and the robot does not wait."""
    wanted = alone(model)
    kind = taught(Knowing(form=form, rows=40, sure=1.0, fixed=True), model.text_prompt(TEXT), wanted)
    bench, rows = bench_of(policy, model, kind, row_ns=4_000_000), list[int]()
    launch = bench.worker._chat.engine.launch

    def watched(planned, sources, **options):
        (segment,) = planned.segments
        rows.append(segment.length if segment.stage else 0)
        return launch(planned, sources, **options)

    bench.worker._chat.engine.launch = watched
    period = 60_000_000
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", deadline_ns=period, period_ns=period))
    bench.tell(asked(model))
    for seq in range(1, 40):
        due_ns = bench.clock.now_ns() + period
        bench.tell(frame(seq))
        while bench.clock.now_ns() < due_ns:
            bench.worker.step()
            bench.clock.advance_ns(500_000)
    assert tokens(bench) == wanted
    assert 1 < max(rows) < 10, "some drafts, far from all"
    queued = [result.queue_ns for result in bench.said if isinstance(result, FrameResult)]
    assert len(queued) > 5 and max(queued) <= PASS_NS


@pytest.mark.parametrize("launch_ahead", [False, True])
def test_a_schema(model: ChatModel, policy: OpenVLAPolicy, tmp_path: Path, launch_ahead: bool):
    """Its masks come in one exchange per pass, and a pass waits for them; other requests are not bound by it."""
    head, answers = eagle_head(tmp_path, model), []
    for kind in (Lookup(), eagle(head), Knowing(rows=8)):
        bench = bench_of(policy, model, kind)
        if launch_ahead:
            ahead(bench.worker._chat.engine, bench.clock)
        bench.tell(asked(model, 1, schema=json.dumps(SCHEMA), max_tokens=40), asked(model, 2))
        done = finished(bench, 2)
        answers.append(tokens(bench, 1))
        assert json.loads(model.tokenizer.decode(answers[-1][:-1])) in SCHEMA["enum"]
        assert done[0].draft_passes + done[0].plain_passes + done[0].accepted + 1 >= done[0].answer_tokens
        assert tokens(bench, 2) == alone(model)
        knowing = taught(Knowing(rows=8, sure=0.9), model.text_prompt(TEXT), answers[0])
        bench = bench_of(policy, model, knowing)
        bench.tell(asked(model, 1, schema=json.dumps(SCHEMA), max_tokens=40))
        (done,) = finished(bench, 1)
        assert tokens(bench) == answers[0] and done.accepted > 3
    assert answers[0] == answers[1] == answers[2]


def test_passes_that_are_launched_ahead_give_the_same_tokens(model: ChatModel, policy: OpenVLAPolicy):
    """The next verification is launched before it is known where it begins."""
    wanted = alone(model)
    kind = taught(Knowing(form=DraftForm.CHAIN, rows=5, sure=0.8), model.text_prompt(TEXT), wanted)
    bench = bench_of(policy, model, kind)
    ahead(bench.worker._chat.engine, bench.clock)
    bench.tell(asked(model), request_of(list(model.text_prompt(TEXT).ids), 2))
    finished(bench, 2)
    assert tokens(bench) == wanted and tokens(bench, 2) == wanted[:8]


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.3}], ids=str)
def test_uncertain_passes_of_every_kind(tmp_path: Path, params: dict[str, float]):
    """With operators that read no place on the host, request after request in one slot that is nearly full."""
    table = built_in_table().forcing(packed_attention="masked", linear="gemm")
    write_talkative(tmp_path / "base", "qwen2")
    model = load_chat_model(tmp_path / "base", torch.float32, CPU, table=table)
    prompt, head = model.text_prompt(TEXT), eagle_head(tmp_path / "head", model, table)
    capacity = len(prompt) + 23
    settings = SamplingParams(max_tokens=50, **params)
    wanted = answer(engine_of(model, capacity=capacity, table=table), prompt, settings).tokens
    assert len(wanted) == 24
    knowing = [Knowing(form=form, rows=5, sure=0.9, seed=seed) for seed, form in enumerate(DraftForm) if seed]
    for kind in (Lookup(), eagle(head), eagle(head, tree=False), *knowing):
        if isinstance(kind, Knowing):
            taught(kind, prompt, wanted)
        engine = ahead(engine_of(model, kind, capacity=capacity, table=table))
        uncertain, launch = [], engine.launch
        engine.launch = lambda planned, *rest, launch=launch, uncertain=uncertain, **options: (
            uncertain.append(not planned.segments[0].certain),
            launch(planned, *rest, **options),
        )[1]
        for _ in range(2):
            found = answer(engine, prompt, settings)
            assert found.tokens == wanted, kind
        assert any(uncertain)
