"""Programs of stages in the scheduler and in forecasts: what a session's passes are, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.contract import PROMPT, Pace, PassTimes, Speculation, Stage, StageProgram
from edgeflow.scheduler.cost import DRIFT_SAMPLES, CostModel, PassSample
from edgeflow.scheduler.forecast import ForecastSession, by_mode, forecast
from edgeflow.scheduler.pace import served_pace
from edgeflow.scheduler.plan import Frame, FrameRef, Outcome, Segment
from edgeflow.scheduler.scheduler import ROW_BUDGET, Scheduler, SchedulerLimits, row_budget_of
from edgeflow.scheduler.session import Shift
from tests.scheduler.test_properties import BEHIND

MS = 1_000_000
ROWS = 20  # of a prompt
PROMPT_STAGE = Stage(rows=PROMPT)
DENOISING = StageProgram((PROMPT_STAGE, Stage(rows=1, group=1), Stage(rows=5, repeats=4, group=1, advances=False)))
LIMITS = SchedulerLimits(7, 8, 1000, 2 * MS)
TIMES = PassTimes(
    stages=7,
    prefill_ns=60 * MS,
    two_prefills_ns=110 * MS,
    packed_ns=66 * MS,
    decode_ns=10 * MS,
    decodes_ns=16 * MS,
    row_ns=MS // 2,
)
PROGRAMS = st.lists(BEHIND, max_size=3).map(lambda stages: StageProgram((PROMPT_STAGE, *stages)))


def test_properties_of_programs():
    seven = StageProgram.tokens(7)
    assert (seven.passes, seven.drafts, seven.unrolled[0].rows, seven.unrolled[6].rows) == (7, 6, PROMPT, 1)
    assert (StageProgram.tokens(1).passes, StageProgram.tokens(1).drafts) == (1, 0)
    assert (DENOISING.passes, DENOISING.drafts) == (6, 0)
    assert [stage.rows for stage in DENOISING.unrolled] == [PROMPT, 1, 5, 5, 5, 5]


@pytest.mark.parametrize(
    "stage", [Stage(rows=2), Stage(rows=1, advances=False), Stage(rows=1, group=1)], ids=["rows", "overwrites", "group"]
)
def test_only_tokens_can_be_drafted(stage: Stage):
    assert StageProgram((PROMPT_STAGE, stage)).drafts == 0
    assert StageProgram((PROMPT_STAGE, Stage(rows=1), stage)).drafts == 0
    assert StageProgram((PROMPT_STAGE, Stage(rows=1), Stage(rows=1, repeats=2))).drafts == 3


def test_speculative_is_serial_where_nothing_can_be_drafted():
    drafts = Pace(0, Speculation())
    assert served_pace(drafts, StageProgram.tokens(2)) == drafts
    assert {served_pace(drafts, program) for program in (DENOISING, StageProgram.tokens(1))} == {Pace(1)}
    assert served_pace(Pace(6), DENOISING) == Pace(6)


@pytest.mark.parametrize("shift", Shift)
def test_stages_that_overwrite_enter_where_the_first_of_them_does(shift: Shift):
    scheduler = Scheduler(replace(LIMITS, shift=shift))
    scheduler.open(0, 1, Pace(0, Speculation()), DENOISING)
    scheduler.offer(Frame(FrameRef(0, 1, 1), ROWS))
    seen: list[Segment[FrameRef]] = []
    moves = []
    for _ in range(DENOISING.passes):
        planned = scheduler.plan(len(seen) * 3 * MS)
        assert planned is not None
        (segment,) = planned.segments
        left = scheduler.commit(planned.number, [Outcome(segment.sequence, ())])
        seen.append(segment)
        moves += planned.moves
        assert bool(left) == (len(seen) == DENOISING.passes)
    assert [(each.start, each.length, each.samples) for each in seen] == [
        (0, ROWS, 1),
        (ROWS, 1, 1),
        *[(ROWS + 1, 5, 5)] * 4,
    ]
    assert [each.group for each in seen] == [0, 1, 1, 1, 1, 1]
    assert [each.advances for each in seen] == [True, True, False, False, False, False]
    assert {each.drafts for each in seen} == {0}
    assert [move.length for move in moves] == ([] if shift is Shift.ROTATE else [ROWS, *[ROWS + 1] * 4])


def test_a_program_that_no_ring_holds_is_rejected():
    scheduler = Scheduler(replace(LIMITS, stages=5, max_sessions=1))
    with pytest.raises(ValueError, match="6 passes does not fit a ring of 5 slots"):
        scheduler.open(0, 1, Pace(1), DENOISING)
    scheduler.open(0, 1, Pace(1), StageProgram.tokens(5))


def test_a_pipeline_is_full_when_a_session_has_a_frame_in_each_of_its_own_passes():
    scheduler = Scheduler(LIMITS)
    scheduler.open(0, 1, Pace(3), StageProgram.tokens(3))
    scheduler.open(1, 1, Pace(7))
    for seq in range(1, 8):
        for session in (0, 1):
            scheduler.offer(Frame(FrameRef(session, 1, seq), ROWS))
        planned = scheduler.plan(0)
        assert planned is not None
        scheduler.commit(planned.number, [Outcome(each.sequence, (0,)) for each in planned.segments])
    assert len(planned.segments) == 3 + 7
    assert scheduler.counts.full_passes == 5


@settings(max_examples=30, deadline=None)
@given(program=PROGRAMS)
def test_a_forecast_of_a_lone_robot_is_the_sum_of_its_passes(program: StageProgram):
    """Serial: the prompt and each row after it. Pipelined: one frame in each of the stages in every pass."""
    rows = [stage.decode_rows for stage in program.unrolled[1:]]
    serial_ns = TIMES.pass_ns(1, 0) + sum(TIMES.pass_ns(0, each) for each in rows)
    packed_ns = TIMES.pass_ns(1, sum(rows))
    robot = ForecastSession(pace=Pace(1), period_ns=0, program=program)
    (serial,) = forecast(TIMES, LIMITS, [robot])
    (packed,) = forecast(TIMES, LIMITS, [replace(robot, pace=Pace(program.passes))])
    assert (serial.age_ns, serial.fps) == (serial_ns, pytest.approx(1e9 / serial_ns))
    assert (packed.age_ns, packed.fps) == (program.passes * packed_ns, pytest.approx(1e9 / packed_ns))
    assert serial.passes_per_action == packed.passes_per_action == program.passes


@settings(max_examples=30, deadline=None)
@given(
    programs=st.lists(
        st.tuples(PROGRAMS | st.builds(StageProgram.tokens, st.integers(1, 7)), st.integers(1, 7)),
        min_size=2,
        max_size=3,
    )
)
def test_forecasts_are_what_the_scheduler_does(programs: list[tuple[StageProgram, int]]):
    robots = [ForecastSession(pace=Pace(depth), period_ns=0, program=program) for program, depth in programs]
    for found, fps in zip(forecast(TIMES, LIMITS, robots), simulated(programs), strict=True):
        assert found.fps == pytest.approx(fps, rel=0.1)


def simulated(programs: list[tuple[StageProgram, int]], passes: int = 600) -> list[float]:
    """Answers per second of sessions whose frames are always at hand, by counting each of their passes."""
    scheduler = Scheduler(SchedulerLimits(max(program.passes for program, _ in programs), len(programs), 1000, 2 * MS))
    for session, (program, depth) in enumerate(programs):
        scheduler.open(session, 1, Pace(depth), program)
    had = [0] * len(programs)
    now_ns = 0
    for seq in range(1, passes + 1):
        for session in range(len(programs)):
            scheduler.offer(Frame(FrameRef(session, 1, seq), 1))
        planned = scheduler.plan(now_ns)
        assert planned is not None
        rows = sum(each.length if each.advances else 1 for each in planned.segments if each.stage)
        now_ns += TIMES.pass_ns(sum(each.stage == 0 for each in planned.segments), rows)
        for segment in planned.segments:
            had[segment.sequence.session] += 1
        scheduler.commit(planned.number, [Outcome(each.sequence, (0,)) for each in planned.segments])
    return [count / program.passes * 1e9 / now_ns for count, (program, _) in zip(had, programs, strict=True)]


def test_a_step_is_one_decode_row_however_many_rows_it_has():
    scheduler = Scheduler(LIMITS)
    scheduler.open(0, 1, Pace(DENOISING.passes), DENOISING)
    for seq in range(1, 7):
        scheduler.offer(Frame(FrameRef(0, 1, seq), ROWS))
        planned = scheduler.plan(0)
        assert planned is not None
        scheduler.commit(planned.number, [Outcome(each.sequence, ()) for each in planned.segments])
    assert (planned.rows, planned.decode_rows) == (ROWS + 1 + 4 * 5, 5)
    assert (DENOISING.step_rows, StageProgram.tokens(7).step_rows) == (5, 0)


def test_with_two_passes_per_frame_a_further_step_is_not_free():
    """One robot never has two steps in a pass there, so their slope is not measured without a prefill."""
    times = replace(TIMES, stages=2, packed_ns=64 * MS, decodes_ns=TIMES.decode_ns)
    assert [times.pass_ns(0, steps) for steps in (1, 2, 3)] == [10 * MS, 14 * MS, 18 * MS]
    assert replace(times, packed_ns=90 * MS).pass_ns(0, 3) == 30 * MS, "no more than alone"


def test_the_default_row_budget_lets_two_robots_share_a_pass():
    steps, step_rows, prompt = 10, 51, 816
    budget = row_budget_of(None, prompt, steps, step_rows)
    assert (budget, row_budget_of(300, prompt, steps, step_rows)) == (2 * (816 + 510), 300)
    assert row_budget_of(None, 600, 6, 0) == row_budget_of(None, 60, 3, 5) == ROW_BUDGET
    program = StageProgram((PROMPT_STAGE, Stage(rows=step_rows, repeats=steps, group=1, advances=False)))
    scheduler = Scheduler(SchedulerLimits(11, 2, budget, 0))
    for session in (0, 1):
        scheduler.open(session, 1, Pace(11), program)
    for seq in range(1, 12):
        for session in (0, 1):
            scheduler.offer(Frame(FrameRef(session, 1, seq), prompt))
        planned = scheduler.plan(0)
        assert planned is not None
        scheduler.commit(planned.number, [Outcome(each.sequence, ()) for each in planned.segments])
    assert (len(planned.prefills), planned.decode_rows, planned.rows) == (2, 20, budget)


def test_each_robot_has_the_passes_of_its_own_answers():
    """Side by side in serial, the one with fewer passes answers more often."""
    wide, narrow = (ForecastSession(pace=Pace(1), period_ns=0, program=StageProgram.tokens(count)) for count in (7, 4))
    found = forecast(TIMES, LIMITS, [wide, narrow])
    assert [each.passes_per_action for each in found] == [7, 4]
    assert found[1].fps > 1.3 * found[0].fps


def test_the_modes_are_those_of_the_program():
    assert list(by_mode(TIMES, LIMITS, None, StageProgram.tokens(4))) == [
        "serial",
        "depth 2",
        "pipelined",
        "speculative",
    ]
    assert list(by_mode(TIMES, LIMITS, None, DENOISING)) == ["serial", "depth 2", "depth 3", "pipelined"]
    assert list(by_mode(TIMES, LIMITS, None, StageProgram((PROMPT_STAGE,)))) == ["serial"]
    narrow = ForecastSession(pace=Pace(4), period_ns=0, program=StageProgram.tokens(4))
    assert by_mode(TIMES, LIMITS, None, StageProgram.tokens(4))["pipelined"] == forecast(TIMES, LIMITS, [narrow])[0]
    assert by_mode(TIMES, LIMITS) == by_mode(TIMES, LIMITS, None, StageProgram.tokens(7))


def test_drafts_of_a_narrow_robot_are_verified_within_its_own_passes():
    pace, program = Pace(0, Speculation()), StageProgram.tokens(4)
    (found,) = forecast(TIMES, LIMITS, [ForecastSession(pace=pace, period_ns=0, program=program)])
    assert (found.passes_per_action, found.assumed) == (4, True)


WHOLE = replace(TIMES, whole_ns=40 * MS)


@pytest.mark.parametrize("launch_ns", [0, MS])
def test_a_robot_alone_in_serial_mode_has_whole_passes(launch_ns: int):
    """Their time is its period and, with the launch, the age of its actions; other modes and programs have none."""
    times = replace(WHOLE, launch_ns=launch_ns)
    found, before = (
        by_mode(times, LIMITS, None, DENOISING),
        by_mode(replace(times, whole_ns=0), LIMITS, None, DENOISING),
    )
    serial = found.pop("serial")
    assert (serial.age_ns, serial.passes_per_action) == (launch_ns + 40 * MS, 1)
    assert serial.fps == pytest.approx(1e9 / (launch_ns + 40 * MS))
    assert serial.age_ns < before.pop("serial").age_ns and found == before
    tokens = StageProgram.tokens(4)
    assert by_mode(times, LIMITS, None, tokens) == by_mode(replace(times, whole_ns=0), LIMITS, None, tokens)


def test_robots_have_whole_passes_where_all_are_serial_and_one_alone_has_a_frame():
    robot = ForecastSession(pace=Pace(1), period_ns=200 * MS, program=DENOISING)
    apart = forecast(WHOLE, LIMITS, [robot, replace(robot, offset_ns=100 * MS)])
    assert {each.age_ns for each in apart} == {40 * MS}
    for other in (robot, replace(robot, pace=Pace(6), offset_ns=100 * MS)):
        assert min(each.passes_per_action for each in forecast(WHOLE, LIMITS, [robot, other])) == DENOISING.passes


def test_a_whole_pass_drifts_by_itself():
    model = CostModel(WHOLE)
    assert WHOLE.pass_ns(1, 0, whole=True) == 40 * MS
    assert not model.observe([PassSample(1, 0, 44 * MS, whole=True)] * DRIFT_SAMPLES, 0)
    assert model.observe([PassSample(1, 0, 80 * MS, whole=True)] * DRIFT_SAMPLES, 2000 * MS)
    assert model.times == replace(WHOLE, whole_ns=80 * MS)


def test_frames_that_wait_for_the_end_of_a_whole_pass_are_known():
    """The device is theirs next: chat must not go first."""
    scheduler = Scheduler(replace(LIMITS, stages=DENOISING.passes, max_sessions=2), whole=True)
    for session in range(2):
        scheduler.open(session, 1, Pace(1), DENOISING)
    scheduler.offer(Frame(FrameRef(0, 1, 1), 10))
    planned = scheduler.plan(0)
    assert planned is not None and planned.whole and not scheduler.holds_frames
    scheduler.offer(Frame(FrameRef(1, 1, 1), 10))
    assert scheduler.holds_frames and scheduler.plan(0) is None
    scheduler.commit(planned.number, [Outcome(each.sequence, ()) for each in planned.segments])
    assert not scheduler.holds_frames and scheduler.plan(0) is not None
