"""Answers bring the times of their passes where these are wanted, and nothing of them elsewhere."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

import msgpack
import torch

from edgeflow.ipc.coding import decode, encode
from edgeflow.ipc.messages import FrameResult, Message, TimedFrameResult
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import MonotonicClock
from tests.engine.control.test_recording import CONFIG, answers

VALUES = attrgetter("seq", "epoch", "chunk", "token_ids", "valid", "passes", "settled")


def test_a_timed_loop_answers_the_same_with_a_span_per_pass():
    with torch.no_grad():
        built = build_engine(CONFIG)
        found: dict[bool, list[Message]] = {}
        for timed in (False, True):
            said = found[timed] = []
            worker = Worker(built.engine, Scheduler(built.limits), MonotonicClock(), said.append, timed=timed)
            assert len(answers(worker, said, 12)) == 12
    plain, told = ([each for each in found[timed] if isinstance(each, FrameResult)] for timed in (False, True))
    assert {type(each) for each in plain} == {FrameResult} and list(map(VALUES, told)) == list(map(VALUES, plain))
    for each in told:
        assert isinstance(each, TimedFrameResult) and sum(span.steps for span in each.spans) == each.passes == 7
        edges = [time for span in each.spans for time in (span.start_ns, span.end_ns)]
        assert edges == sorted(edges) and edges[-1] - edges[0] <= each.inference_ns
        assert each.spans[0].prefills == 1
        assert decode(*encode(each)) == each
    assert max(span.decodes for each in told for span in each.spans) == 6  # beside the prefill of a later frame
    header, _ = encode(plain[0])
    assert len(msgpack.unpackb(header)) == 1 + len(fields(FrameResult)) and "spans" not in FrameResult.__annotations__
