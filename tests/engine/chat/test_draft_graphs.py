"""A request whose verifications are replayed gets the tokens of one without drafts, whose passes are run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.warmup import run_each_kind
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import GREEDY, SamplingKind
from edgeflow.kernels.kv.formats import INT8
from edgeflow.lab.verify.comparison import NEAR_TIES
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.scheduler.plan import DraftForm
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.chat.constrained import constrained, under
from tests.engine.chat.test_generate import CPU, engine_of
from tests.engine.chat.test_graphs import Replays, eager_passes, shapes_of
from tests.engine.chat.tiny_drafts import KINDS, ON_THE_DEVICE, TREE, kind_of
from tests.engine.drafts.near_ties import behind
from tests.engine.recorded_graphs import record

CAPACITY, CHUNK, COUNT = 160, 12, 16
TEXTS = ("the cup is red. what is red?", "abc abc abc ab", "x")
PARAMS = {
    "greedy": SamplingParams(max_tokens=COUNT),
    "drawn": SamplingParams(max_tokens=COUNT, temperature=0.2, top_p=0.9, seed=3),
    "penalised": SamplingParams(max_tokens=COUNT, repetition_penalty=1.02, frequency_penalty=0.05),
    "all": SamplingParams(max_tokens=COUNT, temperature=0.2, top_k=9, presence_penalty=0.05, seed=4, logprobs=2),
}


class EvenInDrafts:
    """A constraint to even tokens, whose masks end at the first draft that it forbids."""

    def __init__(self, vocabulary: int) -> None:
        self._mask = torch.arange(vocabulary) % 2 == 0
        self._rows = 1

    def allowed(self) -> Tensor:
        return self._mask.expand(self._rows, -1)

    def accept(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> None:
        assert not any(token % 2 for token in tokens)
        permitted = [token % 2 == 0 for token in drafts]
        self._rows = 1 + next((at for at, even in enumerate(permitted) if not even), len(permitted))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ChatModel:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("drafted")
    write_chat_checkpoint(directory, "qwen2")
    return load_chat_model(directory, torch.float32, CPU, table=ON_THE_DEVICE)


@pytest.fixture(scope="module")
def right(model: ChatModel) -> Callable[[str, str, bool], list[int]]:
    """The tokens of passes without drafts that are run, by text, name of the sampling and constraint."""
    return cache(lambda text, name, even: answered(plain(model), text, PARAMS[name], even=even).tokens)


@pytest.fixture(scope="module")
def likely(right: Callable[[str, str, bool], list[int]]) -> list[int]:
    """Tokens that answers have, most of them."""
    found = Counter(token for asked in product(TEXTS, PARAMS, (False, True)) for token in right(*asked))
    return [token for token, _ in found.most_common(6)]


@pytest.fixture(scope="module")
def engines(model: ChatModel, likely: list[int]) -> dict[str, ChatEngine]:
    """An engine of each kind, with all passes recorded; what it replays is counted."""
    return {kind: drafting(model, kind, likely, Replays()) for kind in KINDS}


def plain(model: ChatModel) -> ChatEngine:
    return engine_of(model, 1, CAPACITY)


def drafting(
    model: ChatModel, kind: str, likely: Sequence[int], record: object = record, **options: object
) -> ChatEngine:
    """An engine with drafts whose passes are all recorded."""
    drafts = kind_of(kind, model, likely)
    engine = engine_of(model, 2, CAPACITY, drafts=drafts, chunk=CHUNK, graphs=True, record=record, **options)
    engine.row_permille = 0  # all drafts are verified
    engine.record_all(lambda *_: None)
    engine.seal()
    return engine


def answered(engine: ChatEngine, text: str, params: SamplingParams, *, even: bool = False) -> Generation:
    prompt = engine.model.text_prompt(text)
    generation = (constrained if even else Generation)(engine, prompt, params, ignore_stop=True)
    vocabulary = engine.model.config.vocab_size
    list(under(EvenInDrafts(vocabulary), engine, generation, CHUNK) if even else generate(engine, generation, CHUNK))
    return generation


@pytest.mark.parametrize("even", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_verifications_give_the_tokens_of_passes_without_drafts(
    engines: dict[str, ChatEngine], right: Callable[[str, str, bool], list[int]], kind: str, even: bool
):
    ran, accepted = 0, 0
    engine = engines[kind]
    replays = engine._prompts.graphs._record
    recorded, replayed, eager = engine.recordings, replays.count, eager_passes(engine)
    for name, sampling in PARAMS.items():
        for text in TEXTS:
            found = answered(engine, text, sampling, even=even)
            assert found.tokens == right(text, name, even) and len(found.tokens) == COUNT
            counts = found.plan.drafts.counts
            accepted += counts.accepted
            ran += -(-found.plan.rows // CHUNK) + counts.drafts + counts.plain
    assert accepted > 10
    assert replays.count - replayed == ran and eager_passes(engine) == eager and engine.recordings == recorded


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_passes_without_drafts(
    model: ChatModel, engines: dict[str, ChatEngine], kind: str
):
    told = []
    for engine in (engines[kind], plain(model)):
        prompt = model.text_prompt(TEXTS[0])
        generation = Generation(engine, prompt, PARAMS["all"], ignore_stop=True)
        told.append([each for step in generate(engine, generation, CHUNK) if step for each in step.logprobs])
    found, expected = told
    assert len(found) == len(expected) == COUNT
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@pytest.mark.parametrize("kind", KINDS)
def test_the_recommended_kind_of_a_verification_is_recorded_whole(
    model: ChatModel, engines: dict[str, ChatEngine], kind: str, monkeypatch
):
    """The end of the prompt alone is sampled apart."""
    engine = engines[kind]
    program, apart = engine._prompts.contract._program, []
    verify = program.verify
    monkeypatch.setattr(program, "verify", lambda *given, **named: (apart.append(1), verify(*given, **named))[1])
    for params in (PARAMS["greedy"], SamplingParams.recommended(model.generation, max_tokens=COUNT)):
        assert answered(engine, TEXTS[0], params).plan.drafts.counts.drafts > 0
    assert len(apart) == 2


def test_each_form_is_recorded_once(model: ChatModel, engines: dict[str, ChatEngine]):
    """Chunks, and rows that are sampled apart without drafts, are alike in both forms."""
    recommended = SamplingKind.of([SamplingParams.recommended(model.generation)])
    kinds = len({GREEDY, recommended})
    shapes = {kind: shapes_of(engines[kind]) for kind in KINDS}
    for kind, forms in (("lookup", 1), ("chain", 1), ("tree", 2)):
        chunks = [each for each in shapes[kind] if each.prefills]
        single = [each for each in shapes[kind] if each.all_single]
        several = [each for each in shapes[kind] if each.is_verification]
        assert len(chunks) == 2 and len(single) == kinds * forms + 1 and len(several) == (kinds + 1) * forms
        assert len(shapes[kind]) == len(set(shapes[kind])) == len(chunks) + len(single) + len(several)
    rows = {(each.form, each.lengths[0]) for each in shapes["tree"] if each.is_verification}
    assert rows == {(DraftForm.TREE, TREE.rows), (DraftForm.CHAIN, 4)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_verification_whose_padding_leaves_the_slot_runs_as_it_is(
    model: ChatModel, engines: dict[str, ChatEngine], kind: str
):
    """The answer ends where the slot does."""
    text = "abcdefgh" * 16
    expected, engine = answered(plain(model), text, SamplingParams(max_tokens=200)), engines[kind]
    before = eager_passes(engine)
    found = answered(engine, text, SamplingParams(max_tokens=200))
    assert found.tokens == expected.tokens and found.plan.rows + len(found.tokens) == CAPACITY + 1
    rows = engine.rule().rows
    assert before < eager_passes(engine) <= before + rows


@pytest.mark.parametrize("kind", KINDS)
def test_over_eight_bits(tmp_path: Path, likely: list[int], kind: str):
    """Scales move with their places."""
    write_chat_checkpoint(tmp_path, "qwen2")
    table = ON_THE_DEVICE.forcing(rope_write_kv="on_device")
    model = load_chat_model(tmp_path, torch.float32, CPU)
    device = load_chat_model(tmp_path, torch.float32, CPU, table=table)
    engine = drafting(device, kind, likely, kv_format=INT8)
    for text in TEXTS:
        expected = answered(engine_of(model, 1, CAPACITY, INT8), text, PARAMS["greedy"])
        found = answered(engine, text, PARAMS["greedy"])
        assert len(found.tokens) == len(expected.tokens)
        assert behind(model, model.text_prompt(text), found.tokens, INT8) < NEAR_TIES[INT8.name]
    assert eager_passes(engine) == 0


@pytest.mark.parametrize("graphs", [False, True], ids=["run", "replayed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_leaves_no_trace(
    model: ChatModel, likely: list[int], right: Callable[[str, str, bool], list[int]], kind: str, graphs: bool
):
    """Passes of every kind in an empty slot, before the first request."""
    drafts = kind_of(kind, model, likely)
    engine = engine_of(model, 2, CAPACITY, drafts=drafts, chunk=CHUNK, graphs=graphs, record=record)
    engine.kv.data.zero_()  # passes that begin in the middle of a slot read what is before them
    engine.record_all(lambda *_: None)
    engine.seal()
    run_each_kind(engine, CHUNK)
    assert answered(engine, TEXTS[0], PARAMS["greedy"]).tokens == right(TEXTS[0], "greedy", False)
