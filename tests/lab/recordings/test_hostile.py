"""Recordings made to do harm: they fetch nothing, and what their passes ask for is an error in one line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec
import pytest

from benchmarks.recording.robots import MemoryRecording
from edgeflow import model_paths
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.ipc.messages import OpenSession
from edgeflow.lab.recordings.exact import ready_engine, replay_exactly, replay_on
from edgeflow.pass_records import (
    AnyPassRecord,
    EngineFacts,
    EngineRecord,
    HashedFrame,
    LaunchRecord,
    OfferRecord,
    OpenedRecord,
)
from edgeflow.scheduler.plan import FrameRef, Pass, Segment
from edgeflow.worker.build import BuiltEngine
from edgeflow.worker.facts import engine_facts
from edgeflow_client.errors import CheckpointError, FailedPrecondition
from edgeflow_client.recording.reader import StoredRecord

CONFIG = ServiceConfig(device="cpu", max_sessions=1)
REF = FrameRef(1, 1, 1)
OPENED = OpenedRecord(time_ns=2, session=1, message=OpenSession(session=1, epoch=1, pace=Pace(), unnorm_key=""))


@cache
def engine() -> tuple[BuiltEngine, EngineFacts]:
    built = ready_engine(CONFIG)
    return built, engine_facts(CONFIG, built)


def recording(facts: EngineFacts, records: Sequence[AnyPassRecord] = ()) -> MemoryRecording:
    every = [EngineRecord(time_ns=1, facts=facts), *records]
    return MemoryRecording(passes=[StoredRecord(at, 0, msgspec.json.encode(each)) for at, each in enumerate(every)])


def test_a_model_that_only_a_recording_names_is_not_fetched(monkeypatch):
    fetched: list[str] = []
    monkeypatch.setattr(model_paths, "fetch", lambda name, *_: fetched.append(name))
    config = ServiceConfig(device="cpu", model="nobody-here/no-model").model_dump_json(exclude={"tls"})
    with pytest.raises(CheckpointError, match="edgeflow pull nobody-here/no-model"):
        replay_exactly(recording(msgspec.structs.replace(engine()[1], config=config)))
    assert not fetched


def offer(sizes: list[int]) -> OfferRecord:
    frame = HashedFrame(session=1, epoch=1, seq=1, sizes=sizes, instruction="go", pixels=("0",))
    return OfferRecord(time_ns=3, frame=frame, arrived_ns=0)


def launch(slot: int, start: int) -> LaunchRecord:
    segment = Segment(sequence=REF, slot=slot, start=start, length=1, stage=1)
    return LaunchRecord(time_ns=3, planned=Pass(0, (segment,)))


@pytest.mark.parametrize("record", [offer([1 << 40, 1 << 40]), offer([-1, 1]), launch(1 << 20, 20), launch(0, 1 << 40)])
def test_what_no_engine_can_do_is_damage(record):
    built, facts = engine()
    with pytest.raises(FailedPrecondition, match="record 2 of passes does not fit its model"):
        replay_on(built, CONFIG, recording(facts, [OPENED, record]))
