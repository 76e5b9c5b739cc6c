"""The one loop that owns the device: drain, plan, launch, commit the previous, publish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edgeflow.clock import Clock
from edgeflow.engine.chat import ChatPlane
from edgeflow.engine.engine import LaunchedPass, PolicyEngine
from edgeflow.engine.inbox import Inbox
from edgeflow.engine.policy import PreparedFrame
from edgeflow.engine.profile import Pacer
from edgeflow.errors import InvalidArgument, RequestError
from edgeflow.ipc.messages import (
    INSTRUCTION_TOO_LONG,
    ChangeDepth,
    ChatStart,
    ChatStop,
    CloseSession,
    FrameDropped,
    FrameResult,
    Message,
    OpenSession,
    Ping,
    Pong,
    ResetSession,
    SessionOpened,
    SessionRefused,
    Shutdown,
    SubmitFrame,
    schema_fields,
)
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.engine import Sampled
from edgeflow.scheduler.gaps import Gaps
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Pass
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Disposition

_DEPARTURES = {
    Leaving.SUPERSEDED: (
        Disposition.SUPERSEDED,
        "",
        "SUPERSEDED",
        "a newer frame came before this one was started",
    ),
    Leaving.EPOCH_CHANGED: (
        Disposition.DROPPED,
        "ABORTED",
        "EPOCH_CHANGED",
        "the instruction or episode changed while this frame was under way",
    ),
    Leaving.CLOSED: (Disposition.DROPPED, "CANCELLED", "SESSION_CLOSED", "the session was closed"),
}


CHAT_PATIENCE_NS = 250_000_000  # beside robots that leave no gap, chat gets a step this often
KEPT_PASSES = 4096  # between two questions of the front


@dataclass(slots=True)
class _Track:
    """Times of a frame between its arrival and its action."""

    arrived_ns: int
    started_ns: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a session was opened with. deadline_ns: from a frame's arrival."""

    unnorm_key: str | None
    deadline_ns: int


class Worker:
    """Turns messages of the front into passes and answers. One thread calls `step`; `inbox` may be fed by another."""

    def __init__(
        self,
        engine: PolicyEngine,
        scheduler: Scheduler,
        clock: Clock,
        publish: Callable[[Message], None],
        *,
        default_unnorm_key: str = "",
        pacer: Pacer | None = None,
        chat: ChatPlane | None = None,
    ) -> None:
        self.inbox = Inbox()
        self.running = True
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock
        self._publish = publish
        self._default_unnorm_key = default_unnorm_key
        self._pacer = pacer
        self._chat = chat
        if chat is not None:
            chat.wake = self.inbox.wake
        self._gaps = Gaps(CHAT_PATIENCE_NS)
        self._opened: dict[int, _Opened] = {}
        self._waiting: dict[FrameRef, SubmitFrame] = {}
        self._tracks: dict[FrameRef, _Track] = {}
        self._launched: deque[LaunchedPass] = deque()
        self._passes: deque[PassSample] = deque(maxlen=KEPT_PASSES)
        self._prompt_ids = lru_cache(maxsize=64)(engine.policy.prompt_ids)

    def run(self) -> None:
        """Until told to shut down or the front goes."""
        while self.running and not self.inbox.closed:
            if not self.step() and self.running:
                self.inbox.wait(self._idle_timeout_s())

    def step(self) -> bool:
        """One turn of the loop; False when there was nothing to run."""
        started_ns = self._clock.now_ns()
        self._drain()
        planned = self._scheduler.plan(self._clock.now_ns())
        if planned is not None:
            self._launch(planned)
        while len(self._launched) > (self._engine.launch_ahead if planned else 0):
            self._commit(self._launched.popleft())
        if planned is not None:
            elapsed_ns = self._clock.now_ns() - started_ns
            self._passes.append(PassSample(len(planned.prefills), len(planned.decodes), elapsed_ns))
        return self._step_chat(planned is None) or planned is not None

    def take_passes(self) -> list[PassSample]:
        """Every pass since the last call: its shape and the time of its turn of the loop."""
        passes = list(self._passes)
        self._passes.clear()
        return passes

    def wake_at_ns(self) -> int | None:
        """When there will be something to run though nothing arrives."""
        wake_at_ns = self._scheduler.wake_at_ns()
        if not self._chat_waits:
            return wake_at_ns
        chat_at_ns = self._gaps.wake_at_ns()
        return chat_at_ns if wake_at_ns is None else min(wake_at_ns, chat_at_ns)

    @property
    def _chat_waits(self) -> bool:
        return self._chat is not None and self._chat.busy

    def _step_chat(self, idle: bool) -> bool:
        """Control first: a step of chat fits before the next frame is expected, or chat has waited too long."""
        if self._chat is None or not self._chat.busy:
            return False
        now_ns = self._clock.now_ns()
        least_ns = 2 * self._chat.cost.step_ns
        room_ns = 0
        if idle:
            drain_at_ns = self._scheduler.wake_at_ns()
            room_ns = self._gaps.room_ns(now_ns)
            room_ns = room_ns if drain_at_ns is None else min(room_ns, drain_at_ns - now_ns)
        if room_ns < least_ns and not self._gaps.must_run(now_ns):
            return False
        self._chat.step(max(room_ns, least_ns))
        self._gaps.served(self._clock.now_ns())
        return True

    def _idle_timeout_s(self) -> float | None:
        wake_at_ns = self.wake_at_ns()
        return None if wake_at_ns is None else max(0, wake_at_ns - self._clock.now_ns()) / 1e9

    def _drain(self) -> None:
        messages, superseded = self.inbox.drain()
        for frame in superseded:
            self._publish(_dropped(_ref(frame), *_DEPARTURES[Leaving.SUPERSEDED]))
        for message in messages:
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case SubmitFrame():
                self._accept(message)
            case OpenSession():
                self._open(message)
            case ResetSession():
                self._leave(self._scheduler.reset(message.session, message.epoch))
            case CloseSession():
                self._leave(self._scheduler.close(message.session))
                self._opened.pop(message.session, None)
                self._gaps.close(message.session)
            case ChatStart() if self._chat is not None:
                if not self._chat.busy:
                    self._gaps.served(self._clock.now_ns())
                self._chat.start(message)
            case ChatStop() if self._chat is not None:
                self._chat.stop(message.request, "cancelled" if message.cancelled else "stop")
            case ChangeDepth():
                self._scheduler.change_depth(message.session, message.depth)
            case Ping():
                self._pong(message)
            case Shutdown():
                self.running = False

    def _open(self, message: OpenSession) -> None:
        key = message.unnorm_key or self._default_unnorm_key or None
        try:
            self._check_unnorm_key(key)
            self._rows(message.instruction)
            schema = self._engine.policy.action_schema(key)
            self._scheduler.open(message.session, message.epoch, message.depth)
        except RequestError as error:
            self._publish(SessionRefused(message.session, error.code, error.text, error.field, error.reason))
            return
        self._opened[message.session] = _Opened(key, message.deadline_ns)
        self._gaps.open(message.session, message.period_ns)
        self._publish(SessionOpened(message.session, schema_fields(schema)))

    def _check_unnorm_key(self, key: str | None) -> None:
        known = self._engine.policy.unnorm_keys
        if key is None and len(known) > 1:
            raise InvalidArgument(f"name one of {', '.join(known)}", field="unnorm_key")
        if key is not None and key not in known:
            raise InvalidArgument(f"the model has {', '.join(known)}", field="unnorm_key")

    def _accept(self, message: SubmitFrame) -> None:
        ref = _ref(message)
        try:
            rows = self._rows(message.instruction)
        except RequestError as error:
            text = error.text
            self._publish(_dropped(ref, Disposition.REJECTED, error.code, INSTRUCTION_TOO_LONG, text))
            return
        self._waiting[ref] = message
        now_ns = self._clock.now_ns()
        self._tracks[ref] = _Track(now_ns)
        self._gaps.arrived(ref.session, now_ns)
        opened = self._opened.get(ref.session)
        deadline_ns = now_ns + opened.deadline_ns if opened else now_ns
        self._leave(self._scheduler.offer(Frame(ref, rows, deadline_ns)))

    def _rows(self, instruction: str) -> int:
        policy = self._engine.policy
        tokens = len(self._prompt_ids(instruction))
        limit = self._engine.capacity - policy.image_tokens - policy.K
        if tokens > limit:
            raise InvalidArgument(
                f"has {tokens} prompt tokens, the limit is {limit}", field="instruction", reason=INSTRUCTION_TOO_LONG
            )
        return policy.image_tokens + tokens

    def _launch(self, planned: Pass) -> None:
        started_ns = self._clock.now_ns()
        observations = {}
        for segment in planned.prefills:
            observations[segment.frame] = self._prepare(self._waiting.pop(segment.frame))
            self._tracks[segment.frame].started_ns = started_ns
        for segment in planned.segments:
            self._tracks[segment.frame].passes += 1
        self._launched.append(self._engine.launch(planned, observations))
        if self._pacer:
            self._pacer.hold(planned, started_ns)

    def _prepare(self, message: SubmitFrame) -> PreparedFrame:
        pixels = np.frombuffer(message.payload, np.uint8).reshape(message.height, message.width, 3)
        return PreparedFrame(self._engine.policy.preprocess(pixels), self._prompt_ids(message.instruction))

    def _commit(self, launched: LaunchedPass) -> None:
        sampled = {result.frame: result for result in self._engine.collect(launched)}
        for departure in self._scheduler.commit(launched.planned.number):
            self._answer(sampled[departure.frame])

    def _answer(self, sampled: Sampled) -> None:
        ref = sampled.frame
        track = self._tracks.pop(ref)
        values = self._engine.policy.decode_actions(sampled.token_ids, self._opened[ref.session].unnorm_key)
        self._publish(
            FrameResult(
                ref.session,
                ref.epoch,
                ref.seq,
                values.tolist(),
                list(sampled.token_ids),
                sampled.finite and bool(np.isfinite(values).all()),
                queue_ns=track.started_ns - track.arrived_ns,
                inference_ns=self._clock.now_ns() - track.started_ns,
                passes=track.passes,
            )
        )

    def _leave(self, departures: list[Departure]) -> None:
        for departure in departures:
            self._waiting.pop(departure.frame, None)
            self._tracks.pop(departure.frame, None)
            self._publish(_dropped(departure.frame, *_DEPARTURES[departure.why]))

    def _pong(self, message: Ping) -> None:
        counts = self._scheduler.counts
        passes = self.take_passes()
        self._publish(
            Pong(
                message.nonce,
                counts.passes,
                counts.rows,
                counts.full_passes,
                [sample.ns for sample in passes],
                [sample.prefills for sample in passes],
                [sample.decodes for sample in passes],
            )
        )


def _ref(message: SubmitFrame) -> FrameRef:
    return FrameRef(message.session, message.epoch, message.seq)


def _dropped(ref: FrameRef, disposition: Disposition, code: str, reason: str, text: str) -> FrameDropped:
    return FrameDropped(ref.session, ref.epoch, ref.seq, disposition.value, code, reason, text)
