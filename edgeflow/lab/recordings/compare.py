"""Two models on the frames of a recording, in this process: where their actions part, and how long each takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from edgeflow.config.matching import Names, find_inputs
from edgeflow.config.service import load_config
from edgeflow.in_process.load import load
from edgeflow.in_process.observation import DELAY, INSTRUCTION, MOST_STAMP_NS, STAMP
from edgeflow.in_process.policy import LocalPolicy
from edgeflow.lab.progress import Report
from edgeflow.lab.recordings.differences import AnswerDifferences, Rows, check_same_action, rows_of_record
from edgeflow.lab.recordings.sessions import StoredFrame, StoredSession, decode_images, read_frames
from edgeflow_client.errors import ConfigError, FailedPrecondition, Internal, InvalidArgument, RequestError
from edgeflow_client.recording.reader import Recording
from edgeflow_client.types import ActionSchema

MODELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePlan:
    """The options of `edgeflow recording compare`."""

    models: tuple[str, ...]
    settings: Mapping[str, object]
    """Keys of the configuration, for both."""
    every: int
    """Take each frame whose index is a multiple of this."""
    tolerance: float

    def __post_init__(self) -> None:
        if len(self.models) != MODELS:
            raise ConfigError(f"model: give --model twice, got {len(self.models)}")


class ComparedModel:
    """A model that answers recorded frames."""

    def __init__(self, name: str, policy: LocalPolicy, settings: Mapping[str, object]) -> None:
        self.name = name
        self.policy = policy
        self.latencies_ms: list[float] = []
        self.failed: Counter[str] = Counter()
        """Frames without an answer, by reason."""
        self._names = Names.of(load_config(None, {**settings, "model": name}), policy.inputs)
        self._cameras: tuple[str, ...] = ()
        self._state: frozenset[str] = frozenset()
        self._stamp_ns, self._delay_ms = 0, 0.0
        self._epoch: int | None = None

    @property
    def schema(self) -> ActionSchema:
        return self.policy.schema

    def begin(self, session: StoredSession) -> None:
        """Match the cameras and the state of a session by name; InvalidArgument names what is missing."""
        cameras = tuple(replace(camera, resize=False) for camera in session.cameras)
        state = session.contract.state
        try:
            found, places = find_inputs(cameras, state, self.policy.inputs, self._names)
        except RequestError as error:
            text = f"{self.name} does not fit session {session.label}: {error.text}"
            raise InvalidArgument(text, field="model", reason=error.reason) from None
        of_place = list(chain.from_iterable([each.name] * each.size for each in state))
        self._cameras = tuple(each.name for each in found)
        self._state = frozenset(of_place[place] for place in places)
        self._stamp_ns, self._delay_ms, self._epoch = 0, 0.0, None

    def answer(self, session: StoredSession, frame: StoredFrame, images: Mapping[str, Any]) -> Rows | None:
        """The answer [rows, D] to a frame; None if there is none."""
        observed = frame.observation
        stamp_ns = min(observed.stamp_ns, MOST_STAMP_NS - 1)
        if self._epoch not in (None, observed.epoch) or stamp_ns < self._stamp_ns:
            self.policy.reset(session.label)
        self._epoch, self._stamp_ns = observed.epoch, stamp_ns
        vectors = session.state_vectors(observed.state)
        observation: dict[str, Any] = {name: images[name] for name in self._cameras}
        observation |= {name: vectors[name] for name in self._state}
        observation |= {INSTRUCTION: observed.instruction, STAMP: stamp_ns}
        if most_ms := self.policy.inputs.most_delay_ms:
            self._delay_ms = frame.answer.age_ns / 1e6 if frame.answer is not None else self._delay_ms
            observation[DELAY] = min(self._delay_ms, most_ms)
        begun = time.perf_counter()
        try:
            chunk = self.policy.infer(observation, session.label)
        except (RequestError, Internal) as error:
            self.failed[error.text] += 1
            return None
        self.latencies_ms.append((time.perf_counter() - begun) * 1e3)
        return chunk.array


@dataclass(slots=True, kw_only=True)
class ComparedSession:
    """A session, answered by both models."""

    label: str
    between: AnswerDifferences
    """Between the models."""
    recorded: tuple[AnswerDifferences | None, ...]
    """Between the recording and each model; None if its action is another one."""
    seconds: list[float] = field(default_factory=list)
    """The times of the compared frames, from the first frame on."""
    actions: tuple[list[Rows], ...]
    """The first row [D] of each model's answers."""
    recorded_actions: list[Rows] = field(default_factory=list)
    """The first row of recorded answers, NaN where a frame was not answered."""
    undecodable: int = 0
    """Frames whose images are missing or damaged."""

    def to_json(self) -> dict[str, Any]:
        """The differences as JSON values."""
        return {
            "session": self.label,
            "undecodable": self.undecodable,
            "between": self.between.to_json(),
            "to_recorded": [each and each.to_json() for each in self.recorded],
        }


class ModelComparison:
    """Lets two models answer recorded sessions."""

    def __init__(
        self, recording: Recording, plan: ComparePlan, models: Sequence[ComparedModel], report: Report
    ) -> None:
        self._recording = recording
        self._plan = plan
        self._models = models
        self._report = report
        first, second = models
        check_same_action(first.schema, second.schema, (first.name, second.name))

    def run(self, sessions: Sequence[StoredSession]) -> list[ComparedSession]:
        """The comparison of each session; InvalidArgument if a model lacks a camera or a state vector there."""
        for session in sessions:  # before anything is computed
            for model in self._models:
                model.begin(session)
        self._done, self._total = 0, sum(each.frames for each in sessions)
        return [self._play(session) for session in sessions]

    def _play(self, session: StoredSession) -> ComparedSession:
        for model in self._models:
            model.begin(session)
        schema, dims = self._models[0].schema, len(self._models[0].schema.names)
        found = ComparedSession(
            label=session.label,
            between=AnswerDifferences.of(schema, self._models[1].schema, self._plan.tolerance),
            recorded=tuple(self._to_recorded(session, model) for model in self._models),
            actions=([], []),
        )
        for index, frame in enumerate(read_frames(self._recording, session.label)):
            self._done += 1
            self._report("compare", self._done, self._total)
            if index % self._plan.every == 0:
                self._frame(session, frame, index, found, dims)
        for model in self._models:
            model.policy.forget(session.label)
        return found

    def _to_recorded(self, session: StoredSession, model: ComparedModel) -> AnswerDifferences | None:
        recorded = session.contract.schema
        try:
            check_same_action(recorded or model.schema, model.schema, ("the recording", model.name))
        except FailedPrecondition:
            return None
        return AnswerDifferences.of(recorded or model.schema, model.schema, self._plan.tolerance)

    def _frame(self, session: StoredSession, frame: StoredFrame, index: int, found: ComparedSession, dims: int) -> None:
        """Let both models answer a frame, in turns first."""
        observed = frame.observation
        at_s = (observed.time_ns - session.first_ns) / 1e9
        pixels = decode_images(frame.images, session.cameras)
        if pixels is None:
            found.undecodable += 1
            return
        images = {camera.name: image for camera, image in zip(session.cameras, pixels, strict=True)}
        places = (0, 1) if found.between.compared % 2 == 0 else (1, 0)
        answers: dict[int, Rows | None] = {
            place: self._models[place].answer(session, frame, images) for place in places
        }
        first, second = answers[0], answers[1]
        recorded = None
        if frame.answer is not None and session.contract.schema is not None:
            recorded = rows_of_record(frame.answer, session.contract.schema)
        for place, differences in enumerate(found.recorded):
            mine = answers[place]
            if differences is not None and recorded is not None and mine is not None:
                differences.add(session.label, observed.seq, at_s, index, first=recorded, second=mine)
        if first is None or second is None:
            return
        found.between.add(session.label, observed.seq, at_s, index, first=first, second=second)
        found.seconds.append(at_s)
        found.actions[0].append(first[0])
        found.actions[1].append(second[0])
        comparable = recorded is not None and any(found.recorded)
        found.recorded_actions.append(recorded[0] if comparable and recorded is not None else np.full(dims, np.nan))


def load_models(plan: ComparePlan, stack: ExitStack) -> list[ComparedModel]:
    """Both models, closed with the stack; typed StartErrors."""
    models = []
    for name in plan.models:
        settings = {"max_sessions": 1, **plan.settings}
        models.append(ComparedModel(name, stack.enter_context(load(name, config=None, **settings)), settings))
    return models
