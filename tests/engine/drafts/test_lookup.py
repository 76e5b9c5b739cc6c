"""Prompt look-up against a twin on lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.engine.drafts.drafters import LookupDrafter
from edgeflow.engine.program import ReadRows
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.scheduler.plan import DraftForm

CPU = torch.device("cpu")
SLOTS, CAPACITY = 3, 24


def state_of(drafts: int, stale: int) -> SlotState:
    """Slots that hold one stale token everywhere."""
    kv = KVSlots(layers=1, slots=SLOTS, capacity=CAPACITY, kv_heads=1, head_dim=1, dtype=torch.float32, device=CPU)
    state = SlotState(kv, rows=1 + drafts)
    state.ids.fill_(stale)
    return state


def looked_up(tokens: list[int], drafts: int, shortest: int, longest: int) -> list[int]:
    """What follows the longest equal run before the newest token, of several the latest."""
    best, source = 0, -1
    for place in range(len(tokens) - 1):
        run = 0
        while run < longest and run <= place and tokens[place - run] == tokens[len(tokens) - 1 - run]:
            run += 1
        if run >= max(best, shortest):
            best, source = run, place
    return tokens[source + 1 :][:drafts] if source >= 0 else []


def drafted(
    state: SlotState, drafter: LookupDrafter, sequences: dict[int, list[int]], *, on_host: bool
) -> dict[int, list[int]]:
    """Drafts after sequences of some slots, whose tokens are those of an earlier pass but for the newest."""
    slots = list(sequences)
    for slot, tokens in sequences.items():
        state.ids[slot, : len(tokens)] = torch.tensor(tokens)
    counts = [min(2, len(each) - 1) for each in sequences.values()]
    read = ReadRows(
        slots=torch.tensor(slots),
        firsts=torch.tensor([len(each) - 1 - count for each, count in zip(sequences.values(), counts, strict=True)]),
        counts=torch.tensor(counts),
        lengths=tuple(max(count, 1) for count in counts),
        features=None,
        rope=torch.zeros(1, 1, dtype=torch.long),
        form=DraftForm.CHAIN,
        reach=CAPACITY,
        layout=PackedLayout.of([], CPU),
        sampled=True,
        on_host=on_host,
    )
    found = drafter.draft(read).tolist()
    behind = {slot: state.ids[slot, len(tokens) :].tolist() for slot, tokens in sequences.items()}
    for slot, tokens in sequences.items():
        assert state.ids[slot, : len(tokens)].tolist() == tokens, "what is known stays"
    return {slot: behind[slot][:count] for slot, count in zip(slots, found, strict=True)}


SEQUENCES = st.lists(st.integers(0, 3), min_size=2, max_size=CAPACITY + 1)


@settings(max_examples=200)
@given(
    st.dictionaries(st.integers(0, SLOTS - 1), SEQUENCES, min_size=1),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)
def test_drafts_equal_the_twin(
    sequences: dict[int, list[int]], drafts: int, shortest: int, more: int, stale: int, on_host: bool
):
    """The tokens of an earlier, longer sequence in a slot are never found, though they would match."""
    state = state_of(drafts, stale)
    drafter = LookupDrafter(state, drafts=drafts, shortest=shortest, longest=shortest + more)
    found = drafted(state, drafter, sequences, on_host=on_host)
    for slot, tokens in sequences.items():
        assert found[slot] == looked_up(tokens, drafts, shortest, shortest + more)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(
    ("tokens", "shortest", "longest", "found"),
    [
        ([1, 2, 3, 1], 1, 4, [2, 3, 1]),
        ([1, 2, 3, 1], 2, 4, []),
        ([1, 2, 9, 1, 2, 8, 1, 2], 1, 4, [8, 1, 2]),
        ([7, 1, 2, 9, 1, 2, 8, 7, 1, 2], 1, 4, [9, 1, 2, 8]),
        ([7, 1, 2, 9, 1, 2, 8, 7, 1, 2], 1, 2, [8, 7, 1, 2]),
        ([5, 5], 1, 4, [5]),
        ([5, 6], 1, 4, []),
    ],
)
def test_small_cases_computed_by_hand(tokens: list[int], shortest: int, longest: int, found: list[int], on_host: bool):
    """A run at the beginning, the longest one, the latest one of equals, one that is too short."""
    state = state_of(4, 0)
    drafter = LookupDrafter(state, drafts=4, shortest=shortest, longest=longest)
    assert drafted(state, drafter, {1: tokens}, on_host=on_host) == {1: found}
    assert drafter.taps == () and drafter.store is None
    assert drafter.rows(DraftForm.CHAIN) == drafter.width(DraftForm.CHAIN) == 5


def test_a_prompt_that_goes_on_has_no_drafts():
    state = state_of(4, 0)
    drafter = LookupDrafter(state, drafts=4, shortest=1, longest=2)
    before = state.ids.clone()
    ones = torch.ones(2, dtype=torch.long)
    read = ReadRows(
        slots=torch.tensor([2, 0]),
        firsts=ones,
        counts=ones,
        lengths=(1, 1),
        features=None,
        rope=ones[None],
        form=DraftForm.CHAIN,
        reach=CAPACITY,
        layout=PackedLayout.of([], CPU),
        sampled=False,
        on_host=False,
    )
    assert drafter.draft(read).tolist() == [0, 0] and torch.equal(state.ids, before)
