"""Recorded passes of a flow policy: which are replayed, a whole chunk at once, frames that leave, and the warm-up.

That what they compute is right is in test_denoising.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.flow.frames import FlowFrame, RTCSettings
from edgeflow.engine.flow.program import FlowProgram, Steps
from edgeflow.engine.graphs import Record, record_passes
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.lab.verify.policies.flow.recorded_runs import KeptSteps
from edgeflow.scheduler.plan import Frame, FrameRef, Leaving
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow.worker.calibrate import calibrate
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import ConfigError, WorkerError
from edgeflow_client.types import Mode
from tests.engine.flow.checks import assert_right, continuing
from tests.engine.flow.tiny_flow import JOINT_SHAPE, SHAPES, VOCABULARY, Shape, TinyFlowPolicy, random_frames
from tests.engine.flow.twin import FlowTwin
from tests.engine.recorded_graphs import Replays
from tests.engine.test_graphs import ON_THE_DEVICE


def replaying(
    shape: Shape,
    sessions: int = 1,
    text: int = 6,
    *,
    guided: bool = True,
    table: OperatorTable = ON_THE_DEVICE,
    kind: Record | None = None,
) -> FlowEngine:
    """An engine before its passes are recorded."""
    policy = TinyFlowPolicy(shape, rtc=RTCSettings() if guided else None, table=table)
    return FlowEngine(policy, sessions, text, graphs=True, record=kind or Replays())


def recorded(engine: FlowEngine) -> FlowEngine:
    """The engine with all of its recordings; its memory, the scratch slot too, holds NaN."""
    assert record_passes(engine, lambda *_: None, required=True) == f"{len(engine.contract.shapes())} graphs"
    engine.graphs.seal()
    engine.contract.watch = KeptSteps()
    engine.contract.stages.kv.data.fill_(torch.nan)
    engine.contract.state._lines.fill_(torch.nan)
    return engine


def frames_of(shape: Shape, count: int, seed: int = 0, text: int = 5) -> list[FlowFrame]:
    """Frames of all cameras, of texts of any length; some continue a chunk."""
    dice, found = random.Random(seed), []
    for frame in random_frames(shape, count, seed):
        ids = tuple(dice.randrange(VOCABULARY) for _ in range(dice.randint(1, text)))
        pixels = frame.pixel_values[[0, -1]]
        found.append(replace(frame, pixel_values=pixels, prompt_ids=ids))
    return continuing(found, seed)


def whole_run(engine: FlowEngine, sessions: int = 1) -> OfflineRun:
    limits = limits_for(engine.policy.sizes.program.passes, sessions=sessions)
    return OfflineRun(engine, Scheduler(limits, whole=True), [Mode.SERIAL] * sessions)


@pytest.fixture(params=SHAPES)
def shape(request) -> Shape:
    torch.set_num_threads(1)
    return SHAPES[request.param]


def test_a_chunk_in_serial_mode_is_one_replay(shape: Shape):
    engine = recorded(replaying(shape, text=130))
    frames = frames_of(shape, 6, seed=2, text=130)
    assert {len(frame.prompt_ids) > 64 for frame in frames} == {True, False}, "texts of several lengths"
    run = whole_run(engine)
    engine.record.count = 0
    results = run.decode([frames])[0]
    assert (engine.record.count, run.scheduler.counts.passes, engine.graphs.eager_passes) == (6, 6, 0)
    assert_right(run, results, frames, FlowTwin(shape, engine.policy.weights))


def runs_again(program: Callable[[], Steps | None]) -> tuple[Callable[[], None], Steps | None]:
    """A `Record` that records nothing: the program runs at each replay."""
    outputs = program()

    def replay() -> None:
        found = program()
        if outputs is not None and found is not None:
            outputs.after.copy_(found.after)

    return replay, outputs


@pytest.mark.parametrize("mode", [Mode.SERIAL, Mode.PIPELINED])
def test_a_replay_gives_the_bits_of_its_program(shape: Shape, mode: Mode):
    found, frames = [], frames_of(shape, 5)
    for kind in (Replays(), runs_again):
        engine = recorded(replaying(shape, 2, kind=kind))
        limits = limits_for(shape.sizes.program.passes, sessions=2)
        streams = OfflineRun(engine, Scheduler(limits, whole=True), [mode] * 2).decode([frames, frames[3:]])
        found.append(np.stack([each.sampled.values for results in streams for each in results]))
    assert np.array_equal(*found)


def test_a_frame_of_one_camera_is_answered_eagerly(shape: Shape):
    engine = recorded(replaying(shape))
    frames = frames_of(shape, 3)
    frames[1] = replace(frames[1], pixel_values=frames[1].pixel_values[:1])
    run = whole_run(engine)
    engine.record.count = 0
    results = run.decode([frames])[0]
    assert (engine.record.count, engine.graphs.eager_passes) == (2, 1)
    assert_right(run, results, frames, FlowTwin(shape, engine.policy.weights))


def test_two_serial_robots_share_passes_and_one_alone_has_whole_ones(shape: Shape):
    engine = recorded(replaying(shape, 2))
    streams = [frames_of(shape, count, seed) for seed, count in enumerate((2, 5))]
    run = whole_run(engine, 2)
    found = run.decode(streams)
    assert run.scheduler.counts.passes == 2 * engine.policy.sizes.program.passes + 3
    assert engine.graphs.eager_passes == 0
    for frames, results in zip(streams, found, strict=True):
        assert_right(run, results[-1:], frames[-1:], FlowTwin(shape, engine.policy.weights))


@pytest.mark.parametrize("sessions", [1, 4])
@pytest.mark.parametrize("shift", Shift)
def test_every_shape_of_random_sessions_is_recorded(shift: Shift, sessions: int):
    """Robots of different modes and instructions, whose frames come at any time."""
    engine, dice = recorded(replaying(JOINT_SHAPE, sessions, text=100)), random.Random(1)
    frames = iter(frames_of(JOINT_SHAPE, 24, text=100))
    limits = limits_for(JOINT_SHAPE.sizes.program.passes, sessions=sessions, shift=shift)
    modes = [Mode.DEPTH, Mode.PIPELINED, Mode.SERIAL, Mode.PIPELINED][:sessions]
    run = OfflineRun(engine, Scheduler(limits, whole=True), modes, depth=3)
    offered, answered = [], 0
    while answered < 24:
        for session in range(sessions):
            if len(offered) < 24 and not run.waiting(session) and dice.random() < 0.6:
                offered.append(next(frames))
                run.offer(session, len(offered), offered[-1])
        ticket = run.step()
        for result in run.collect(ticket) if ticket is not None else ():
            answered += 1
            frame = offered[result.sampled.frame.seq - 1]
            assert_right(run, [result], [frame], FlowTwin(JOINT_SHAPE, engine.policy.weights))
    assert engine.graphs.eager_passes == 0


def test_a_frame_that_is_not_finite_spoils_no_chunk_after_it(shape: Shape):
    engine = recorded(replaying(shape))
    frames = frames_of(shape, 5)
    bad = replace(frames[1], pixel_values=torch.full_like(frames[1].pixel_values, torch.nan))
    run = whole_run(engine)
    results = run.decode([[frames[0], bad, *frames[2:]]])[0]
    assert [each.sampled.finite for each in results] == [True, False, True, True, True]
    kept = [0, 2, 3, 4]
    twin = FlowTwin(shape, engine.policy.weights)
    assert_right(run, [results[each] for each in kept], [frames[each] for each in kept], twin)


def test_a_reset_while_a_whole_pass_runs_drops_its_frame_and_the_newest_one_is_next():
    engine = recorded(replaying(JOINT_SHAPE))
    frames = frames_of(JOINT_SHAPE, 3)
    run = whole_run(engine)
    scheduler, refs = run.scheduler, [FrameRef(0, 1, 1), FrameRef(0, 2, 2), FrameRef(0, 2, 3)]
    run.offer(0, 1, frames[0])
    running = run.step()
    assert running is not None and running.planned.whole
    left = [*scheduler.reset(0, 2), *scheduler.offer(Frame(refs[1], engine.rows(frames[1])))]
    left += scheduler.offer(Frame(refs[2], engine.rows(frames[2])))
    assert scheduler.next_frames(0) == [] and scheduler.plan(0) is None, "an older frame would begin"
    assert run.collect(running) == []
    assert [(each.frame, each.reason) for each in left] == [
        (refs[0], Leaving.EPOCH_CHANGED),
        (refs[1], Leaving.SUPERSEDED),
    ]
    run._observations[refs[2]] = frames[2]
    results = run.collect(run.step())
    assert [each.sampled.frame for each in results] == [refs[2]]
    assert_right(run, results, frames[2:], FlowTwin(JOINT_SHAPE, engine.policy.weights))


@pytest.mark.parametrize("guided", [True, False])
def test_recordings_are_checked_before_the_service_is_ready(shape: Shape, guided: bool):
    engine = recorded(replaying(shape, 2, guided=guided))
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    assert engine.graphs.eager_passes == 0


def test_whole_chunks_that_differ_are_found(monkeypatch):
    plain = FlowProgram.chunks

    def wrong(*given: Any, **options: Any) -> Any:
        done = plain(*given, **options)
        return replace(done, after=done.after * 1.001)

    monkeypatch.setattr(FlowProgram, "chunks", wrong)
    with pytest.raises(WorkerError, match="other actions in one pass than each frame by itself"):
        warm_up(recorded(replaying(JOINT_SHAPE)), Shift.ROTATE, lambda *_: None)


def test_passes_that_read_places_run_eagerly_unless_graphs_are_required():
    engine = replaying(JOINT_SHAPE, table=ON_THE_DEVICE.forcing(packed_attention="slots_in_place"))
    with pytest.raises(ConfigError, match="graphs: packed_attention: this implementation reads slots on the host"):
        record_passes(engine, lambda *_: None, required=True)
    assert engine.runs_whole
    assert record_passes(engine, lambda *_: None, required=False).startswith("no graphs: packed_attention")
    assert engine.graphs is None and not engine.runs_whole
    warm_up(engine, Shift.ROTATE, lambda *_: None)


def test_the_time_of_a_whole_pass_is_measured():
    clock, engine = ManualClock(), recorded(replaying(JOINT_SHAPE, 2))
    launch = engine.launch

    def counting(planned, prompts):
        clock.advance_ns(7 if planned.whole else 1000 * planned.rows)
        return launch(planned, prompts)

    engine.launch = counting
    times = calibrate(engine, clock=clock)
    step = 1000 * JOINT_SHAPE.sizes.step_rows
    assert (times.whole_ns, times.decode_ns) == (7, step), "steps by themselves are measured too"
    assert times.pass_ns(1, 0, whole=True) == 7
    engine.drop_graphs()
    assert calibrate(engine, clock=clock).whole_ns == 0
