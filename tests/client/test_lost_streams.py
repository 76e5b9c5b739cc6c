"""The client after a lost stream, a service that goes wrong, and its own mistakes."""

import threading

import grpc
import pytest

from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.link import Link
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.errors import Aborted
from edgeflow_client.pose import identity
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.types import Command
from tests.client.conftest import IMAGE
from tests.client.scripted import Refuse, Talk, answer_all

MANY = 100  # frames pushed at once, most of which are superseded


def test_a_lost_stream_is_followed_by_a_new_one(serve, connect, eventually):
    first = serve(answer_all)
    with connect(first) as client:
        for _ in range(MANY):
            client.push(IMAGE, pose=identity())
        eventually(lambda: client.latest().command is Command.ACT)
        first.stop()
        eventually(lambda: client.latest().reason == "DISCONNECTED")
        second = serve(answer_all, first.port)

        pushed = 0

        def resumed() -> bool:
            nonlocal pushed
            pushed += 1
            if client.latest().needs_reset:  # this machine took longer than 2 s
                client.reset()
            client.push(IMAGE, pose=identity())
            return client.latest().command is Command.ACT

        eventually(resumed)
        counts = client.statistics()
        assert counts.reconnects == 1
        assert counts.actions >= 2
    opening = second.heard.get(timeout=60)
    assert opening.HasField("open")
    assert second.heard.get(timeout=60).frame.seq <= min(pushed, MANY)  # a new stream counts from the start


def test_a_stream_that_ends_for_too_many_frames_is_replaced_and_logged_once(serve, connect, eventually, caplog):
    def flooded_twice(talk: Talk) -> None:
        if talk.number <= 2:
            talk.open()
            talk.act(next(talk.frames()))
            raise Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many", edgeflow_reason="rate_exceeded")
        answer_all(talk)

    server = serve(flooded_twice)
    with connect(server) as client:

        def comes_back() -> bool:
            client.push(IMAGE)
            return server.streams == 3 and client.statistics().reconnects == 2

        eventually(comes_back)
    (told,) = [each.message for each in caplog.records if "declared rate" in each.message]
    assert "RateKeeper" in told


def test_a_session_that_an_operator_ended_is_not_replaced(serve, connect, eventually):
    def ended(talk: Talk) -> None:
        talk.open()
        talk.act(next(talk.frames()))
        raise Refuse(grpc.StatusCode.ABORTED, "an operator ended the session: lunch", edgeflow_reason="operator_ended")

    server = serve(ended)
    with connect(server) as client:
        client.push(IMAGE)
        eventually(lambda: client.latest().reason == "REFUSED")
        with pytest.raises(Aborted, match="lunch"):
            client.push(IMAGE)
        assert server.streams == 1


def test_a_service_that_no_longer_says_anything_is_given_up(serve, connect, eventually):
    def deaf(talk: Talk) -> None:
        talk.open()
        talk.stall()

    clock, server = ManualClock(1), serve(deaf)
    with connect(server, clock=clock) as client:
        for _ in range(10):
            client.push(IMAGE)
        clock.advance_ns(5_100_000_000)
        eventually(lambda: client.latest().reason == "DISCONNECTED")
        client.push(IMAGE)
        eventually(lambda: server.streams == 2)


def test_an_epoch_that_cannot_be_ends_the_stream_and_another_follows(serve, connect, eventually):
    def wrong(talk: Talk) -> None:
        talk.open()
        if talk.number == 1:
            talk.say(notice=pb.Notice(kind="epoch", epoch=2**63))
        for frame in talk.frames():
            talk.act(frame)

    with connect(serve(wrong)) as client:
        eventually(lambda: client.latest().reason == "DISCONNECTED")

        def acts() -> bool:
            client.push(IMAGE)
            return client.latest().command is Command.ACT

        eventually(acts)


def test_a_silent_robot_does_not_reconnect_until_it_has_something_to_say(serve, connect, eventually):
    ends = threading.Event()

    def hang_up(talk: Talk) -> None:
        talk.open()
        ends.set()

    server, control = serve(hang_up), serve(hang_up)
    with connect(server) as client, connect(control) as talkative:
        assert ends.wait(60)
        eventually(lambda: client.latest().reason == "DISCONNECTED")

        def comes_back() -> bool:
            talkative.push(IMAGE)
            return control.streams == 3

        eventually(comes_back)
        assert server.streams == 1
        client.push(IMAGE)
        eventually(lambda: server.streams == 2)


@pytest.mark.parametrize("wait", ["1.5", "abc"])
def test_a_trailer_without_a_number_does_not_end_the_link(serve, connect, eventually, wait):
    def busy_once(talk: Talk) -> None:
        if talk.number == 1:
            raise Refuse(grpc.StatusCode.UNAVAILABLE, "starting", retry_after_ms=wait)
        if talk.number == 2:
            talk.open()
            talk.act(next(talk.frames()))
            raise Refuse(grpc.StatusCode.UNAVAILABLE, "draining", retry_after_ms=wait)
        answer_all(talk)

    server = serve(busy_once)
    with connect(server) as client:

        def comes_back() -> bool:
            client.push(IMAGE)
            return server.streams == 3 and client.statistics().reconnects == 1

        eventually(comes_back)


@pytest.mark.parametrize("broken", ["stream_opened", "stream_message", "stream_ended"])
def test_a_mistake_in_the_links_thread_means_hold_and_another_attempt(
    serve, connect, eventually, monkeypatch, caplog, broken
):
    works, breaks = getattr(ClientSession, broken), iter([None])

    def once(session: ClientSession, *arguments) -> object:
        if next(breaks, "no more") is None:
            raise RuntimeError("a mistake of ours")
        return works(session, *arguments)

    monkeypatch.setattr(ClientSession, broken, once)

    def end_first(talk: Talk) -> None:
        if talk.number == 1 and broken == "stream_ended":
            talk.open()
        else:
            answer_all(talk)

    server = serve(end_first)
    with connect(server) as client:

        def acts() -> bool:
            client.push(IMAGE)
            return server.streams == 2 and client.latest().command is Command.ACT

        eventually(acts)
        assert client.statistics().reconnects == (0 if broken == "stream_opened" else 1)
    assert caplog.text.count("RuntimeError: a mistake of ours") == 1
    assert "unexpected RuntimeError in the link" in caplog.text


def test_a_mistake_while_writing_means_hold_and_another_attempt(serve, connect, eventually, monkeypatch, caplog):
    works, breaks = OutgoingMessages._take, iter([False, True])

    def second_time(outgoing: OutgoingMessages) -> object:
        if next(breaks, False):
            raise RuntimeError("a mistake of ours")
        return works(outgoing)

    monkeypatch.setattr(OutgoingMessages, "_take", second_time)
    server = serve(answer_all)
    with connect(server) as client:

        def acts() -> bool:
            client.push(IMAGE)
            return server.streams == 2 and client.latest().command is Command.ACT

        eventually(acts)
    assert caplog.text.count("RuntimeError: a mistake of ours") == 1


def test_a_mistake_in_the_watchdog_does_not_end_it(serve, connect, eventually, monkeypatch, caplog):
    works, breaks = Link.check, iter([None])

    def once(link: Link) -> None:
        if next(breaks, "no more") is None:
            raise RuntimeError("a mistake of ours")
        works(link)

    def act_once(talk: Talk) -> None:
        talk.open()
        talk.act(next(talk.frames()))
        talk.stall()

    monkeypatch.setattr(Link, "check", once)
    seen = []
    with connect(serve(act_once), on_action=seen.append) as client:
        client.push(IMAGE)
        eventually(lambda: any(directive.reason == "SILENCE" for directive in seen))
    assert "unexpected RuntimeError in the watchdog" in caplog.text
