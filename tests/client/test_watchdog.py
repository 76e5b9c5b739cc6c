"""The watchdog as a state machine, under random events."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.actions import Action
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.types import ActionSchema, Command, StageTimings
from edgeflow_client.watchdog import Watchdog, WatchdogThread

MS = 1_000_000
RESUME_MS = 2000
SCHEMA = ActionSchema(names=("a",), units=("1",), low=(-1.0,), high=(1.0,), relative=(False,))


def action(clock: ManualClock, seq: int, epoch: int = 0, valid_ms: int = 100) -> Action:
    now = clock.now_ns()
    return Action(
        seq=seq,
        epoch=epoch,
        values=np.zeros(1),
        token_ids=(),
        schema=SCHEMA,
        stamp_ns=now,
        received_ns=now,
        valid_until_ns=now + valid_ms * MS,
        frame_pose=None,
        timings=StageTimings(),
        server_ns=0,
    )


def test_nothing_moves_before_the_first_action():
    assert Watchdog(ManualClock()).directive().command is Command.HOLD


def test_an_action_is_given_out_until_its_validity_ends():
    clock = ManualClock()
    watchdog = Watchdog(clock)
    assert watchdog.offer(action(clock, 1))
    clock.advance_ns(100 * MS - 1)
    assert watchdog.directive().command is Command.ACT
    clock.advance_ns(1)
    held = watchdog.directive()
    assert (held.command, held.reason, held.needs_reset) == (Command.HOLD, "SILENCE", False)


@pytest.mark.parametrize(("gap_ms", "resumes"), [(RESUME_MS - 1, True), (RESUME_MS, False)])
def test_a_short_interruption_ends_by_itself_and_a_long_one_needs_a_reset(gap_ms, resumes):
    clock = ManualClock()
    watchdog = Watchdog(clock)
    watchdog.offer(action(clock, 1))
    clock.advance_ns((100 + gap_ms) * MS)
    assert watchdog.directive().needs_reset is not resumes
    assert watchdog.offer(action(clock, 2)) is resumes
    watchdog.restart(2, "RESET", rearm=True)
    assert watchdog.offer(action(clock, 3))


def interrupted(*reasons: str, resume_ms: int) -> tuple[ManualClock, Watchdog]:
    """A robot that acted, then heard these HOLDs of the service or lost its stream."""
    clock = ManualClock()
    watchdog = Watchdog(clock, resume_ms * MS)
    watchdog.offer(action(clock, 1))
    for reason in reasons:
        watchdog.halt(Command.HOLD, reason)
    return clock, watchdog


@pytest.mark.parametrize(
    ("reasons", "resume_ms", "longest_ms"),
    [
        (["DISCONNECTED"], 60_000, RESUME_MS),
        (["ACTION_TOO_OLD"], 60_000, RESUME_MS),
        (["WORKER_LOST"], 60_000, 60_000),
        (["WORKER_LOST", "ACTION_TOO_OLD"], 60_000, 60_000),
        (["ACTION_TOO_OLD", "WORKER_LOST"], 60_000, 60_000),
        (["WORKER_LOST", "DISCONNECTED"], 60_000, RESUME_MS),
        (["WORKER_LOST"], RESUME_MS, RESUME_MS),
        (["WORKER_LOST"], 500, 500),
        (["DISCONNECTED"], 500, 500),
    ],
)
def test_only_after_the_loss_of_a_worker_may_a_robot_resume_later(reasons, resume_ms, longest_ms):
    for waited_ms, resumes in ((longest_ms - 1, True), (longest_ms, False)):
        clock, watchdog = interrupted(*reasons, resume_ms=resume_ms)
        clock.advance_ns(waited_ms * MS)
        assert watchdog.directive().needs_reset is not resumes
        assert watchdog.offer(action(clock, 2)) is resumes


def test_a_worker_lost_excuses_one_interruption_only():
    clock, watchdog = interrupted("WORKER_LOST", resume_ms=60_000)
    watchdog.offer(action(clock, 2))
    clock.advance_ns((100 + RESUME_MS) * MS)
    assert watchdog.directive().needs_reset


@pytest.mark.parametrize(
    ("silence_ms", "reasons", "resumes"),
    [
        (RESUME_MS, ["WORKER_LOST"], True),
        (4999, ["WORKER_LOST"], True),
        (5000, ["WORKER_LOST"], False),
        (RESUME_MS, ["WORKER_LOST", "DISCONNECTED"], False),
        (RESUME_MS, ["DISCONNECTED", "WORKER_LOST"], False),
        (RESUME_MS, ["ACTION_TOO_OLD", "WORKER_LOST"], False),
    ],
)
def test_a_worker_that_hung_excuses_the_silence_before_its_loss(silence_ms, reasons, resumes):
    clock, watchdog = interrupted(resume_ms=5000)
    clock.advance_ns((100 + silence_ms) * MS)
    assert watchdog.directive().needs_reset
    for reason in reasons:
        watchdog.halt(Command.HOLD, reason)
    assert watchdog.directive().needs_reset is not resumes
    assert watchdog.offer(action(clock, 2)) is resumes


def test_a_worker_lost_lifts_no_stop():
    clock, watchdog = interrupted(resume_ms=60_000)
    clock.advance_ns((100 + RESUME_MS) * MS)
    watchdog.halt(Command.STOP, "FAULT")
    watchdog.halt(Command.HOLD, "WORKER_LOST")
    assert watchdog.directive().command is Command.STOP
    assert not watchdog.offer(action(clock, 2))


def held_by_operator(waited_ms: int) -> tuple[ManualClock, Watchdog]:
    """A robot that acted, was held by an operator for so long, and let go."""
    clock, watchdog = interrupted(resume_ms=500)
    watchdog.hear("held", "door open")
    watchdog.halt(Command.HOLD, "OPERATOR_HOLD")
    clock.advance_ns(waited_ms * MS)
    held = watchdog.directive()
    assert (held.reason, held.text, held.needs_reset) == ("OPERATOR_HOLD", "door open", False)
    watchdog.hear("resumed", "")
    return clock, watchdog


@pytest.mark.parametrize(("waited_ms", "resumes"), [(499, True), (500, False)])
def test_an_interruption_counts_once_the_operator_lets_go(waited_ms, resumes):
    clock, watchdog = held_by_operator(60_000)
    clock.advance_ns(waited_ms * MS)
    assert watchdog.directive().needs_reset is not resumes
    assert watchdog.offer(action(clock, 2)) is resumes
    assert watchdog.directive().text == ("" if resumes else "door open")


@pytest.mark.parametrize("reason", ["DISCONNECTED", "ACTION_TOO_OLD"])
def test_an_operator_s_hold_excuses_nothing_after_it(reason):
    clock, watchdog = interrupted(resume_ms=500)
    watchdog.halt(Command.HOLD, "OPERATOR_HOLD")
    clock.advance_ns(60_000 * MS)
    watchdog.halt(Command.HOLD, reason)
    assert not watchdog.directive().needs_reset and watchdog.directive().reason == reason
    clock.advance_ns(500 * MS)
    assert watchdog.directive().needs_reset


def test_an_operator_s_hold_lifts_neither_stop_nor_a_long_interruption():
    for command in (Command.STOP, Command.HOLD):
        clock, watchdog = interrupted("DISCONNECTED", resume_ms=500)
        watchdog.halt(command, "FAULT")
        clock.advance_ns(500 * MS)
        watchdog.halt(Command.HOLD, "OPERATOR_HOLD")
        watchdog.hear("resumed", "")
        assert watchdog.directive().needs_reset and not watchdog.offer(action(clock, 2))


@pytest.mark.parametrize("silence_ms", [0, 1900])
def test_a_new_instruction_does_not_excuse_an_interruption(silence_ms):
    for waited_ms, resumes in ((RESUME_MS - silence_ms - 1, True), (RESUME_MS - silence_ms, False)):
        clock, watchdog = interrupted(resume_ms=RESUME_MS)
        if silence_ms:
            clock.advance_ns((100 + silence_ms) * MS)
        watchdog.restart(1, "NEW_INSTRUCTION", rearm=False)
        assert watchdog.directive().reason == "NEW_INSTRUCTION"
        clock.advance_ns(waited_ms * MS)
        assert watchdog.offer(action(clock, 2)) is resumes


def test_a_check_that_raises_is_called_again_and_logged_once(caplog):
    calls, enough = [], threading.Event()

    def check() -> None:
        calls.append(None)
        if len(calls) == 5:
            enough.set()
        raise RuntimeError("a mistake of ours")

    thread = WatchdogThread(check)
    thread.start()
    assert enough.wait(60)
    thread.stop()
    assert caplog.text.count("RuntimeError: a mistake of ours") == 1


def test_waiting_for_the_first_action_after_a_reset_is_not_an_interruption():
    clock = ManualClock()
    watchdog = Watchdog(clock)
    watchdog.offer(action(clock, 1))
    watchdog.restart(1, "RESET", rearm=True)
    watchdog.halt(Command.HOLD, "INGRESS_SILENT")
    clock.advance_ns(60_000 * MS)
    assert watchdog.offer(action(clock, 2))


def test_stop_stays_until_a_reset():
    clock = ManualClock()
    watchdog = Watchdog(clock)
    watchdog.offer(action(clock, 1))
    watchdog.halt(Command.STOP, "FAULT")
    watchdog.halt(Command.HOLD, "DISCONNECTED")
    assert not watchdog.offer(action(clock, 2))
    watchdog.restart(2, "NEW_INSTRUCTION", rearm=False)
    assert not watchdog.offer(action(clock, 3))
    assert watchdog.directive().command is Command.STOP
    watchdog.restart(3, "RESET", rearm=True)
    assert watchdog.offer(action(clock, 4))


def test_frames_of_before_a_restart_and_out_of_order_results_do_not_count():
    clock = ManualClock()
    watchdog = Watchdog(clock)
    assert watchdog.offer(action(clock, 3))
    assert not watchdog.offer(action(clock, 2))
    assert not watchdog.offer(action(clock, 3))
    watchdog.restart(7, "NEW_INSTRUCTION", rearm=False)
    assert watchdog.directive().command is Command.HOLD
    assert not watchdog.offer(action(clock, 7))
    assert watchdog.offer(action(clock, 8))


def test_a_new_epoch_withdraws_the_action_of_the_old_one():
    clock = ManualClock()
    watchdog = Watchdog(clock)
    watchdog.opened(1)
    watchdog.offer(action(clock, 1, epoch=1))
    watchdog.advance(2)
    assert watchdog.directive().reason == "NEW_EPOCH"
    assert not watchdog.offer(action(clock, 2, epoch=1))
    assert watchdog.offer(action(clock, 3, epoch=2))


def test_an_epoch_too_far_ahead_is_not_believed():
    clock = ManualClock()
    watchdog = Watchdog(clock)
    watchdog.opened(1)
    watchdog.advance(1001)
    with pytest.raises(FailedPrecondition, match=r"notice\.epoch"):
        watchdog.advance(2**63)
    assert watchdog.offer(action(clock, 1, epoch=1001))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([1, 20, 99, 100, 500, 1999, 2500])),
        st.tuples(st.just("offer"), st.integers(1, 30), st.integers(0, 4), st.sampled_from([1, 50, 100, 300])),
        st.tuples(st.just("halt"), st.sampled_from([Command.HOLD, Command.STOP])),
        st.tuples(st.just("restart"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("advance"), st.integers(1, 4)),
        st.tuples(st.just("opened"), st.integers(1, 4)),
        st.tuples(st.just("look")),
    ),
    max_size=60,
)


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_actions_given_out_are_valid_new_and_permitted(events):
    """A naive account of the rules, kept beside the machine; `look` makes observation itself an event."""
    clock = ManualClock()
    watchdog = Watchdog(clock, RESUME_MS * MS)
    epoch, asked, floor, stopped = 0, 0, 0, False
    ended_ns: int | None = None  # when the last accepted action stopped being executed
    current: Action | None = None
    for event in events:
        if current is not None and clock.now_ns() >= current.valid_until_ns:
            ended_ns, current = current.valid_until_ns, None
        too_long = ended_ns is not None and current is None and clock.now_ns() - ended_ns >= RESUME_MS * MS
        match event:
            case ("pass", ms):
                clock.advance_ns(ms * MS)
            case ("offer", seq, of_epoch, valid_ms):
                offered = action(clock, seq, of_epoch, valid_ms)
                permitted = epoch <= of_epoch <= epoch + asked and seq > floor and not stopped and not too_long
                assert watchdog.offer(offered) is permitted
                if permitted:
                    current, ended_ns, floor = offered, None, seq
            case ("halt", command):
                if current is not None:
                    current, ended_ns = None, clock.now_ns()
                stopped |= command is Command.STOP
                watchdog.halt(command, "TOLD")
            case ("restart", last_seq, rearm):
                floor, asked = max(floor, last_seq), asked + 1
                if rearm:
                    stopped, ended_ns, current = False, None, None
                elif current is not None:
                    ended_ns, current = clock.now_ns(), None
                watchdog.restart(last_seq, "RESET", rearm=rearm)
            case ("advance", to):
                if to > epoch:
                    asked, epoch = max(asked - (to - epoch), 0), to
                    if current is not None:
                        current, ended_ns = None, clock.now_ns()
                watchdog.advance(to)
            case ("opened", of_epoch):
                epoch, asked = of_epoch, 0
                watchdog.opened(of_epoch)
            case ("look",):
                watchdog.directive()
        given_out = watchdog.directive()
        valid = current is not None and clock.now_ns() < current.valid_until_ns
        assert (given_out.command is Command.ACT) is valid
        assert given_out.action is (current if valid else None)
        assert watchdog.directive() is given_out


def test_the_thread_ticks_as_often_as_a_plain_timer_and_ends():
    """A thread that only waits is the control: both are late when the machine is busy."""
    ticks, control, enough = [], [], threading.Event()

    def tick() -> None:
        ticks.append(time.monotonic())
        if len(ticks) == 100:
            enough.set()

    thread = WatchdogThread(tick)
    thread.start()
    while not enough.wait(0.005):
        control.append(time.monotonic())
        assert len(control) < 10_000
    thread.stop()
    assert "edgeflow-watchdog" not in {each.name for each in threading.enumerate()}
    assert np.median(np.diff(ticks)) < 2 * np.median(np.diff(control))
