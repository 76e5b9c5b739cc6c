"""A worker without a network: a thread that speaks the front's messages and does what a test tells it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from edgeflow.contract import CameraNeed, Chunk, PassTimes, PolicyInputs, StageProgram
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
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
    WarmupProgress,
    WorkerFailed,
    WorkerReady,
)
from edgeflow.service.worker.process import Launched
from edgeflow_client.trajectory import ChunkReport
from edgeflow_client.types import ActionSchema

SCHEMA = ActionSchema(
    names=("x", "y", "grip"),
    units=("m", "m", "fraction"),
    low=(-1.0, -1.0, 0.0),
    high=(1.0, 1.0, 1.0),
    relative=(True, True, False),
)


QUICK_NS = (1_000,) * 5


def ready_message(pass_ns: Sequence[int] = QUICK_NS, stages: int = 3) -> WorkerReady:
    prefill_ns, two_prefills_ns, packed_ns, decode_ns, decodes_ns = pass_ns
    times = PassTimes(
        stages=stages,
        prefill_ns=prefill_ns,
        two_prefills_ns=two_prefills_ns,
        packed_ns=packed_ns,
        decode_ns=decode_ns,
        decodes_ns=decodes_ns,
    )
    return WorkerReady(
        model="demo",
        model_fingerprint="f" * 64,
        max_sessions=8,
        device="scripted",
        schema=SCHEMA,
        unnorm_keys=["a"],
        kv_bytes=0,
        prefill_rows=10,
        pass_times=times,
        inputs=ANY_CAMERA,
        programs=[StageProgram.tokens(times.stages)],
        bins=True,
    )


ANY_CAMERA = PolicyInputs(cameras=(CameraNeed(name="image", named=False),))


def good_values(frame: SubmitFrame) -> list[float]:
    return [0.25, -0.5, 1.0]


@dataclass
class Script:
    """What every worker of a test does; tests change it while workers run."""

    values: Callable[[SubmitFrame], list[float]] = good_values
    inputs: PolicyInputs = ANY_CAMERA
    schema: ActionSchema = SCHEMA
    continues: bool = False  # answers can continue chunks
    bridged_rows: int | None = None  # of an answer; None = as many as a real worker says of a policy without rtc
    warnings: list[str] = field(default_factory=list)
    report: Callable[[SubmitFrame], ChunkReport] = lambda _: ChunkReport()
    valid: bool = True
    passes: int = 3  # of each answer
    settled: int = 3  # of its three tokens
    stages: int = 3  # K, as told at start
    hold: bool = False  # frames wait until `release`
    never_ready: bool = False
    pass_ns: Sequence[int] = QUICK_NS  # prefill, two prefills, packed, decode, decodes: as measured at start
    max_sessions: int = 8  # rings that a worker says it has
    ran: tuple[int, int, int] | None = None  # every pass since: ns, prefills, decodes; None = packed, as at start
    fail: WorkerFailed | None = None
    reject: SessionRejected | None = None
    workers: list[ScriptedWorker] = field(default_factory=list)

    def launch(self) -> Launched:
        """For a Supervisor: another worker."""
        ours, theirs = socket.socketpair()
        worker = ScriptedWorker(self, theirs)
        self.workers.append(worker)
        worker.start()
        return Launched(ours, worker)

    @property
    def worker(self) -> ScriptedWorker:
        return self.workers[-1]


class ScriptedWorker:
    """One life; its process is a thread, and a kill closes its socket."""

    def __init__(self, script: Script, sock: socket.socket) -> None:
        self.seen: list[Message] = []
        self.held: deque[SubmitFrame] = deque()
        self.epochs: dict[int, int] = {}
        self.deaf = False  # nothing is answered, not even pings
        self._script = script
        self._channel = BlockingChannel(sock)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._lock = threading.Lock()

    def start(self) -> None:
        self._thread.start()

    def kill(self) -> None:
        self._channel.close()

    async def wait(self, timeout_s: float) -> str | None:
        await asyncio.to_thread(self._thread.join, timeout_s)
        return None if self._thread.is_alive() else "exit code 0"

    async def stacks(self) -> list[str]:
        return ["scripted"]

    def release(self, count: int = 1) -> None:
        """Answer the oldest held frames."""
        with self._lock:
            frames = [self.held.popleft() for _ in range(min(count, len(self.held)))]
        for frame in frames:
            self._answer(frame)

    def overtake(self, count: int = 1) -> None:
        """Give the oldest held frames up for a newer one."""
        with self._lock:
            frames = [self.held.popleft() for _ in range(count)]
        for frame in frames:
            self._give_up(frame, "superseded", "", "OVERTAKEN", "a newer frame was answered first")

    @property
    def _bridged_rows(self) -> int:
        bridged = self._script.bridged_rows
        return self._script.schema.horizon // 4 if bridged is None else bridged

    def submitted(self) -> list[SubmitFrame]:
        return [message for message in self.seen if isinstance(message, SubmitFrame)]

    def _run(self) -> None:
        try:
            if self._script.fail is not None:
                self._channel.send(self._script.fail)
                return
            self._channel.send(WarmupProgress("warm-up", 1, 1))
            if self._script.never_ready:
                self._channel.receive()
            ready = ready_message(self._script.pass_ns, self._script.stages)
            self._channel.send(
                replace(
                    ready,
                    max_sessions=self._script.max_sessions,
                    inputs=self._script.inputs,
                    schema=self._script.schema,
                    continues=self._script.continues,
                    bridged_rows=self._bridged_rows,
                    warnings=self._script.warnings,
                )
            )
            while self._handle(self._channel.receive()):
                pass
        except ChannelClosed:
            pass
        finally:
            self._channel.close()

    def _handle(self, message: Message) -> bool:
        self.seen.append(message)
        if self.deaf:
            return True
        match message:
            case Ping():
                pass_ns, prefills, decodes = self._script.ran or (self._script.pass_ns[2], 1, 2)
                pong = Pong(
                    nonce=message.nonce,
                    passes=3,
                    rows=30,
                    full_passes=1,
                    pass_ns=[pass_ns] * 30,
                    pass_prefills=[prefills] * 30,
                    pass_decodes=[decodes] * 30,
                    pass_whole=[False] * 30,
                )
                self._channel.send(pong)
            case OpenSession():
                self._open(message)
            case SubmitFrame():
                self._submit(message)
            case ResetSession():
                self._drop(message.session, message.epoch, "EPOCH_CHANGED")
            case CloseSession():
                self._drop(message.session, 1 << 62, "SESSION_CLOSED")
            case Shutdown():
                return False
        return True

    def _open(self, message: OpenSession) -> None:
        if self._script.reject is not None:
            rejection = self._script.reject
            self._channel.send(replace(rejection, session=message.session))
            return
        self._channel.send(SessionOpened(message.session, self._script.schema))

    def _submit(self, frame: SubmitFrame) -> None:
        if self._script.hold:
            with self._lock:
                self.held.append(frame)
        else:
            self._answer(frame)

    def _answer(self, frame: SubmitFrame) -> None:
        values, schema = self._script.values(frame), self._script.schema
        result = FrameResult(
            session=frame.session,
            epoch=frame.epoch,
            seq=frame.seq,
            chunk=Chunk(tuple(values), schema.horizon, schema.step_ms),
            token_ids=[7, 8, 9],
            valid=self._script.valid,
            queue_ns=10,
            inference_ns=20,
            passes=self._script.passes,
            settled=self._script.settled,
            report=self._script.report(frame),
        )
        self._channel.send(result)

    def _drop(self, session: int, epoch: int, reason: str) -> None:
        with self._lock:
            gone = [frame for frame in self.held if frame.session == session and frame.epoch < epoch]
            self.held = deque(frame for frame in self.held if frame not in gone)
        for frame in gone:
            self._give_up(frame, "dropped", "ABORTED", reason, "gone")

    def _give_up(self, frame: SubmitFrame, disposition: str, code: str, reason: str, text: str) -> None:
        self._channel.send(
            FrameDropped(
                session=frame.session,
                epoch=frame.epoch,
                seq=frame.seq,
                disposition=disposition,
                code=code,
                reason=reason,
                text=text,
            )
        )
