"""Exports the sessions of a recording as a LeRobot dataset: what is in it, its frames, and where each came from."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgeflow.lab.outputs import check_writable, make_folder, write_json, writing
from edgeflow.lab.progress import Report
from edgeflow.lab.recordings.export.dataset import DatasetWriter
from edgeflow.lab.recordings.export.layout import DatasetFeatures
from edgeflow.lab.recordings.export.sampling import SampledEpoch, SessionSampler, schema_of
from edgeflow.lab.recordings.export.video import best_codec, check_size
from edgeflow.lab.recordings.sessions import StoredSession, choose_sessions
from edgeflow_client.errors import ConfigError, FailedPrecondition
from edgeflow_client.recording.reader import Recording
from edgeflow_client.types import StateSpec

ACTION = "action"
SOURCE_FILE = "edgeflow.json"
"""In `meta`: the outcome of the export. LeRobot does not read it."""


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedDataset:
    """The outcome of an export."""

    out: str
    fps: int
    episodes: int
    frames: int
    tasks: int
    video: str
    """Codec of the videos; empty = images."""
    recorded_hz: dict[str, float]
    """Observations per second by session."""
    facts: dict[str, str]
    """Facts of the recording."""
    epochs: list[SampledEpoch]
    """All epochs with observations; those without frames were skipped."""
    notices: list[str]
    """Reasons why the dataset may be unfit for training."""


def export_sessions(
    recording: Recording,
    out: Path,
    *,
    fps: int | None = None,
    video: bool = False,
    chosen: tuple[str, ...] = (),
    report: Report,
) -> ExportedDataset:
    """Export sessions of a recording as a LeRobot dataset in the new folder `out`, an episode per epoch.

    fps: None = the nearest whole number to the recorded rate. chosen: labels or numbers of sessions; empty = all.
    Raises ConfigError for `out`, `fps` and what videos do not take, InvalidArgument for a session that does not exist,
    FailedPrecondition for what the recording lacks. Nothing is left at `out` then.
    """
    _check_new(out)
    sessions = choose_sessions(recording, chosen)
    rates = {each.label: each.rate_hz for each in sessions}
    if fps is None:
        fps = max(round(max(rates.values())), 1)
    features = _features(sessions, fps, video)
    samplers: list[SessionSampler] = []
    with _new_folder(out) as folder, DatasetWriter(folder, features) as writer:
        done, total = 0, sum(each.frames for each in sessions)
        for session in sessions:
            samplers.append(sampler := SessionSampler(session, fps))
            for frame in sampler.frames(recording):
                if frame.begins:
                    frame.epoch.episodes.append(writer.begin(frame.epoch.instruction))
                state = session.state_vectors(frame.state)
                vectors = {ACTION: np.array(frame.action), **{_state_feature(each): state[each] for each in state}}
                writer.add(vectors, dict(zip(features.cameras, frame.images, strict=True)))
                report(f"session {session.label}", done + sampler.observations, total)
            done += session.frames
        writer.end()
        if not writer.episodes:
            raise FailedPrecondition(_why_empty(samplers), field="path")
        exported = ExportedDataset(
            out=str(out),
            fps=fps,
            episodes=writer.episodes,
            frames=writer.frames,
            tasks=writer.tasks,
            video=features.codec.name if features.codec and features.cameras else "",
            recorded_hz={label: round(rate, 3) for label, rate in rates.items()},
            facts=dict(recording.facts),
            epochs=[epoch for sampler in samplers for epoch in sampler.epochs],
            notices=_notices(sessions, fps),
        )
        writer.complete()
        write_json(folder / "meta" / SOURCE_FILE, dataclasses.asdict(exported))
    return exported


def _check_new(out: Path) -> None:
    if out.is_symlink() or out.exists():
        raise ConfigError(f"out: {out} exists; name a new folder, nothing is written over")
    check_writable(out.parent)


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out`, which gets its name once it is complete and is removed otherwise. As a recording, only its
    owner can read it.
    """
    out = out.absolute()
    make_folder(out.parent)
    with writing(out):
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
        try:
            yield folder
            _check_new(out)
            folder.rename(out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _features(sessions: Sequence[StoredSession], fps: int, video: bool) -> DatasetFeatures:
    """The features of the sessions, which all of them have; FailedPrecondition if they differ."""
    codec = best_codec() if video else None
    found: dict[str, DatasetFeatures] = {}
    for session in sessions:
        vectors = {ACTION: schema_of(session).names}
        for state in session.contract.state:
            _add(vectors, _state_feature(state.name), _elements(state), session)
        cameras: dict[str, tuple[int, int]] = {}
        for camera in session.cameras:
            _add(cameras, _feature("observation.images.", camera.name), (camera.height, camera.width), session)
            if codec:
                check_size(camera.name, camera.width, camera.height)
        found[session.label] = DatasetFeatures(fps=fps, vectors=vectors, cameras=cameras, codec=codec)
    first, *others = found
    for label in others:
        if found[label].described != found[first].described:
            text = f"sessions {first} and {label} differ in cameras, state or action; export them apart with --session"
            raise FailedPrecondition(text, field="path")
    return found[first]


def _add(features: dict[str, _Value], name: str, value: _Value, session: StoredSession) -> None:
    if name in features:
        raise FailedPrecondition(f"session {session.label}: two parts would be the feature {name}", field="path")
    features[name] = value


def _feature(prefix: str, name: str) -> str:
    """The name of a feature, which has no slash."""
    whole = name if name.startswith(prefix) else prefix + name
    return "".join(each if each.isprintable() and each != "/" else "_" for each in whole)  # it names a folder


def _state_feature(name: str) -> str:
    return _feature("observation.", name)


def _elements(state: StateSpec) -> tuple[str, ...]:
    return state.elements or tuple(f"{state.name}_{index}" for index in range(state.size))


def _notices(sessions: Sequence[StoredSession], fps: int) -> list[str]:
    notices = []
    for session in sessions:
        schema = schema_of(session)
        rate_hz = 1000 / schema.step_ms if schema.horizon > 1 else schema.control_rate_hz
        if any(schema.relative) and not schema.whole_way and rate_hz and round(rate_hz) != fps:
            text = f"session {session.label}: an action is a displacement per 1/{rate_hz:g} s, a frame is 1/{fps} s"
            notices.append(f"{text}: --fps {round(rate_hz)} keeps their meaning")
    return notices


def _why_empty(samplers: Sequence[SessionSampler]) -> str:
    left_out: Counter[str] = Counter()
    for epoch in (epoch for sampler in samplers for epoch in sampler.epochs):
        left_out.update(epoch.left_out)
    reasons = ", ".join(f"{reason}: {count} ticks" for reason, count in left_out.items()) or "no whole observation"
    return f"has no observation with an action, so there is nothing to export ({reasons})"
