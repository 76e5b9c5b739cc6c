"""Chat's room beside control: what is launched counts, and the cost model follows the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.scheduler.cost import DRIFT_PERCENT, DRIFT_SAMPLES, ChatTurns, ChunkTimes, CostModel, Gaps, PassSample

MS = 1_000_000
PATIENCE_NS = 250 * MS
CHUNK = 64
TIMES = ChunkTimes(step_ns=2 * MS, row_ns=MS // 4)


def gaps(arrived_ns: int | None = 0) -> Gaps:
    """Of a robot of 20 Hz whose last frame came then; steps take as long as the model says."""
    made = Gaps(PATIENCE_NS)
    made.open(1, 50 * MS)
    for _ in range(2):
        made.served(0, 100, 100)
    if arrived_ns is not None:
        made.arrived(1, arrived_ns)
    return made


def turns(times: ChunkTimes = TIMES, beside: Gaps | None = None) -> ChatTurns:
    return ChatTurns(beside or gaps(), times, CHUNK)


def rows(made: ChatTurns, now_ns: int, pass_at_ns: int | None = None, *, idle: bool = True) -> int:
    return made.rows(now_ns, idle=idle, pass_at_ns=pass_at_ns)


def test_a_chunk_is_what_fits_before_the_next_frame():
    assert rows(turns(beside=gaps(arrived_ns=None)), 0) == CHUNK, "no frame is expected"
    made = turns()
    assert rows(made, 0) == CHUNK and rows(made, 40 * MS) == (10 - 2) * 4
    assert rows(made, 48 * MS) == 1 and rows(made, 48 * MS + 1) == 0
    assert rows(made, 30 * MS, pass_at_ns=40 * MS) == 32, "a pass is due"
    assert rows(made, 0, idle=False) == 0


@given(
    launched=st.lists(st.tuples(st.integers(0, 5 * MS), st.integers(0, 8 * MS)), max_size=8),
    now_ns=st.integers(0, 49 * MS),
)
def test_passes_in_flight_reduce_the_room(launched: list[tuple[int, int]], now_ns: int):
    """Passes run one after the other, each from its launch or from the end of the one before."""
    beside, free_ns, at_ns = gaps(), 0, 0
    made = turns(beside=beside)
    for after_ns, lasts_ns in launched:
        at_ns += after_ns
        beside.launched(at_ns, lasts_ns)
        free_ns = max(free_ns, at_ns) + lasts_ns
    now_ns = max(now_ns, at_ns)
    room_ns = max(50 * MS - now_ns, 0) - max(free_ns - now_ns, 0) if now_ns < 100 * MS else None
    found = rows(made, now_ns)
    if room_ns is None:
        assert found == CHUNK
    elif room_ns < TIMES.step_ns:
        assert found == 0
    else:
        assert found == min(max(1, (room_ns - TIMES.step_ns) // TIMES.row_ns), CHUNK)
        assert found == 1 or TIMES.pass_ns(found, 0) <= room_ns
    beside.finished()
    assert rows(made, now_ns) == rows(turns(), now_ns), "nothing is under way"


def test_chat_that_waited_too_long_gets_a_step_whatever_is_in_flight():
    beside = gaps(arrived_ns=PATIENCE_NS)
    made = turns(beside=beside)
    beside.launched(PATIENCE_NS, 200 * MS)
    assert rows(made, PATIENCE_NS - 1, idle=False) == 0
    assert rows(made, PATIENCE_NS, idle=False) == rows(made, PATIENCE_NS) == 1
    made.served(PATIENCE_NS, None)
    assert rows(made, PATIENCE_NS) == 0, "a turn that computed nothing is a turn"


@pytest.mark.parametrize(("times", "sample", "expected"), [
    (TIMES, PassSample(0, 1, 6 * MS), ChunkTimes(6 * MS, 3 * MS // 4)),
    (TIMES, PassSample(0, 1, MS), ChunkTimes(MS, MS // 8)),
    (TIMES, PassSample(8, 0, 15 * MS), TIMES),
    (TIMES, PassSample(0, 1, 2 * MS * (100 + DRIFT_PERCENT) // 100), TIMES),
])  # fmt: skip
def test_times_that_drift_are_corrected(times: ChunkTimes, sample: PassSample, expected: ChunkTimes):
    """Decode rows tell how fast the device is; a chunk's time depends on more than its rows."""
    model = CostModel(times)
    for _ in range(DRIFT_SAMPLES - 1):
        assert not model.observe([sample], 0)
    changed = model.observe([sample], 0)
    assert changed == (model.times != times)
    assert model.times == expected


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.5, 3.0])
@pytest.mark.parametrize("rows_per_pass", [8, 64])
def test_corrections_come_to_rest_at_the_times_of_the_device(factor: float, rows_per_pass: int):
    """Chunks and decode rows in turn, on a device whose rows and steps take other times than were measured."""
    truth = ChunkTimes(round(TIMES.step_ns * factor), round(TIMES.row_ns * factor))
    model = CostModel(TIMES)
    now_ns = 0
    for _ in range(20 * DRIFT_SAMPLES):
        chunk, step = truth.pass_ns(rows_per_pass, 0), truth.pass_ns(0, 1)
        now_ns += chunk + step
        model.observe([PassSample(rows_per_pass, 0, chunk), PassSample(0, 1, step)], now_ns)
    for shape in ((rows_per_pass, 0), (0, 1)):
        off = model.times.pass_ns(*shape) * 100 / truth.pass_ns(*shape)
        assert abs(off - 100) <= DRIFT_PERCENT + 5


def test_served_passes_correct_chats_room():
    made = turns()
    assert rows(made, 40 * MS) == 32 and made.expected_ns(0, 1) == 2 * MS
    for _ in range(DRIFT_SAMPLES):
        made.served(0, PassSample(0, 1, 6 * MS))
    assert made.expected_ns(0, 1) == 6 * MS
    assert rows(made, 47 * MS) == 0
