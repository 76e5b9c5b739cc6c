"""Observations before the newest: chosen by stamp, the same whoever shares passes, forgotten at the right moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, ObservationWindow, Pace, PolicyInputs
from edgeflow.engine.control.history import SessionHistory, kept_bytes, picked
from edgeflow.engine.control.warmup import warm_up
from edgeflow.ipc.messages import (
    CloseSession,
    FrameDropped,
    FrameResult,
    OpenSession,
    ResetSession,
    SubmitFrame,
)
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import FailedPrecondition
from tests.engine.control.small_policy import INPUTS, SmallFeatures, SmallPolicy
from tests.engine.control.test_one_pass import OnePassBench, engine_of, frame

MS = 1_000_000


class Remembering(SmallPolicy):
    """Answers change with the last three observations, 100 ms apart, the gaps between them, and the frames that a
    session has had. begun, ended: sessions.
    """

    inputs = PolicyInputs(cameras=INPUTS.cameras, state=INPUTS.state, history=3, history_step_ms=100.0)

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.windows: list[tuple[int, ...]] = []
        self.batches: list[int] = []
        self._frames: dict[int, int] = {}

    def begin(self, session: int) -> None:
        self.begun.append(session)
        self._frames[session] = 0

    def end(self, session: int) -> None:
        self.ended.append(session)
        del self._frames[session]

    def prepare(self, observation: Observation) -> tuple[int, SmallFeatures]:
        if observation.instruction == "dark":
            raise FailedPrecondition("is too dark", field="frame.images", reason="TOO_DARK")
        return observation.session, super().prepare(observation)

    def joined(self, window: ObservationWindow) -> SmallFeatures:
        self.windows.append(window.gaps_ns)
        (session, newest), weights = window.frames[-1], (0.25, 0.5, 1.0)
        self._frames[session] += 1
        features = sum(weight * each.features for weight, (_, each) in zip(weights, window.frames, strict=True))
        moved = sum(window.gaps_ns) / 1e9 + self._frames[session]
        return SmallFeatures(features + moved, newest.words)

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:
        """Frame by frame, so that sums do not depend on the batch."""
        self.batches.append(len(batch[0]))
        return torch.cat([SmallPolicy.run(self, [row[None]], on_host=on_host) for row in batch[0]])


def sent(session: int, seq: int, at_ms: int, **changed: object) -> SubmitFrame:
    message = frame(1, seq)  # the same pixels for every robot
    fields = {name: getattr(message, name) for name in ("epoch", "sizes", "state", "instruction", "payload")}
    return SubmitFrame(**{**fields, "session": session, "seq": seq, "stamp_ns": at_ms * MS, **changed})


class History:
    """What one robot sends, in bursts between passes."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.bursts: list[list[tuple[str, int, dict]]] = []
        seq, at_ms, epoch = 0, 0, 1
        for _ in range(12):
            burst: list[tuple[str, int, dict]] = []
            for _ in range(random.integers(0, 4)):  # of several frames only the last is answered
                seq, at_ms = seq + 1, at_ms + int(random.choice([10, 40, 100, 250]))
                if random.random() < 0.1:
                    epoch += 1
                    burst.append(("reset", epoch, {}))
                rested = bool(random.random() < 0.1)
                burst.append(("frame", seq, {"epoch": epoch, "at_ms": at_ms, "rested": rested}))
            self.bursts.append(burst)


def answers_of(robots: dict[int, History], policy: Remembering) -> dict[int, list[tuple]]:
    """The answers of each robot, all of them served by one worker."""
    bench, found = OnePassBench(policy, sessions=len(robots)), {session: [] for session in robots}
    bench.drain()
    for turn in range(12):
        for session, history in robots.items():
            for kind, number, fields in history.bursts[turn]:
                if kind == "reset":
                    bench.worker.inbox.put(ResetSession(session, number))
                else:
                    bench.worker.inbox.put(sent(session, number, **fields))
        for message in bench.drain():
            if isinstance(message, FrameResult):
                found[message.session].append((message.seq, message.chunk.values))
    return found


class Leaking(Remembering):
    """Frames of a batch get each other's answers."""

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:
        return super().run([torch.roll(batch[0], 1, 0), *batch[1:]], on_host=on_host)


@pytest.mark.parametrize("kind", [Remembering, Leaking])
def test_four_robots_in_packed_passes_get_the_bits_of_one_alone(kind: type[Remembering]):
    histories, policy = {session: History(session) for session in (1, 2, 3, 4)}, kind()
    together = answers_of(histories, policy)
    assert policy.batches.count(4) > 1 and min(map(len, together.values())) > 4
    differ = 0
    for session, history in histories.items():
        (alone,) = answers_of({1: history}, kind()).values()
        scale = 1.0 if session % 2 else 0.5  # odd sessions have the numbers doubled, which is exact
        assert [seq for seq, _ in alone] == [seq for seq, _ in together[session]]
        pairs = zip(alone, together[session], strict=True)
        differ += sum(tuple(np.asarray(wanted) * scale) != found for (_, wanted), (_, found) in pairs)
    assert (differ > 0) == (kind is Leaking)


def windows(*messages: SubmitFrame | ResetSession | CloseSession) -> Remembering:
    policy = Remembering()
    bench = OnePassBench(policy, sessions=1)
    bench.drain()
    for message in messages:
        bench.worker.inbox.put(message)
        bench.drain()
    return policy


def test_the_window_has_the_gaps_and_begins_anew_at_reset_and_hold():
    policy = windows(
        sent(1, 1, 0),
        sent(1, 2, 100),
        sent(1, 3, 230),
        sent(1, 4, 300, rested=True),
        sent(1, 5, 400),
        ResetSession(1, 2),
        sent(1, 6, 500, epoch=2),
    )
    gaps = [(0, 0), (0, 100), (100, 130), (0, 0), (0, 100), (0, 0)]
    assert policy.windows == [tuple(each * MS for each in pair) for pair in gaps]
    assert policy.begun == [1, 2, 3] and policy.ended == [1, 2]


def test_a_session_ends_with_its_ring():
    policy = windows(sent(1, 1, 0), CloseSession(1))
    assert policy.begun == policy.ended == [1]


def test_observations_between_passes_count_and_those_of_a_fast_camera_are_thinned():
    policy = Remembering()
    bench = OnePassBench(policy, sessions=1)
    bench.drain()
    for seq, at_ms in enumerate(range(0, 400, 10), start=1):
        bench.worker.inbox.put(sent(1, seq, at_ms))
    said = bench.drain()
    assert sum(isinstance(each, FrameDropped) for each in said) == 39
    assert policy.windows == [(120 * MS, 90 * MS)]  # every third is kept: those at 180, 300 and 390 ms


def test_an_observation_that_the_policy_rejects_does_not_count():
    bench = OnePassBench(Remembering(), sessions=1)
    bench.drain()
    bench.worker.inbox.put(sent(1, 1, 0))
    bench.drain()
    bench.worker.inbox.put(sent(1, 2, 100, instruction="dark"))
    bench.worker.inbox.put(sent(1, 3, 200))  # supersedes it before anyone has seen that it is dark
    results = [each for each in bench.drain() if isinstance(each, FrameResult)]
    assert [each.seq for each in results] == [3]


def test_a_frame_that_is_rejected_still_ends_what_came_before_a_hold():
    policy = Remembering()
    bench = OnePassBench(policy, sessions=1)
    bench.drain()
    long = {"instruction": "one two three four", "rested": True}
    for message in (sent(1, 1, 0), sent(1, 2, 100), sent(1, 3, 200, **long), sent(1, 4, 300)):
        bench.worker.inbox.put(message)
        bench.drain()
    assert policy.windows == [(0, 0), (0, 100 * MS), (0, 0)]
    assert policy.ended == [1]


def test_answers_do_not_depend_on_when_a_rejected_observation_was_looked_at():
    class LightOnly(Remembering):
        def joined(self, window: ObservationWindow) -> tuple[int, ...]:
            return window.gaps_ns

    def gaps(looked_at: int) -> tuple[int, ...]:
        history = SessionHistory(LightOnly(), count(1))
        messages = [sent(1, seq, 100 * seq, instruction="dark" if seq in (2, 3) else "go") for seq in range(1, 6)]
        for message in messages:
            history.add(message)
            if message.seq == looked_at:
                with pytest.raises(FailedPrecondition):
                    history.prompt(message)
        return history.prompt(messages[-1])

    assert gaps(0) == gaps(2) == gaps(3) == (0, 100 * MS)  # of the two that are left


@pytest.mark.parametrize(
    ("most_ms", "start_ns", "taken_ms"),
    [(0.0, 300 * MS, 0.0), (500.0, 0, 0.0), (500.0, 300 * MS, 300.0), (500.0, 700 * MS, 500.0), (500.0, -1, 0.0)],
)
def test_a_policy_takes_the_delay_that_it_asks_for(most_ms: float, start_ns: int, taken_ms: float):
    delays: dict[str, list[float]] = {"alone": [], "prepared": [], "joined": []}

    class Unremembering(SmallPolicy):
        inputs = replace(INPUTS, most_delay_ms=most_ms)

        def prepare(self, observation: Observation) -> SmallFeatures:
            delays["alone"].append(observation.delay_ms)
            return super().prepare(observation)

    class Windowed(Remembering):
        inputs = replace(Remembering.inputs, most_delay_ms=most_ms)

        def prepare(self, observation: Observation) -> tuple[int, SmallFeatures]:
            delays["prepared"].append(observation.delay_ms)
            return super().prepare(observation)

        def joined(self, window: ObservationWindow) -> SmallFeatures:
            delays["joined"].append(window.delay_ms)
            return super().joined(window)

    for policy in (Unremembering(), Windowed()):
        history, message = SessionHistory(policy, count(1)), sent(1, 1, 100, start_delay_ns=start_ns)
        history.add(message)
        history.prompt(message)
    assert delays == {"alone": [taken_ms], "prepared": [0.0], "joined": [taken_ms]}


def test_the_memory_of_a_history_is_counted():
    assert kept_bytes(INPUTS) == 0
    wanted = kept_bytes(PolicyInputs(cameras=(CameraNeed(name="top"),), history=2), side=32)
    assert wanted == 2 * 32 * 32 * 3 * 4
    wide = CameraNeed(name="top", width=64, height=48)
    for step_ms, kept in ((0.0, 4), (50.0, 16)):
        inputs = PolicyInputs(cameras=(wide,), history=4, history_step_ms=step_ms)
        assert kept_bytes(inputs) == kept * 64 * 48 * 3 * 4


def naive(stamps: Sequence[int], length: int, step_ns: int) -> list[int]:
    """The choice among all observations that ever arrived, in the words of `picked`."""
    chosen = [stamps[-1]]
    while len(chosen) < length:
        older = [each for each in stamps if each < chosen[-1]]
        wanted = stamps[-1] - len(chosen) * step_ns
        if not older:
            chosen.append(chosen[-1])
        elif not step_ns:
            chosen.append(max(older))
        else:
            chosen.append(min(older, key=lambda each: (abs(each - wanted), each)))
    return chosen[::-1]


@given(st.lists(st.integers(25, 300), min_size=1, max_size=20), st.integers(2, 5), st.sampled_from([0, 100]))
def test_what_is_kept_suffices(gaps_ms: list[int], length: int, step_ms: int):
    class Few(Remembering):
        inputs = PolicyInputs(
            cameras=INPUTS.cameras, state=INPUTS.state, history=length, history_step_ms=float(step_ms)
        )

        def joined(self, window: ObservationWindow) -> tuple[int, ...]:
            return window.gaps_ns

    history, stamps = SessionHistory(Few(), count(1)), []
    for seq, gap_ms in enumerate(gaps_ms, start=1):
        stamps.append((stamps[-1] if stamps else 0) + gap_ms * MS)
        message = sent(1, seq, stamps[-1] // MS)
        history.add(message)
        wanted = naive(stamps, length, step_ms * MS)
        assert history.prompt(message) == tuple(np.diff(wanted).tolist())
        assert len(history._seen) <= length + 4 * length
    assert picked(stamps, 1, step_ms * MS) == [len(stamps) - 1]


def test_a_policy_with_state_passes_the_warm_up_and_keeps_no_session_of_it():
    policy = Remembering()
    warm_up(engine_of(policy), Shift.ROTATE, lambda step, done, total: None)
    assert sorted(policy.begun) == sorted(policy.ended) and policy.begun


def test_a_session_that_opens_again_knows_nothing_of_the_one_before():
    again = OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key="doubled")
    bench = OnePassBench(Remembering(), sessions=1)
    bench.drain()
    answers = []
    for messages in ([sent(1, 1, 0)], [CloseSession(1), again, sent(1, 1, 0)]):
        for message in messages:
            bench.worker.inbox.put(message)
        answers += [each.chunk.values for each in bench.drain() if isinstance(each, FrameResult)]
    assert answers[0] == answers[1]
