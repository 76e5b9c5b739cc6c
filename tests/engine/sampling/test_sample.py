"""Sampling on the device: rows are independent, penalties and log probabilities, replays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.engine.sampling.draw import Rules
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import SampledRows, SamplingKind, SamplingState, plain_lines, read_outcome, sample
from edgeflow.kernels.row_operators import greedy_reduced, greedy_reference
from edgeflow.scheduler.plan import Segment
from tests.engine.recorded_graphs import record

CPU = torch.device("cpu")
SLOTS, PLACES = 6, 32
EVERYTHING = SamplingKind(drawn=True, rules=Rules(min_p=True, top_k=64, top_p=True), penalised=True, logprobs=True)
REQUESTS = [
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=1, temperature=1.0),
    SamplingParams(max_tokens=1, temperature=0.7, top_p=0.8, top_k=20),
    SamplingParams(max_tokens=1, temperature=1.3, min_p=0.05, repetition_penalty=1.3, logprobs=2),
    SamplingParams(max_tokens=1, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.3),
    SamplingParams(max_tokens=1, temperature=0.9, top_p=0.95, frequency_penalty=0.7),
]  # fmt: skip


def begun(requests: Sequence[SamplingParams], vocabulary: int, prompt: Sequence[int] = ()) -> SamplingState:
    state = SamplingState(SLOTS, PLACES, vocabulary, CPU)
    for slot, params in enumerate(requests):
        state.begin(slot, params, prompt, seed=100 + slot)
    return state


def integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


def some_logits(rows: int, vocabulary: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def penalised_twin(logits: list[float], prompt: list[int], said: list[int], params: SamplingParams) -> list[float]:
    scores = list(logits)
    for token in range(len(scores)):
        if token in prompt or token in said:
            penalty = params.repetition_penalty
            scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        scores[token] -= params.frequency_penalty * said.count(token)
        scores[token] -= params.presence_penalty * (token in said)
    return scores


@pytest.mark.parametrize("vocabulary", [40, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_row_depends_on_nothing_beside_it(vocabulary: int, dtype: torch.dtype):
    """Alone in its own kind, then among others in every order, in a wider kind and beside padding rows."""
    logits, prompt = some_logits(SLOTS, vocabulary, dtype=dtype), [3, 3, 17]
    slots, places = integers(range(SLOTS)), integers([9, 9, 4, 0, 31, 7])
    alone = []
    for slot, params in enumerate(REQUESTS):
        here = integers([slot])
        state = begun(REQUESTS, vocabulary, prompt)
        found = sample(logits[here], state, here, places[here], SamplingKind.of([params]), greedy_reduced)
        alone.append(int(found.ids))
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 1]):
        for padding in (0, 3):
            rows = integers([*order, *[0] * padding])
            for kind in (SamplingKind.of(REQUESTS), EVERYTHING):
                state = begun(REQUESTS, vocabulary, prompt)
                found = sample(logits[rows], state, slots[rows], places[rows], kind, greedy_reduced)
                assert found.ids[: len(order)].tolist() == [alone[row] for row in order]
                assert found.finite.all()


def test_a_kind_covers_the_parameters():
    assert SamplingKind.of([]) == SamplingKind.of([SamplingParams(max_tokens=1, top_k=5, top_p=0.5)]) == SamplingKind()
    assert SamplingKind().greedy and not SamplingKind(logprobs=True).greedy
    qwen = SamplingKind.of([REQUESTS[2], REQUESTS[0]])
    assert qwen == SamplingKind(drawn=True, rules=Rules(top_k=32, all_top_k=True, top_p=True))
    assert SamplingKind.of([REQUESTS[2], REQUESTS[1]]).rules == Rules(top_k=32, top_p=True)
    assert SamplingKind.of(REQUESTS[3:4]) == SamplingKind(
        drawn=True, rules=Rules(min_p=True), penalised=True, logprobs=True
    )
    assert len({SamplingKind(), SamplingKind.of([]), EVERYTHING}) == 2


def test_a_greedy_pass_is_one_call_of_the_operator():
    calls = []

    def greedy(logits: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
        calls.append((logits, first, stop))
        return greedy_reference(logits, first, stop)

    logits = some_logits(2, 9, dtype=torch.bfloat16)
    state = SamplingState(2, PLACES, 9, CPU)
    found = sample(logits, state, integers([0, 1]), integers([0, 0]), SamplingKind(), greedy)
    ((given_logits, first, stop),) = calls
    assert given_logits is logits and (first, stop) == (0, 9)
    assert found.ids.equal(logits.float().argmax(-1)) and found.bits is None


def test_ties_of_greedy_rows_fall_on_the_lowest_id_in_every_kind():
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0, -math.inf]])
    for kind in (SamplingKind(), SamplingKind(drawn=True), SamplingKind(penalised=True), EVERYTHING):
        found = sample(logits, SamplingState(1, 4, 5, CPU), integers([0]), integers([2]), kind, greedy_reduced)
        assert found.ids.tolist() == [1]


logits_lists = st.lists(st.floats(-6, 6, width=32), min_size=12, max_size=12)


@given(logits=st.lists(logits_lists, min_size=1, max_size=4), prompt=st.lists(st.integers(0, 11), max_size=4))
@pytest.mark.parametrize(
    "rules",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7, "frequency_penalty": -0.4},
        {"repetition_penalty": 0.8, "frequency_penalty": 1.1},
    ],
    ids=str,
)
def test_penalties_equal_the_twin(rules: dict[str, float], logits: list[list[float]], prompt: list[int]):
    params, said = SamplingParams(max_tokens=4, **rules), []
    state = begun([REQUESTS[0], params], 12, prompt)
    for place, row in enumerate(torch.tensor(logits)):
        scores = penalised_twin(row.tolist(), prompt, said, params)
        slots, places = integers([1, 0]), integers([place, place])
        ids = sample(row.repeat(2, 1), state, slots, places, SamplingKind.of([params]), greedy_reduced).ids
        state.remember(slots, ids)
        found = ids.tolist()
        assert scores[found[0]] == pytest.approx(max(scores), abs=1e-5)
        assert found[1] == row.argmax()
        said.append(found[0])


def test_a_new_request_forgets_the_tokens_of_the_one_before():
    params = SamplingParams(max_tokens=4, repetition_penalty=10.0)
    state, logits = begun([params], 4, [2]), torch.tensor([[1.0, 1.5, 2.0, 0.5]])
    kind, here = SamplingKind.of([params]), integers([0])
    for wanted in (1, 0, 3):
        ids = sample(logits, state, here, here, kind, greedy_reduced).ids
        state.remember(here, ids)
        assert ids.tolist() == [wanted]
    state.begin(0, params, [], seed=0)
    assert int(sample(logits, state, here, here, kind, greedy_reduced).ids) == 2


@pytest.mark.parametrize("vocabulary", [3, 9000])
def test_log_probabilities_are_the_models_own(vocabulary: int):
    params = SamplingParams(max_tokens=1, repetition_penalty=10.0, logprobs=3)
    logits = some_logits(1, vocabulary, seed=2).abs()
    best = int(logits.argmax())
    state = begun([params], vocabulary, [best])
    found = sample(logits, state, integers([0]), integers([0]), SamplingKind.of([params]), greedy_reduced)
    own = logits[0].log_softmax(-1)
    assert found.ids != best
    segment = Segment(sequence=0, slot=0, start=0, length=1, stage=1)
    (told,) = read_outcome(segment, plain_lines(found)[0].tolist(), guessed=False).logprobs
    assert told.logprob == pytest.approx(float(own[found.ids]))
    wanted = own.topk(min(5, vocabulary))
    assert [token for token, _ in told.top] == wanted.indices.tolist()
    assert [each for _, each in told.top] == pytest.approx(wanted.values.tolist())


@pytest.mark.parametrize("vocabulary", [7, 6000])
def test_a_grammar_permits_only_what_it_allows(vocabulary: int):
    logits = some_logits(SLOTS, vocabulary)
    allowed = torch.zeros(SLOTS, vocabulary, dtype=torch.bool)
    allowed[:, [2, 5]] = True
    slots = integers(range(SLOTS))
    for kind in (SamplingKind.of(REQUESTS), EVERYTHING):
        found = sample(logits, begun(REQUESTS, vocabulary), slots, slots, kind, greedy_reduced, allowed)
        assert set(found.ids.tolist()) <= {2, 5} and found.finite.all()
    greedy = sample(logits, begun([], vocabulary), slots, slots, SamplingKind(), greedy_reduced, allowed)
    assert greedy.ids.equal(logits.masked_fill(~allowed, -math.inf).argmax(-1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("kind", [SamplingKind(), SamplingKind(drawn=True), EVERYTHING], ids=["greedy", "drawn", "all"])
@pytest.mark.parametrize("vocabulary", [8, 6000])
def test_logits_that_are_not_finite_are_reported(vocabulary: int, kind: SamplingKind, bad: float, masked: bool):
    logits = some_logits(3, vocabulary)
    logits[1, 4] = bad
    logits[2, 4] = -math.inf
    allowed = torch.ones(3, vocabulary, dtype=torch.bool)
    allowed[:, 4] = False
    slots = integers([0, 1, 2])
    found = sample(logits, begun(REQUESTS, vocabulary), slots, slots, kind, greedy_reduced, allowed if masked else None)
    assert found.finite.tolist() == [True, False, True]
    assert set(found.ids.tolist()) <= set(range(vocabulary))


@pytest.mark.parametrize("vocabulary", [50, 5000])
@pytest.mark.parametrize("kind", [SamplingKind.of(REQUESTS), SamplingKind.of(REQUESTS[2:3]), EVERYTHING], ids=str)
def test_a_replay_gives_the_same_tokens(vocabulary: int, kind: SamplingKind):
    """Nothing in a pass is chosen by the host: other logits, slots, places and requests are read by the replay."""
    requests = REQUESTS if kind.penalised else [REQUESTS[2], REQUESTS[0]] * 3
    replayed, eager = begun([], vocabulary), begun([], vocabulary)
    inputs = some_logits(4, vocabulary), integers([0, 1, 2, 3]), integers([0, 0, 0, 0])

    def step(state: SamplingState, logits: Tensor, slots: Tensor, places: Tensor) -> SampledRows:
        return sample(logits, state, slots, places, kind, greedy_reduced)

    replay, outputs = record(lambda: step(replayed, *inputs))
    for state in (replayed, eager):
        for slot, params in enumerate(requests):
            state.begin(slot, params, [1, 2], seed=slot)
    for round_ in range(3):
        rows = some_logits(4, vocabulary, seed=round_), integers([5, 2, 0, 3 - round_ % 2 * 2]), integers([round_] * 4)
        for place, values in zip(inputs, rows, strict=True):
            place.copy_(values)
        replay()
        wanted = step(eager, *rows)
        assert outputs.ids.equal(wanted.ids) and outputs.finite.equal(wanted.finite)
        if kind.logprobs:
            assert outputs.bits.equal(wanted.bits)


def test_a_seed_repeats_an_answer():
    logits, params = torch.zeros(1, 12), SamplingParams(max_tokens=1, temperature=1.0)
    state = SamplingState(1, 40, 12, CPU)

    def answer(seed: int) -> list[int]:
        state.begin(0, params, [], seed)
        kind, here = SamplingKind.of([params]), integers([0])
        return [int(sample(logits, state, here, integers([place]), kind, greedy_reduced).ids) for place in range(40)]

    assert answer(7) == answer(7) != answer(8)
    assert len(set(answer(7))) > 6
