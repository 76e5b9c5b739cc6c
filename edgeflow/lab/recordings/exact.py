"""Runs the passes of a recording again, and compares every outcome and every answer with the recorded one.

The control loop and the engine are those that serve, the decisions are the recorded ones. So the replay does what the
worker did, pass by pass; on the same machine the answers are equal bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.graphs import record_passes
from edgeflow.hub import cached
from edgeflow.lab.progress import Report
from edgeflow.lab.recordings.exact_report import ExactReport, machine_differences
from edgeflow.lab.recordings.pass_replay import PassReplay
from edgeflow.lab.recordings.pixels import RecordedPixels
from edgeflow.model_paths import is_hub_id
from edgeflow.models.checkpoint import fingerprint
from edgeflow.pass_records import PASS_TOPIC, AnyPassRecord, EngineFacts, EngineRecord
from edgeflow.version import __version__
from edgeflow.worker.build import BuiltEngine, build_engine
from edgeflow.worker.facts import engine_facts
from edgeflow_client.errors import CheckpointError, ConfigError, EdgeflowError, FailedPrecondition
from edgeflow_client.recording.reader import Recording

SHOWN_EVERY = 100  # records


class _OtherEngine(msgspec.Struct, tag_field="kind", tag="engine"):
    """A record of an engine of any version."""

    facts: dict[str, Any]


def replay_exactly(recording: Recording, model: str | None = None, progress: Report | None = None) -> ExactReport:
    """Replay the passes of a recording on this machine.

    model: where the checkpoint lies, if not where it was. progress: receives the number of records done.

    FailedPrecondition for a recording without passes or pixels, of another version of edgeflow, or of another model.
    StartErrors as for a service where the model cannot be loaded.
    """
    first = _first_engine(recording)
    _check_version(first.version)
    config = engine_config(first, model)
    if progress is not None:
        progress("loading", 0, 1)
    path = _model_path(config, named=model is None)
    _check_model(first, config.model, fingerprint(path, config.policy.settings))
    return replay_on(ready_engine(config), config, recording, progress)


def replay_on(
    built: BuiltEngine, config: ServiceConfig, recording: Recording, progress: Report | None = None
) -> ExactReport:
    """Replay the passes of a recording on an engine that is ready."""
    here, report = engine_facts(config, built), ExactReport()
    replay = PassReplay(built.engine, config, RecordedPixels(recording.sessions()), report)
    last: int | None = None
    for done, (number, record) in enumerate(_typed(recording)):
        lost = (0 if last is None else number - last - 1) + (record is None)
        report.lost += lost
        if isinstance(record, EngineRecord):  # it knows nothing of what was lost before
            _check_version(record.facts.version)
            _check_model(record.facts, here.model, here.fingerprint)
            report.machine = report.machine or machine_differences(record.facts, here)
            report.exact = not report.machine
        elif last is None:
            continue
        elif lost:
            replay.lose()
        last = number
        with torch.no_grad():
            if record is not None and not _stepped(replay, record, number):
                break
        if progress is not None and done % SHOWN_EVERY == 0:
            progress("replaying", done, 0)
    return report


def _stepped(replay: PassReplay, record: AnyPassRecord, number: int) -> bool:
    """Replay a record; False if the replay cannot go on, FailedPrecondition where the engine cannot do what it says."""
    try:
        return replay.step(record)
    except EdgeflowError:
        raise
    except Exception as error:
        raise FailedPrecondition(
            f"record {number} of passes does not fit its model ({type(error).__name__}): the file is damaged",
            field="recording",
        ) from error


def engine_config(facts: EngineFacts, model: str | None = None) -> ServiceConfig:
    """The configuration of an engine like the recorded one on this machine.

    A device that is not here becomes the one that is.
    """
    try:
        fields = msgspec.json.decode(facts.config)
        fields |= {"max_sessions": facts.sessions, "model": model or fields["model"]}
        if not torch.cuda.is_available():
            fields |= {"device": "cpu", "graphs": "auto"}
        return ServiceConfig.model_validate_json(msgspec.json.encode(fields))
    except (msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        raise FailedPrecondition("its configuration cannot be read: the file is damaged", field="recording") from error


def ready_engine(config: ServiceConfig) -> BuiltEngine:
    """An engine as a worker has it when it serves; typed StartErrors if that is impossible."""
    if config.operators and not Path(config.operators).is_file():
        raise ConfigError(f"operators: {config.operators} is not here: copy the overlay of the recording to this place")
    with torch.no_grad():
        built = build_engine(config)
        record_passes(built.engine, _unreported, required=False)
        if built.engine.graphs is not None:
            warm_up(built.engine, built.limits.shift, _unreported, rounds=built.rounds)
            built.engine.graphs.seal()
    return built


def _model_path(config: ServiceConfig, *, named: bool) -> Path:
    """The checkpoint; CheckpointError where it is not here.

    named: only the recording names it. Then nothing is fetched: whoever wrote the file does not choose downloads.
    """
    path = Path(config.model)
    if named and is_hub_id(config.model) and cached(config.model) is None:
        raise CheckpointError(
            f"model: {config.model} is not in the hub's cache: run `edgeflow pull {config.model}`, "
            "or give its place with --model"
        )
    if path.is_absolute() and not path.exists():
        raise CheckpointError(f"model: {path} is not here: give its place with --model")
    return config.model_path


def _check_model(recorded: EngineFacts, model: str, found: str) -> None:
    if recorded.fingerprint != found:
        raise FailedPrecondition(
            f"has the model {recorded.model} with fingerprint {recorded.fingerprint}; {model} here has {found}: "
            "give the recorded one with --model, or compare two models with `edgeflow recording compare`",
            field="recording",
        )


def _check_version(recorded: str) -> None:
    if recorded != __version__:
        raise FailedPrecondition(
            f"is of edgeflow {recorded}, and this is {__version__}: install that version, "
            "or replay without --exact, which compares by tolerance",
            field="recording",
        )


def _first_engine(recording: Recording) -> EngineFacts:
    """The facts of the first worker."""
    if recording.facts.get("cameras", "all") != "all":
        raise FailedPrecondition(
            f"has its cameras as {recording.facts['cameras']}: an exact replay needs every image; "
            "record again with --record-cameras all",
            field="recording",
        )
    for _, record in _typed(recording):
        if isinstance(record, EngineRecord):
            return record.facts
    raise FailedPrecondition(
        "has no passes: only a service records them. Replay it without --exact, which compares by tolerance",
        field="recording",
    )


def _typed(recording: Recording) -> Iterator[tuple[int, AnyPassRecord | None]]:
    """The records of passes with their numbers; None for one that cannot be read.

    FailedPrecondition for an engine of another version, whose facts may be others.
    """
    decoder: msgspec.json.Decoder[AnyPassRecord] = msgspec.json.Decoder(AnyPassRecord)
    for stored in recording.records(PASS_TOPIC):
        record = None
        try:
            record = decoder.decode(stored.data)
        except msgspec.DecodeError:
            with contextlib.suppress(msgspec.DecodeError):
                _check_version(msgspec.json.decode(stored.data, type=_OtherEngine).facts.get("version", __version__))
        yield stored.number, record


def _unreported(step: str, done: int, total: int) -> None:
    """Progress that nobody waits for."""
