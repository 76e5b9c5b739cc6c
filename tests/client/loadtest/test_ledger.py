"""Every offered frame has exactly one fate, whatever is heard in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeflow_client.loadtest.robots.ledger import Fate, Ledger
from edgeflow_client.loadtest.robots.playing import ChunkPlayer
from edgeflow_client.loadtest.robots.robot import hear
from edgeflow_client.loadtest.summary import summarise
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Disposition
from tests.client.loadtest.conftest import MS, acted, disposed, measured

TOLD = {
    Disposition.ACTED: pb.DISPOSITION_ACTED,
    Disposition.SUPERSEDED: pb.DISPOSITION_SUPERSEDED,
    Disposition.REJECTED: pb.DISPOSITION_REJECTED,
    Disposition.DROPPED: pb.DISPOSITION_DROPPED,
}
STEPS = st.one_of(
    st.tuples(st.just("offer"), st.integers(1, 3)),
    st.tuples(st.just("vain"), st.integers(1, 3)),
    st.tuples(st.just("act"), st.integers(1, 12)),
    st.tuples(st.sampled_from(list(Disposition)), st.tuples(st.integers(1, 12), st.integers(0, 3))),
    st.tuples(st.just("lose"), st.none()),
)


def action(seq: int, stamp_ns: int) -> pb.ServerMessage:
    timings = pb.Timings(decode_ns=1, queue_ns=2, inference_ns=30, passes=3, server_ns=40)
    message = pb.Action(seq=seq, stamp_ns=stamp_ns, command=pb.COMMAND_ACT, valid_for_ms=250, timings=timings)
    return pb.ServerMessage(action=message)


def status(seq: int, last: int, disposition: Disposition) -> pb.ServerMessage:
    return pb.ServerMessage(
        frame_status=pb.FrameStatus(seq=seq, last_seq=last, disposition=TOLD[disposition], reason="WHY")
    )


@given(st.lists(STEPS, max_size=60))
def test_offered_is_the_sum_of_all_fates(steps):
    """Frames of number n are due at n ms; what a service says may be wrong, late, or about no frame at all."""
    ledger, first = Ledger(0), 0
    for now, (what, argument) in enumerate(steps, 100):
        due_ns = (len(ledger.frames) + 1) * MS
        match what:
            case "offer":
                for index in range(argument):
                    ledger.offer(due_ns + index * MS, now * MS)
            case "vain":
                ledger.lose()
                for index in range(argument):
                    ledger.offer_in_vain(due_ns + index * MS)
            case "act":
                hear(ledger, ChunkPlayer(), action(argument, (argument + first) * MS), first, now * MS)
            case "lose":
                ledger.lose()
                first = len(ledger.frames)
            case disposition:
                seq, more = argument
                hear(ledger, ChunkPlayer(), status(seq, seq + more, disposition), first, now * MS)
    frames = summarise(measured([ledger]), [ledger]).frames
    refused = sum(sum(each.values()) for each in (frames.rejected, frames.dropped, frames.unanswered))
    assert frames.offered == len(ledger.frames) == frames.acted + frames.superseded + refused
    assert ledger.in_flight <= frames.unanswered.get(Reason.NO_ANSWER, 0)


def test_the_action_and_its_status_are_one_fate():
    ledger = Ledger(0)
    ledger.offer(7 * MS, 8 * MS)
    hear(ledger, ChunkPlayer(), action(1, 7 * MS), 0, 57 * MS)
    hear(ledger, ChunkPlayer(), status(1, 0, Disposition.ACTED), 0, 58 * MS)
    (frame,) = ledger.frames
    assert (frame.fate, frame.age_ns, frame.server_ns, frame.timings.passes) == (Fate.ACTED, 50 * MS, 40, 3)
    assert not ledger.happenings and ledger.in_flight == 0


def test_a_second_fate_is_against_the_protocol():
    ledger = Ledger(0)
    acted(ledger, 0, 5)
    hear(ledger, ChunkPlayer(), status(1, 0, Disposition.DROPPED), 0, MS)
    hear(ledger, ChunkPlayer(), action(1, 0), 0, MS)
    assert [each.reason for each in ledger.happenings] == ["STATUS_FOR_NO_FRAME", "ACTION_FOR_NO_FRAME"]
    assert ledger.frames[0].fate is Fate.ACTED


def test_an_action_with_another_stamp_answers_nothing():
    ledger = Ledger(0)
    ledger.offer(7 * MS, 7 * MS)
    hear(ledger, ChunkPlayer(), action(1, 8 * MS), 0, 57 * MS)
    assert ledger.frames[0].fate is Fate.UNANSWERED and ledger.in_flight == 1
    assert [each.kind for each in ledger.happenings] == ["contradicted"]


def test_a_lost_stream_and_no_stream_are_distinguished():
    ledger = Ledger(0)
    ledger.offer(0, 0)
    ledger.lose()
    ledger.offer_in_vain(MS)
    ledger.offer(2 * MS, 2 * MS)
    assert [frame.reason for frame in ledger.frames] == [Reason.STREAM_LOST, Reason.DISCONNECTED, Reason.NO_ANSWER]


def test_a_range_disposes_of_all_its_frames_counted_from_the_stream():
    ledger = Ledger(0)
    disposed(ledger, 0, Disposition.REJECTED, "RATE_EXCEEDED")
    for due in (1, 2, 3):
        ledger.offer(due * MS, due * MS)
    hear(ledger, ChunkPlayer(), status(1, 3, Disposition.SUPERSEDED), 1, 9 * MS)
    assert [frame.fate for frame in ledger.frames] == [Fate.REJECTED, *[Fate.SUPERSEDED] * 3]
    hear(
        ledger,
        ChunkPlayer(),
        pb.ServerMessage(action=pb.Action(command=pb.COMMAND_HOLD, reason="WORKER_LOST")),
        1,
        9 * MS,
    )
    assert [(each.kind, each.reason) for each in ledger.happenings] == [("hold", "WORKER_LOST")]


def test_a_chunk_is_late_once_its_last_row_is():
    """Rows for 0, 20, 40 and 60 ms after the stamp, each with a limit of 100 ms from its own moment on."""
    for age_ms, missed in ((90, False), (159, False), (161, True)):
        ledger = Ledger(0)
        ledger.offer(0, 0)
        message = action(1, 0)
        message.action.max_age_ms, message.action.horizon, message.action.step_ms = 100, 4, 20.0
        hear(ledger, ChunkPlayer(), message, 0, age_ms * MS)
        assert ledger.frames[0].missed(None) is missed
