"""The recorder of passes: it never waits, and a loop that is not recorded is the plain one."""

from __future__ import annotations

import msgspec
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.engine.control.loop import ControlLoop
from edgeflow.engine.control.recording import PassRecorder
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, SubmitFrame
from edgeflow.pass_records import AnyPassRecord, EngineRecord, LaunchRecord, ResetRecord, pass_schema
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine
from edgeflow.worker.facts import engine_facts
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import ManualClock
from edgeflow_client.recording.ring import LEAST_BYTES, RecordRing

CONFIG = ServiceConfig(device="cpu", max_sessions=1, drain_after_ms=0, insecure=True, tokens_file="/secret/tokens")


def answers(worker: Worker, said: list[Message], count: int) -> list[tuple[float, ...]]:
    worker.inbox.put(OpenSession(session=1, epoch=1, pace=Pace(7), unnorm_key=""))
    for seq in range(1, count + 1):
        pixels = bytes([seq]) * (32 * 32 * 3)
        worker.inbox.put(
            SubmitFrame(session=1, epoch=1, seq=seq, sizes=[32, 32], instruction="go", payload=pixels, stamp_ns=seq)
        )
        worker.step()
    while worker.step():
        pass
    return [each.chunk.values for each in said if isinstance(each, FrameResult)]


def test_a_full_ring_loses_records_and_no_answers():
    with torch.no_grad():
        built = build_engine(CONFIG)
        facts = engine_facts(CONFIG, built)
        found = {}
        for name in ("plain", "recorded"):
            ring, said = RecordRing.make(LEAST_BYTES), list[Message]()
            observer = PassRecorder(ring, facts) if name == "recorded" else None
            worker = Worker(built.engine, Scheduler(built.limits), ManualClock(), said.append, observer=observer)
            assert (type(worker._control) is ControlLoop) == (observer is None)
            found[name] = answers(worker, said, 40)
            reader = RecordRing(ring.descriptor)
            records = [msgspec.msgpack.decode(each.head, type=AnyPassRecord) for each in reader.look()]
            lost = ring.lost
            ring.close()
    assert found["recorded"] == found["plain"] and len(found["plain"]) == 40
    assert lost > 0 and isinstance(records[0], EngineRecord)
    times = [each.time_ns for each in records]
    assert times == sorted(set(times))
    launched = [each.planned.number for each in records if isinstance(each, LaunchRecord) and each.planned]
    assert launched == list(range(len(launched)))


def test_a_record_that_cannot_be_made_is_lost():
    ring = RecordRing.make(LEAST_BYTES)
    with torch.no_grad():
        recorder = PassRecorder(ring, engine_facts(CONFIG, build_engine(CONFIG)))
    recorder.write(ResetRecord, session=1, epoch=1 << 70)
    assert ring.lost == 1


def test_facts_have_the_engine_and_no_secrets():
    with torch.no_grad():
        facts = engine_facts(CONFIG, build_engine(CONFIG))
    assert "secret" not in facts.config and "tls" not in msgspec.json.decode(facts.config)
    assert ServiceConfig.model_validate_json(facts.config).max_sessions == facts.sessions == 1
    assert facts.threads == torch.get_num_threads() and facts.cpu_capability
    assert facts.libraries["torch"] == torch.__version__ and facts.operators["linear decode"]


def test_the_schema_names_every_kind():
    schema = msgspec.json.decode(pass_schema())
    assert set(schema["discriminator"]["mapping"]) >= {"engine", "opened", "closed", "frame", "pass", "commit"}
