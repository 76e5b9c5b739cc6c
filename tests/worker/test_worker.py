"""The loop as the front sees it: messages in, messages out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgeflow.contract import Pace
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.control.profile import DeviceProfile, Pacer
from edgeflow.engine.policy import PreparedFrame
from edgeflow.ipc.messages import (
    CloseSession,
    FrameDropped,
    FrameResult,
    Message,
    OpenSession,
    Ping,
    Pong,
    ResetSession,
    SessionOpened,
    SessionRejected,
    Shutdown,
    SubmitFrame,
)
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.pace import rounds_of
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from tests.tiny_checkpoint import write_checkpoint

CPU = torch.device("cpu")
CAPACITY = 80
K = 7
PASS_NS = 1_000_000
IMAGES = np.random.default_rng(3).integers(0, 256, (40, 8, 10, 3), np.uint8)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    torch.set_num_threads(1)
    return load_openvla(write_checkpoint(tmp_path_factory.mktemp("tiny")), torch.float32, CPU)


class WorkerBench:
    """A worker, its clock and what it said."""

    def __init__(self, policy: OpenVLAPolicy, sessions: int = 2) -> None:
        limits = SchedulerLimits(policy.K, sessions, row_budget=1000, drain_after_ns=0, shift=Shift.ROTATE)
        self.clock = ManualClock()
        self.said: list[Message] = []
        profile = DeviceProfile(name="steady", prefill_ns=PASS_NS, decode_ns=PASS_NS, packed_ns=PASS_NS)
        pacer = Pacer(profile.times(K), self.clock, lambda seconds: self.clock.advance_ns(round(seconds * 1e9)))
        self.worker = Worker(
            PolicyEngine(policy, limits.slots, CAPACITY),
            Scheduler(limits),
            self.clock,
            self.said.append,
            pacer=pacer,
        )

    def tell(self, *messages: Message) -> None:
        for message in messages:
            self.worker.inbox.put(message)

    def run(self, passes: int) -> None:
        for _ in range(passes):
            self.worker.step()

    def drain(self) -> list[Message]:
        while self.worker.step():
            pass
        said, self.said[:] = list(self.said), []
        return said


def frame(seq: int, *, session: int = 1, epoch: int = 1, instruction: str = "go") -> SubmitFrame:
    image = IMAGES[seq % len(IMAGES)]
    return SubmitFrame(
        session=session,
        epoch=epoch,
        seq=seq,
        sizes=[image.shape[0], image.shape[1]],
        instruction=instruction,
        payload=image.tobytes(),
    )


def results(said: list[Message]) -> list[FrameResult]:
    return [message for message in said if isinstance(message, FrameResult)]


def drops(said: list[Message]) -> list[tuple[int, str, str]]:
    return [(m.seq, m.disposition, m.reason) for m in said if isinstance(m, FrameDropped)]


def test_a_session_opens_with_the_models_schema(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=""))
    (opened,) = bench.drain()
    assert isinstance(opened, SessionOpened)
    assert opened.session == 1
    assert opened.schema.names == ("x", "y", "z", "roll", "pitch", "yaw", "gripper")


def test_an_unknown_unnorm_key_and_a_full_house_are_rejected(policy):
    bench = WorkerBench(policy, sessions=1)
    bench.tell(
        OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="bridge"),
        OpenSession(session=2, epoch=1, pace=Pace(K), unnorm_key=""),
        OpenSession(session=3, epoch=1, pace=Pace(K), unnorm_key=""),
    )
    rejections = [(m.session, m.code) for m in bench.drain() if isinstance(m, SessionRejected)]
    assert rejections == [(1, "INVALID_ARGUMENT"), (3, "RESOURCE_EXHAUSTED")]


@pytest.mark.parametrize("depth", [1, 3, K])
def test_the_action_of_a_frame_is_that_of_serial_decoding(policy, depth: int):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(depth), unnorm_key=""))
    said: list[Message] = []
    for seq in range(1, 6):
        bench.tell(frame(seq))
        bench.run(rounds_of(depth, policy.K))
    said = bench.drain()
    engine = PolicyEngine(policy, policy.K, CAPACITY)
    frames = [PreparedFrame(policy.preprocess(IMAGES[seq]), policy.prompt_ids("go")) for seq in range(1, 6)]
    expected = [decoded.sampled.token_ids for decoded in decode_serially(engine, frames)]
    assert [tuple(result.token_ids) for result in results(said)] == expected
    for result in results(said):
        assert result.valid and result.passes == policy.K
        assert list(result.chunk.values) == policy.decode_actions(result.token_ids).tolist()


def test_times_are_those_of_the_passes(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key=""), frame(1))
    bench.run(1)
    bench.tell(frame(2))
    bench.worker.inbox.put(Ping(1))
    (first, second) = results(bench.drain())
    assert (first.queue_ns, first.inference_ns) == (0, policy.K * PASS_NS)
    assert second.inference_ns == policy.K * PASS_NS


def test_a_new_instruction_drops_frames_in_flight(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key=""), frame(1))
    bench.run(2)
    bench.tell(ResetSession(1, 2), frame(2, epoch=2, instruction="stop"))
    said = bench.drain()
    assert drops(said) == [(1, "dropped", "EPOCH_CHANGED")]
    assert [(result.seq, result.epoch) for result in results(said)] == [(2, 2)]


def test_closing_frees_the_ring(policy):
    bench = WorkerBench(policy, sessions=1)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key=""), frame(1))
    bench.run(2)
    bench.tell(CloseSession(1), OpenSession(session=2, epoch=1, pace=Pace(K), unnorm_key=""), frame(1, session=2))
    said = bench.drain()
    assert drops(said) == [(1, "dropped", "SESSION_CLOSED")]
    assert [result.session for result in results(said)] == [2]


def test_a_superseded_frame_is_reported(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key=""), frame(1), frame(2))
    said = bench.drain()
    assert drops(said) == [(1, "superseded", "SUPERSEDED")]
    assert [result.seq for result in results(said)] == [2]


def test_an_instruction_longer_than_the_slots_is_rejected_and_the_next_frame_answered(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key=""), frame(1, instruction="x" * CAPACITY))
    assert drops(bench.drain()) == [(1, "rejected", "INSTRUCTION_TOO_LONG")]
    short = policy.prompt_ids("")
    assert len(short) + policy.fixed_rows + policy.K <= CAPACITY, "the fixture must leave room"
    bench.tell(frame(2, instruction=""))
    assert [result.seq for result in results(bench.drain())] == [2]


def test_a_session_whose_instruction_is_longer_than_the_slots_is_rejected(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", instruction="x" * CAPACITY))
    (rejected,) = bench.drain()
    assert isinstance(rejected, SessionRejected)
    assert (rejected.code, rejected.field, rejected.reason) == (
        "INVALID_ARGUMENT",
        "instruction",
        "INSTRUCTION_TOO_LONG",
    )
    limit = CAPACITY - policy.fixed_rows - policy.K
    assert rejected.text.startswith("instruction: has ") and rejected.text.endswith(
        f"prompt tokens; the limit is {limit}"
    )


def test_a_ping_is_answered_with_the_counts(policy):
    bench = WorkerBench(policy)
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key=""), frame(1))
    bench.drain()
    bench.tell(Ping(42))
    (pong,) = bench.drain()
    assert isinstance(pong, Pong)
    assert (pong.nonce, pong.passes, pong.pass_ns) == (42, policy.K, [PASS_NS] * policy.K)


def test_shutdown_ends_the_loop(policy):
    bench = WorkerBench(policy)
    bench.tell(Shutdown())
    bench.worker.run()
    assert not bench.worker.running


def test_the_front_going_ends_the_loop(policy):
    bench = WorkerBench(policy)
    bench.worker.inbox.close()
    bench.worker.run()
