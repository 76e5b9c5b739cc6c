"""Sections that replay passes, with recordings of a CPU in the place of CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from torch import Tensor

from edgeflow.config.chat import ChatConfig
from edgeflow.engine import executor
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.executor import Executor
from edgeflow.engine.program import PassOutputs
from edgeflow.engine.shapes import PassShape
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.gpu.bars import figures
from edgeflow.lab.gpu.section_order import Order
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting
from edgeflow.lab.gpu.sections import chat_speed, draft_speed, policy_speed, token_checks
from edgeflow.lab.gpu.sections import int4 as int4_section
from edgeflow.lab.gpu.sections.chat_speed import chat
from edgeflow.lab.gpu.sections.draft_speed import drafts
from edgeflow.lab.gpu.sections.int4 import int4
from edgeflow.lab.gpu.sections.policy_speed import policy
from edgeflow.lab.gpu.sections.token_checks import tokens
from edgeflow.lab.gpu.subjects.floors import DECODE_STEPS
from tests.engine.recorded_graphs import record

REPLAYABLE = built_in_table().forcing(packed_attention="masked", shift_kv_chain="indexed", linear="gemm")


@pytest.fixture
def setting(monkeypatch, tmp_path: Path) -> SectionSetting:
    monkeypatch.setattr(chat_speed, "REQUESTS", 2)
    monkeypatch.setattr(draft_speed, "SETTLED", (3,))
    monkeypatch.setattr(policy_speed, "ROUNDS", 1)
    monkeypatch.setattr(SectionSetting, "graphs", True)
    monkeypatch.setattr(SectionSetting, "table", lambda *_: REPLAYABLE)
    monkeypatch.setattr(token_checks, "_table", lambda _: REPLAYABLE)
    monkeypatch.setattr(executor, "CudaRecord", lambda _: record)
    known = {"device": "cpu", "size": "tiny", "frames": 10, "out": str(tmp_path), "ceilings": (3e10, 3e10)}
    return SectionSetting.of(Order(section="", ends=monotonic() + 600, **known), lambda _: None)


def test_replayed_tokens_are_compared_with_those_of_passes_run(setting):
    rows = tokens(setting)["tokens that differ"]
    ways = {(row["way"], row["graphs"]) for row in rows}
    assert ways == {
        *((f"pipelined, {shift}", graphs) for shift in ("rotate", "copy") for graphs in (False, True)),
        *((f"speculative, {shift}", graphs) for shift in ("rotate", "copy") for graphs in (False, True)),
        ("serial", True),
    }
    assert {row["share"] for row in rows} == {0.0}


def test_a_policy_is_timed_with_graphs_and_without(setting):
    found = policy(setting)
    rates = {row["system"]: row["frames/s"] for row in found["systems"]}
    assert len(rates) == 9 and {name for name in rates if name.endswith("graphs")} == {
        "serial, graphs",
        "pipelined, rotate, graphs",
        "pipelined, copy, graphs",
        "speculative, graphs",
    }
    assert found["recordings"] > 0 and found["passes without a recording"] == 0
    (row,) = [
        row
        for row in figures({"policy": {"found": found}}, "tiny")
        if row["figure"] == "pipelined / serial, both with graphs"
    ]
    assert row["measured"] == pytest.approx(rates["pipelined, rotate, graphs"] / rates["serial, graphs"])


def test_chat_runs_the_passes_of_the_service(setting, monkeypatch):
    """Chunks of any length and decode rows are replayed."""
    engines: list[ChatEngine] = []
    replayed: list[int] = []
    replay = Executor._replay

    class NotedReplays(ChatEngine):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            engines.append(self)

    def counted(self: Executor, shape: PassShape, staged: list[Tensor]) -> PassOutputs:
        replayed.append(sum(shape.lengths))
        return replay(self, shape, staged)

    monkeypatch.setattr(chat_speed, "ChatEngine", NotedReplays)
    monkeypatch.setattr(Executor, "_replay", counted)
    rows = chat(setting)["requests"]
    assert [row["prompt"] for row in rows] == [16, 24, 32, 64] and {row["graphs"] for row in rows} == {True}
    assert {each._prompts.graphs.eager_passes for each in engines} == {0}
    requests, chunk = 1 + 2 * chat_speed.REQUESTS, chat_speed.SMALL_CHUNK
    assert replayed.count(chunk) == requests * sum(-(-row["prompt"] // chunk) for row in rows)
    assert replayed.count(1) == len(replayed) - replayed.count(chunk) == requests * len(rows) * DECODE_STEPS
    assert all(row["ms/token p50"] <= row["ms/token p99"] and row["first token ms"] > 0 for row in rows)


def test_projections_of_4_bits_are_replayed(setting, monkeypatch):
    monkeypatch.setattr(int4_section, "CudaRecord", lambda _: record)
    monkeypatch.setattr(int4_section, "last_level_cache", lambda _: 0)
    for name in ("SAMPLES", "CALLS"):
        monkeypatch.setattr(int4_section, name, 1)
    found = int4(setting)
    assert found["replayed tokens equal launched ones"] and all(row["ok"] for row in found["projections"])
    rows = {row["figure"]: row for row in figures({"int4": {"found": found}}, "tiny")}
    by_name = {row["model"]: row for row in found["models"]}
    assert rows["tiny in 4 bits: projections of a row, share of copy bandwidth"]["measured"] == pytest.approx(
        by_name["tiny"]["one row, share of copy bandwidth"]
    )
    fps = {row["system"]: row["frames/s"] for row in found["systems"]}
    passes = rows["4 bits / model's dtype, pipelined"]
    assert passes["measured"] == pytest.approx(fps["4 bits"] / fps["model's dtype"]) and passes["bar"] == 1 / 1.05


def test_replayed_tokens_that_differ_are_reported(setting, monkeypatch):
    monkeypatch.setattr(int4_section, "CudaRecord", lambda _: record)
    monkeypatch.setattr(int4_section, "_models", lambda _: {})
    monkeypatch.setattr(int4_section, "_pipeline", lambda _: {})
    monkeypatch.setattr(int4_section, "_answer", lambda *_, graphs: ([int(graphs)], 1.0))
    with pytest.raises(OffError, match="replayed tokens"):
        int4(setting)


def test_chat_chunks_are_those_of_the_service():
    assert ChatConfig().prefill_chunk == chat_speed.PREFILL_CHUNK


def test_drafts_are_replayed_with_as_many_right_as_are_imposed(setting):
    answers = drafts(setting)["answers"]
    assert {row["drafts"] for row in answers} == {"none", "tree", "chain", "base alone"}
    assert all(row["tokens per pass"] == 24 / -(-24 // row["imposed"]) for row in answers)
