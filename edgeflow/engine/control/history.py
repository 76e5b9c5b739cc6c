"""The observations of a session as its policy sees them: the newest, those before it, the delay of its answer, and the
number of the session.

Every frame that reaches the worker counts, also one that a newer frame supersedes before its pass. So they follow from
what the robot sent, and not from when passes ran or which robots shared them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol, cast

from edgeflow.contract import CHANNELS, Observation, ObservationWindow, PolicyInputs
from edgeflow.engine.control.samples import SIDE
from edgeflow.engine.policy import Policy
from edgeflow.ipc.messages import SubmitFrame
from edgeflow_client.errors import CheckpointError, RequestError, WorkerError

THINNEST = 4
"""Observations closer than the policy's step divided by this count as one, so that few are kept of a fast camera."""


class HistoryPolicy(Policy, Protocol):
    """A policy whose inputs have a history."""

    def joined(self, window: ObservationWindow) -> Any:
        """The inputs of an answer, from prepared observations."""
        ...


class SessionPolicy(Policy, Protocol):
    """A policy with state per session, by the number in `Observation.session`."""

    def begin(self, session: int) -> None:
        """A session begins: called before its first observation is prepared."""
        ...

    def end(self, session: int) -> None:
        """A session ends: nothing of it is asked again."""
        ...


def has_sessions(policy: Policy) -> bool:
    """True for a policy with state per session."""
    return hasattr(policy, "begin")


def check_history(policy: Policy) -> None:
    """Raise CheckpointError for a policy that lacks a method which its history or its sessions need."""
    if policy.inputs.history > 1 and not hasattr(policy, "joined"):
        raise CheckpointError(
            f"model: {type(policy).__name__} asks for {policy.inputs.history} observations and has no joined(window)"
        )
    if hasattr(policy, "begin") != hasattr(policy, "end"):
        raise CheckpointError(f"model: {type(policy).__name__} needs both begin(session) and end(session), or none")


def state_of(message: SubmitFrame, inputs: PolicyInputs) -> dict[str, tuple[float, ...]]:
    """The state vectors of a frame, by the policy's names; WorkerError unless it has what the policy needs."""
    images, sizes = len(message.sizes) // 2, [each.size for each in inputs.state]
    if images != len(inputs.cameras) or len(message.state) != sum(sizes):
        raise WorkerError(
            f"a frame has {images} images and {len(message.state)} numbers; "
            f"the policy needs {len(inputs.cameras)} and {sum(sizes)}"
        )
    vectors = zip(inputs.state, accumulate(sizes), strict=True)
    return {need.name: tuple(message.state[end - need.size : end]) for need, end in vectors}


def observation_of(message: SubmitFrame, inputs: PolicyInputs, session: int = 0) -> Observation:
    """The observation of a frame, by the policy's names; WorkerError unless it has what the policy needs."""
    state = state_of(message, inputs)
    return Observation(
        images={camera.name: image for camera, image in zip(inputs.cameras, message.images(), strict=True)},
        state=state,
        instruction=message.instruction,
        stamp_ns=message.stamp_ns,
        session=session,
    )


def start_delay_ms(message: SubmitFrame, inputs: PolicyInputs) -> float:
    """The delay of a frame's answer as its policy takes it, 0 where it does not ask.

    The time that the frame waited in the worker is not added: control expects a start from measured answers, whose ages
    include such waits.
    """
    return min(max(message.start_delay_ns, 0) / 1e6, inputs.most_delay_ms)


def kept_bytes(inputs: PolicyInputs, side: int = SIDE) -> int:
    """The most memory of the observations that a session keeps, with pixels in float32; 0 without a history.

    A camera of any size counts with side x side pixels.
    """
    if inputs.history == 1:
        return 0
    kept = inputs.history + (THINNEST * (inputs.history - 1) if inputs.history_step_ms else 0)
    pixels = sum((each.height or side) * (each.width or side) for each in inputs.cameras)
    return kept * (CHANNELS * pixels + inputs.numbers) * 4


@dataclass(slots=True)
class _Seen:
    """An observation, prepared when it is first needed."""

    message: SubmitFrame
    prepared: Any = None
    rejected: bool = False
    """The policy rejected it, so that it does not count."""

    @property
    def stamp_ns(self) -> int:
        return self.message.stamp_ns


class SessionHistory:
    """The observations of one session that its policy may need. numbers: of the policy's sessions, each used once."""

    def __init__(self, policy: Policy, numbers: Iterator[int]) -> None:
        self._policy = policy
        self._numbers = numbers
        self._step_ns = round(policy.inputs.history_step_ms * 1e6)
        self._epoch = 0
        self._number = 0  # of the session, as the policy counts; 0 = not begun
        self._seen: deque[_Seen] = deque()

    def add(self, message: SubmitFrame) -> None:
        """An observation arrived; those of an epoch that has ended do not count."""
        if message.epoch < self._epoch:
            return
        self.enter(message.epoch)
        if message.rested:
            self.end()
        if self._policy.inputs.history > 1:
            self._keep(message)

    def prompt(self, message: SubmitFrame) -> Any:
        """The inputs of the answer to a frame that was added. RequestError as in Policy.prepare."""
        if not self._number and has_sessions(self._policy):
            number = next(self._numbers)
            cast("SessionPolicy", self._policy).begin(number)
            self._number = number
        count, delay_ms = self._policy.inputs.history, start_delay_ms(message, self._policy.inputs)
        if count == 1:
            return self._prepared(message, delay_ms)
        seen = [each for each in self._seen if each.message.seq <= message.seq and not each.rejected]
        if not seen or seen[-1].message.seq != message.seq:
            seen.append(_Seen(message))
        self._prepare(seen[-1])
        while True:
            chosen = [seen[index] for index in picked([each.stamp_ns for each in seen], count, self._step_ns)]
            rejected = next((each for each in chosen[:-1] if not self._is_prepared(each)), None)
            if rejected is None:
                return _joined(
                    self._policy, [each.prepared for each in chosen], [each.stamp_ns for each in chosen], delay_ms
                )
            seen.remove(rejected)

    def remove(self, message: SubmitFrame) -> None:
        """An observation that was added is rejected, and does not count."""
        for each in self._seen:
            each.rejected |= each.message.seq == message.seq

    def enter(self, epoch: int) -> None:
        """An epoch begins; a new one knows nothing of those before."""
        if epoch > self._epoch:
            self._epoch = epoch
            self.end()

    def end(self) -> None:
        """Forget the observations, and end the session of the policy."""
        self._seen.clear()
        if self._number:
            cast("SessionPolicy", self._policy).end(self._number)
            self._number = 0

    def _keep(self, message: SubmitFrame) -> None:
        seen, count, step_ns = self._seen, self._policy.inputs.history, self._step_ns
        if len(seen) > 1 and (seen[-1].stamp_ns - seen[-2].stamp_ns) * THINNEST < step_ns:
            seen.pop()
        seen.append(_Seen(message))
        oldest_ns = message.stamp_ns - (count - 1) * step_ns
        while len(seen) > count and seen[count - 1].stamp_ns <= oldest_ns:
            seen.popleft()

    def _prepared(self, message: SubmitFrame, delay_ms: float = 0.0) -> Any:
        observation = observation_of(message, self._policy.inputs, self._number)
        return self._policy.prepare(replace(observation, delay_ms=delay_ms))

    def _prepare(self, seen: _Seen) -> None:
        if seen.prepared is None:
            try:
                seen.prepared = self._prepared(seen.message)
            except RequestError:
                seen.rejected = True
                raise
            seen.message = replace(seen.message, payload=b"")

    def _is_prepared(self, seen: _Seen) -> bool:
        """Prepare an earlier observation; False for one that the policy rejects."""
        with contextlib.suppress(RequestError):
            self._prepare(seen)
        return not seen.rejected


def picked(stamps_ns: Sequence[int], count: int, step_ns: int) -> list[int]:
    """The indices of `count` observations, the oldest first and the newest last.

    Each is the one nearest to its time, `step_ns` before the next one's, among those older than the next one; of two as
    near, the older. step_ns 0: consecutive ones. The oldest is repeated where there are too few. Stamps increase.
    """
    index = len(stamps_ns) - 1
    indices = [index]
    for back in range(1, count):
        wanted_ns = stamps_ns[-1] - back * step_ns
        if not step_ns:
            index = max(index - 1, 0)
        elif index > 0:
            index = min(range(index), key=lambda each: abs(stamps_ns[each] - wanted_ns))
        indices.append(index)
    return indices[::-1]


@contextmanager
def first_prompts(policy: Policy, observations: Sequence[Observation]) -> Iterator[list[Any]]:
    """The prompts of observations that are each the first of a session, which ends with the block."""
    if not has_sessions(policy):
        yield [prompt_of(policy, [each], each.delay_ms) for each in observations]
        return
    served = cast("SessionPolicy", policy)
    numbered = [replace(each, session=-1 - index) for index, each in enumerate(observations)]
    for each in numbered:
        served.begin(each.session)
    try:
        yield [prompt_of(policy, [each], each.delay_ms) for each in numbered]
    finally:
        for each in numbered:
            served.end(each.session)


def prompt_of(policy: Policy, seen: Sequence[Observation], delay_ms: float) -> Any:
    """The inputs of the answer to the last of a session's observations, the oldest first."""
    inputs = policy.inputs
    if inputs.history == 1:
        return policy.prepare(replace(seen[-1], delay_ms=delay_ms))
    chosen = picked([each.stamp_ns for each in seen], inputs.history, round(inputs.history_step_ms * 1e6))
    prepared = {index: policy.prepare(replace(seen[index], delay_ms=0.0)) for index in dict.fromkeys(chosen)}
    return _joined(policy, [prepared[index] for index in chosen], [seen[index].stamp_ns for index in chosen], delay_ms)


def _joined(policy: Policy, prepared: Sequence[Any], stamps_ns: Sequence[int], delay_ms: float) -> Any:
    gaps_ns = tuple(newer - older for older, newer in pairwise(stamps_ns))
    return cast("HistoryPolicy", policy).joined(ObservationWindow(tuple(prepared), gaps_ns, delay_ms))
