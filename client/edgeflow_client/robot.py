"""The robot-side client of the service.

    with RobotClient("127.0.0.1:50051", cameras=[camera], instruction="grasp the red handle",
                     control_period_s=0.05) as client:
        while working():
            client.push(grab_image(), state={"observation.state": joint_angles()})
            joints = client.latest().joints  # `tool` where the policy moves the tool; None = hold
            ...

Threads: the caller's; one that reads the stream and reconnects; one that ticks the watchdog; with on_action one
that calls it. Every method may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from edgeflow_client.actions import Directive
from edgeflow_client.aging import DEFAULT, Aging
from edgeflow_client.blending import LATEST, Blending
from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.connection.credentials import Credentials, check_address, is_local
from edgeflow_client.connection.link import Link
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import Opened, SessionSettings, check_text, open_message
from edgeflow_client.errors import DependencyError, EdgeflowError, FailedPrecondition, InvalidArgument, Unavailable
from edgeflow_client.flight import Statistics
from edgeflow_client.observation import Images, State, encode_images, encode_state
from edgeflow_client.pictures import on_the_wire, resolved, to_send
from edgeflow_client.pose import MAX_DISTANCE_M, Pose, check_distance
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.types import CameraSpec, Execution, Mode, StateSpec
from edgeflow_client.watchdog import RESUME_WITHIN_NS, WatchdogThread

if TYPE_CHECKING:
    from edgeflow_client.connection.recording import RobotRecording  # needs an extra

FOREVER_S = 1e9
Entry = TypeVar("Entry")
_log = logging.getLogger("edgeflow_client")


class RobotClient:
    """A session with the service, as a context manager. It reconnects by itself until it is closed.

    - address: host:port of the service.
    - cameras, state: the images and state vectors of every frame.
    - instruction: the robot's task; `push` and `reset` may change it.
    - control_period_s: time between calls of `push`.
    - mode: None = the service's default, Mode.AUTO unless configured otherwise. `opened.mode` is the mode in effect.
    - depth: pipeline depth, with Mode.DEPTH.
    - tolerance_bins: with Mode.SPECULATIVE, how far a verified token may be from its draft: 0 (the tokens of serial
      decoding) to 2 bins.
    - max_passes: with Mode.SPECULATIVE, a frame is answered after this many passes even if tokens are not verified, 1
      to K; 0 = K. Each action has the number of its verified tokens.
    - max_action_age_s: an action is not executed once its frame is older. Mode.AUTO plans for it. None = the limit in
      each action, which is its validity plus the session's forecast latency; math.inf = no limit in the robot. With
      both, the service keeps its own limit.
    - model, unnorm_key: a policy by name, and its action statistics; by default the only ones.
    - open_timeout_s: how long to wait for the session.
    - clock: for tests.
    - resume_within_s: a longer interruption needs `reset`. More than 2 s applies only after the service reported the
      loss of its worker (WORKER_LOST) on the same stream; any other silence needs `reset` after 2 s. STOP, and a fault
      of the service (reason FAULT), always need `reset`.
    - on_action: called in its own thread with every new directive, including HOLD and STOP. A slow callback misses
      directives but delays nothing.
    - credentials: for a service with TLS or tokens; None = the token in EDGEFLOW_TOKEN, if set.
    - aging: how targets allow for the age of their actions (docs/robots/latency.md); None = a bounded look-ahead if
      actions are known to stand for one control step.
    - blending: what is executed while chunks of several actions overlap (docs/robots/chunks.md).
    - execution: how answers are executed (docs/robots/chunks.md). By default the service chooses: the robot continues
      while its answers come early enough for the policy, and rests between them while they do not.
    - max_distance_m: the largest distance of a pose passed to `push` from the origin, and the largest motion of the
      tool by one action. It detects millimetres passed as metres.
    - record: a directory. A separate process records there what is pushed, answered and executed
      (docs/operate/recording.md#on-the-robot). Needs edgeflow-client's extra `record`. ConfigError for a directory that
      cannot be written.
    """

    def __init__(
        self,
        address: str,
        *,
        cameras: Sequence[CameraSpec],
        instruction: str,
        control_period_s: float,
        mode: Mode | None = None,
        depth: int = 0,
        tolerance_bins: int = 0,
        max_passes: int = 0,
        max_action_age_s: float | None = None,
        model: str = "",
        unnorm_key: str = "",
        on_action: Callable[[Directive], None] | None = None,
        open_timeout_s: float = 5.0,
        resume_within_s: float = RESUME_WITHIN_NS / 1e9,
        clock: Clock | None = None,
        credentials: Credentials | None = None,
        aging: Aging | None = None,
        state: Sequence[StateSpec] = (),
        blending: Blending = LATEST,
        execution: Execution = Execution.AUTO,
        max_distance_m: float = MAX_DISTANCE_M,
        record: str | Path | None = None,
    ) -> None:
        check_address(address)
        self._aging = aging or DEFAULT
        self._cameras = resolved(_listed(cameras, "cameras"), local=is_local(address))
        self._settings = SessionSettings(
            cameras=on_the_wire(self._cameras),
            control_period_s=control_period_s,
            mode=mode,
            max_action_age_s=max_action_age_s,
            model=model,
            unnorm_key=unnorm_key,
            depth=depth,
            tolerance_bins=tolerance_bins,
            max_passes=max_passes,
            state=_listed(state, "state"),
            execution=execution,
        )
        check_text(instruction)
        open_message(self._settings, instruction)  # raises here for settings that cannot be sent later
        if not resume_within_s >= 0.0:
            raise InvalidArgument(f"must be 0 or more seconds, got {resume_within_s!r}", field="resume_within_s")
        check_distance(max_distance_m)
        self._address = address
        self._on_action = on_action
        self._open_timeout_s = open_timeout_s
        self._clock: Clock = clock or MonotonicClock()
        patience_ns = round(min(resume_within_s, FOREVER_S) * 1e9)
        self._recording = None if record is None else _recording(record, address)
        self._session = ClientSession(
            self._settings,
            instruction,
            self._clock,
            patience_ns,
            aging=self._aging,
            blending=blending,
            max_distance_m=max_distance_m,
            recording=self._recording,
        )
        self._changed = threading.Condition()
        self._published = self._session.directive()
        self._link = Link(address, credentials, self, self._opening, self._clock)
        self._ticker = WatchdogThread(self._tick)
        self._caller = threading.Thread(target=self._call_back, name="edgeflow-actions", daemon=True)

    def __enter__(self) -> RobotClient:
        """Open the session. Raises the service's typed error, or Unavailable after open_timeout_s."""
        session = self._session
        if self._recording is not None:
            self._recording.start()
        self._link.start()
        self._ticker.start()
        with self._changed:
            self._changed.wait_for(lambda: session.opened or session.is_rejected, self._open_timeout_s)
            opened, error = session.opened, session.error
        if opened is None:
            self.close()
            if session.is_rejected and error is not None:
                raise error
            why = f": {error.text}" if error is not None else ""
            raise Unavailable(f"no session with {self._address} within {self._open_timeout_s:g} s{why}")
        if self._on_action is not None:
            self._caller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; from then on the directive is HOLD. A recording is written first, for at most 5 s."""
        with self._changed:
            if self._session.closed:
                return
            self._session.close()
            self._publish()
            self._changed.notify_all()
        self._link.close()
        self._ticker.stop()
        if self._caller.is_alive() and self._caller is not threading.current_thread():
            self._caller.join()
        if self._recording is not None:
            self._recording.stop(self._session.error if self._session.is_rejected else None)

    @property
    def opened(self) -> Opened:
        """The service's answer to Open in the newest stream."""
        with self._changed:
            if self._session.opened is None:
                raise FailedPrecondition("the session is not open: use `with RobotClient(...)`")
            return self._session.opened

    def push(
        self,
        images: Images,
        pose: Pose | None = None,
        proprio: Sequence[float] = (),
        instruction: str | None = None,
        *,
        captured_ns: int | None = None,
        state: State | None = None,
    ) -> int:
        """Queue the newest frame and return its number; never waits for the network.

        images: images by camera name, or the image itself if the session has one camera.
        pose: pose of the tool at capture, in the base's frame. Actions that displace the tool are anchored to it.
        instruction: a new instruction from this frame on.
        captured_ns: capture time on the client's clock, from which ages and age limits count; by default now minus
        `Aging.camera_offset_s`.
        state: vectors by name, or all their values in order as proprio.

        Raises InvalidArgument if images or state do not match the session, a pose is farther than max_distance_m, or
        captured_ns is not within the last 60 s, and the service's error if it rejected the session after a lost stream.
        """
        stamp_ns = self._captured_ns() if captured_ns is None else captured_ns
        data = to_send(encode_images(images, self._cameras), self._cameras)
        numbers = encode_state(state, proprio, self._settings.state)
        with self._changed:
            seq = self._session.push(data, numbers, pose, instruction or "", stamp_ns)
            self._publish()
        self._link.frame_pushed()
        return seq

    def reset(self, instruction: str | None = None) -> None:
        """Start a new episode and permit the robot to move again. Earlier frames get no action."""
        with self._changed:
            self._session.reset(instruction or "")
            self._publish()

    def latest(self) -> Directive:
        """The current directive. Read it every control period; it is never an action past its validity."""
        with self._changed:
            return self._read()

    def directives(self) -> Iterator[Directive]:
        """Iterate over new directives until the client is closed. A slow reader gets only the newest."""
        seen: Directive | None = None
        while True:
            with self._changed:
                while self._publish() is seen:
                    if self._session.closed:
                        return
                    self._changed.wait()
                seen = self._read()
            yield seen

    def statistics(self) -> Statistics:
        """Counts and ages of the session so far."""
        with self._changed:
            return self._session.statistics()

    # Called by the link's thread.

    def stream_opened(self, message: pb.Opened, outgoing: OutgoingMessages) -> None:
        with self._changed:
            self._session.stream_opened(message, outgoing)
            self._changed.notify_all()

    def stream_message(self, message: pb.ServerMessage) -> None:
        with self._changed:
            acted = self._session.stream_message(message)
            self._publish()
        if acted:
            self._link.action_delivered()

    def stream_ended(self, error: EdgeflowError, final: bool) -> None:
        with self._changed:
            self._session.stream_ended(error, final)
            self._publish()
            self._changed.notify_all()

    def _captured_ns(self) -> int:
        """Capture time of an image passed now; not negative, because a message cannot carry negative times."""
        return max(self._clock.now_ns() - round(self._aging.camera_offset_s * 1e9), 0)

    def _opening(self) -> pb.Open:
        with self._changed:
            return self._session.opening()

    def _read(self) -> Directive:
        """The directive that the robot executes from now on; call with the lock held."""
        now = self._publish()
        if self._recording is not None:
            self._recording.read(now, self._clock.now_ns())
        return now

    def _publish(self) -> Directive:
        """Notify waiting threads if the directive changed; call with the lock held."""
        now = self._session.directive()
        if now is not self._published:
            self._published = now
            self._changed.notify_all()
        return now

    def _tick(self) -> None:
        with self._changed:
            self._publish()
        self._link.check()

    def _call_back(self) -> None:
        for directive in self.directives():
            try:
                if self._on_action is not None:
                    self._on_action(directive)
            except Exception:
                _log.exception("on_action raised")


def _recording(directory: str | Path, address: str) -> RobotRecording:
    if not isinstance(directory, str | Path) or directory == "":
        raise InvalidArgument(f"must be the path of a directory, got {directory!r:.80}", field="record")
    try:
        from edgeflow_client.connection.recording import RobotRecording
    except ImportError:
        raise DependencyError("record: install edgeflow-client with its extra `record`") from None
    return RobotRecording(Path(directory), address)


def _listed(given: Iterable[Entry], field: str) -> tuple[Entry, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidArgument(f"must be a list, got {given!r:.80}", field=field)
    return tuple(given)
