"""The verdicts of the scenarios bodies, children and cheat on known measurements, and their attacks."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import socket
import threading
from contextlib import closing

import pytest
from PIL import Image

from benchmarks.chaos import bodies, bodies_attack, cheat, children, service
from benchmarks.chaos.bodies import Size
from benchmarks.chaos.interference import (
    QUIET,
    Bars,
    Observer,
    RobotHistory,
    Spans,
    TimeBlock,
    ages_ms,
    holds,
    rate_hz,
    undisturbed,
    verdict,
)
from benchmarks.chaos.process_facts import children as children_of
from benchmarks.chaos.process_facts import command, data_size, name, resident, state
from benchmarks.chaos.rules import MIB
from benchmarks.chaos.service import ServiceUnderTest
from edgeflow_client.actions import Directive
from edgeflow_client.types import Command

S = 1_000_000_000
SPANS = [
    TimeBlock(0, 10 * S, QUIET),
    TimeBlock(10 * S, 20 * S, "x"),
    TimeBlock(30 * S, 40 * S, QUIET),
    TimeBlock(40 * S, 50 * S, "x"),
]


def track(quiet_hz: int, beside_hz: int, quiet_ms: float = 50.0, beside_ms: float = 50.0) -> RobotHistory:
    """A robot with these rates and ages in the two kinds of blocks."""
    actions = []
    for span in SPANS:
        rate, age_ms = (quiet_hz, quiet_ms) if span.kind == QUIET else (beside_hz, beside_ms)
        step = S // rate
        actions += [(at_ns, round(age_ms * 1e6)) for at_ns in range(span.start_ns, span.end_ns, step)]
    return RobotHistory(actions)


def met(tracks: list[RobotHistory], bars: Bars) -> list[bool]:
    return [row.met for row in verdict("robot", tracks, SPANS, "x", bars)]


def test_rates_and_ages_are_taken_within_their_blocks():
    seen = track(20, 10, 50, 80)
    seen.actions.append((25 * S, 9 * S))  # between two blocks
    assert (rate_hz([seen], SPANS, QUIET), rate_hz([seen], SPANS, "x")) == (20, 10)
    assert set(ages_ms([seen], SPANS, "x")) == {80}
    assert [row.value for row in undisturbed("robot", [seen], SPANS)] == [20, 50]
    assert math.isnan(rate_hz([seen], SPANS, "nothing"))


def test_the_slowest_robot_counts():
    assert rate_hz([track(20, 20), track(20, 5)], SPANS, "x") == 5
    assert met([track(20, 20), track(20, 5)], Bars(rise_ms=10)) == [False, True, True]


@pytest.mark.parametrize(("beside_hz", "rate_met"), [(100, True), (99, True), (96, False)])
def test_a_rate_may_be_two_per_cent_lower(beside_hz, rate_met):
    assert met([track(100, beside_hz)], Bars(rise_ms=10))[0] == rate_met


def test_the_larger_bar_of_the_age_applies():
    bars = Bars(rise_ms=3, rise_percent=10)
    assert met([track(20, 20, 10, 13)], bars)[2]
    assert not met([track(20, 20, 10, 13.1)], bars)[2]
    assert met([track(20, 20, 100, 109)], bars)[2]
    assert not met([track(20, 20, 100, 111)], bars)[2]


def test_a_robot_that_never_acted_meets_no_bar():
    assert met([RobotHistory()], Bars(rise_ms=10)) == [False, True, False]


def test_an_honest_neighbour_is_only_reported():
    spans = Spans(
        [TimeBlock(each.start_ns, each.end_ns, cheat.HONEST if each.kind == "x" else QUIET) for each in SPANS]
    )
    slow = [track(20, 2)]
    assert all(row.bar is None for row in cheat.judged(slow, spans, cheat.HONEST))
    assert not all(row.met for row in verdict("robot", slow, spans.all, cheat.HONEST, cheat.BARS))


def test_blocks_are_recorded_as_they_pass():
    spans, turns = Spans(), []
    spans.wait("x", 0.01, lambda: turns.append(1))
    (span,) = spans.all
    assert span.kind == "x"
    assert span.end_ns - span.start_ns >= 10_000_000
    assert turns


def test_the_observer_notes_a_hold_once_and_not_the_first_one():
    seen = RobotHistory()
    observer = Observer(seen)
    for command_, reason in ((Command.HOLD, "START"), (Command.ACT, ""), (Command.HOLD, "SILENCE")):
        observer(Directive(command_, reason))
    observer(Directive(Command.HOLD, "SILENCE"))
    assert [reason for _, reason in seen.holds] == ["SILENCE"]


def test_holds_count_in_their_blocks():
    seen = RobotHistory(holds=[(5 * S, "A"), (15 * S, "B"), (25 * S, "C")])
    assert holds([seen], SPANS, "x") == ["B"]
    rows = {row.what: row for row in children.robots_rows([seen], Spans(SPANS), "x")}
    assert not rows["gRPC robots: HOLDs beside x"].met


@pytest.mark.parametrize(
    ("kind", "seconds", "good"),
    [("kills", 2.4, True), ("kills", 2.6, False), ("stops", 4.9, True), ("no memory", math.nan, False)],
)
def test_a_child_that_answers_late_or_never(kind, seconds, good):
    assert children.answer_rows(kind, "chat", [0.5, seconds])[-1].met == good


def sizes(process: str, kind: str, *mib: float) -> list[Size]:
    return [Size(process, kind, 7, round(each * MIB)) for each in mib]


def test_control_grows_from_the_first_half_of_the_attacks_to_the_second():
    seen = sizes("control", bodies.WARM_UP, 50, 90) + sizes("control", "x", 100, 100)
    seen += sizes("control", QUIET, 500) + sizes("control", "x", 102, 102) + sizes("gateway", "x", 700)
    assert bodies.control_growth(seen) == 2 * MIB
    assert math.isnan(bodies.control_growth([]))


def test_a_child_grows_from_its_first_size_to_its_largest():
    seen = sizes("chat", QUIET, 100) + sizes("chat", "x", 130, 110) + sizes("chat", QUIET, 300)
    assert bodies.child_growth(seen, "chat") == 30 * MIB
    assert math.isnan(bodies.child_growth(seen, "gateway"))


def test_every_block_has_its_own_addresses():
    found = [bodies.sources(turn, 3) for turn in range(4)]
    assert len(set(itertools.chain(*found))) == 12
    assert bodies.ROBOT_ADDRESS not in itertools.chain(*found)


def test_the_bodies_have_the_size_of_the_attack():
    large = bodies_attack.keys_body(bodies_attack.KEYS, bodies_attack.LARGE_BYTES)
    assert 8_000_000 < len(large) <= bodies_attack.LARGE_BYTES
    assert large.count(b":") == bodies_attack.KEYS
    assert json.loads(bodies_attack.keys_body(100, 1000)).keys() == {f"{each:x}" for each in range(100)}
    assert len(json.loads(bodies_attack.keys_body(100, 200))) < 100
    assert json.loads(bodies_attack.parts_body(3))["messages"][0]["content"] == [{}] * 3
    assert 190_000 < len(bodies_attack.parts_body(bodies_attack.PARTS)) < 200_000


def test_a_sender_counts_answers_and_missing_ones():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = bodies_attack.Sender(server.getsockname()[1], "127.0.0.2", "/v1/act", b"x" * 100, held_back=False)
        running = threading.Thread(target=sender.run)
        running.start()
        for said in (b"HTTP/1.1 413 no\r\ncontent-length: 0\r\n\r\n", b""):
            link, (address, _) = server.accept()
            with closing(link):
                received = b""
                while not received.endswith(b"x" * 100):
                    received += link.recv(1 << 16)
                if not said:
                    sender.stopped.set()
                link.sendall(said)
        running.join()
    assert address == "127.0.0.2"
    assert sender.answers == {413: 1, bodies_attack.NO_ANSWER: 1}


def test_messages_of_cheats():
    over = list(itertools.islice(cheat.frames(cheat.SMALL, b"picture", 1.0, 1000.0), 4))
    assert over[0].open.control_period_ms == 1000
    assert [each.frame.seq for each in over[1:]] == [1, 2, 3]
    messages = list(itertools.islice(cheat.everything(b"picture", seed=1), 300))
    kinds = [each.WhichOneof("kind") for each in messages]
    assert kinds.count("reset") > 200
    assert kinds.count("open") > 20
    instructions = [each.frame.instruction for each in messages if each.WhichOneof("kind") == "frame"]
    assert len(set(instructions)) == len(instructions) > 1
    again = list(itertools.islice(cheat.everything(b"picture", seed=1), 300))
    assert [each.frame.instruction for each in again if each.WhichOneof("kind") == "frame"] == instructions


def test_the_big_picture_is_legal_and_progressive():
    data = cheat.big_picture(seed=0)
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (2000, 2000)
        assert image.info["progressive"]
    assert 500_000 < len(data) < 1_000_000


def test_the_children_of_a_service_are_found_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ServiceUnderTest, "pid", 1)
    started = {1: [10, 20], 10: [30, 40], 20: []}
    names = {10: "ef-forks", 20: "python", 30: "ef-gateway", 40: "ef-chat"}
    monkeypatch.setattr(service, "children", started.__getitem__)
    monkeypatch.setattr(service, "name", names.__getitem__)
    observed = ServiceUnderTest({})
    observed._folder.cleanup()
    assert [observed.child(role) for role in ("gateway", "chat", "other")] == [30, 40, None]
    assert observed.fork_server() == 10


def test_facts_of_a_process_and_of_one_that_is_gone():
    assert resident(os.getpid()) > MIB
    assert data_size(os.getpid()) > 0
    assert state(os.getpid()) in "RS"
    assert command(os.getpid())
    assert name(os.getpid())
    gone = 1 << 22  # beyond the largest process id
    assert (resident(gone), data_size(gone), state(gone), command(gone)) == (0, 0, "X", [])
    assert (name(gone), children_of(gone)) == ("", [])
