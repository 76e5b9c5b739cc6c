"""A recording keeps alive the memory that its replays address, whatever the program that was recorded allocated."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from edgeflow.contract import CaptureError
from edgeflow.engine import staging
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.graphs import CudaRecord, Graphs
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels import packed_attention
from edgeflow.kernels.kv.formats import KVLayer
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.implementations import Implementation
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.models.chat import load_chat_model
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.control.test_lossless import make_engine, make_frames
from tests.engine.recorded_graphs import FreedMemoryError, record
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")


class Tiled:
    """Attention that keeps a table with the layout, as the kernels of a GPU do."""

    def __init__(self) -> None:
        self.tables: list[StorageWeakRef] = []

    def __call__(self, layout: PackedLayout, kv: KVSlots) -> Any:
        attend = packed_attention.masked(layout, kv)

        def attend_by_table(q: Tensor, layer: KVLayer) -> Tensor:
            table = layout.kept("tiles", lambda: self._make(len(q)))
            return attend(q[table], layer)

        return attend_by_table

    def _make(self, rows: int) -> Tensor:
        table = torch.arange(rows)
        self.tables.append(StorageWeakRef(table.untyped_storage()))
        return table

    def table(self) -> OperatorTable:
        table = built_in_table(Implementation(op_name="packed_attention", impl_id="tiled", function=self))
        return table.forcing(packed_attention="tiled", shift_kv_chain="indexed", linear="gemm")


def alive(references: list[StorageWeakRef]) -> list[bool]:
    gc.collect()
    return [not reference.expired() for reference in references]


def test_a_policy_engine_keeps_what_its_recordings_address(tmp_path):
    torch.set_num_threads(1)
    tiled = Tiled()
    path = write_checkpoint(tmp_path / "tiny", TinySize(kv_heads=2))
    policy = load_openvla(path, torch.float32, CPU, table=tiled.table())
    engine = PolicyEngine(policy, policy.K, 128, table=tiled.table(), graphs=True, record=record)
    frames = make_frames(policy, 4, seed=2)
    results = decode_serially(engine, frames)
    assert len(tiled.tables) > len(engine.graphs) > 1, "a pass with a prefill has one table more, for its last layer"
    assert all(alive(tiled.tables))
    plain = load_openvla(path, torch.float32, CPU)
    expected = decode_serially(make_engine(plain, 1), frames)
    assert [each.sampled for each in results] == [each.sampled for each in expected]
    del engine
    assert not any(alive(tiled.tables)), "nothing else kept them"


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_5_vl"])
def test_chat_keeps_what_its_recordings_address(tmp_path, kind: str, monkeypatch):
    torch.set_num_threads(1)
    write_chat_checkpoint(tmp_path, kind)
    tiled = Tiled()
    model = load_chat_model(tmp_path, torch.float32, CPU, table=tiled.table())
    indices: list[StorageWeakRef] = []

    def noted(**fields: Any) -> PackedLayout:
        layout = PackedLayout(**fields)
        indices.extend(StorageWeakRef(each.untyped_storage()) for each in (layout.row_slot, layout.sampled_rows))
        return layout

    monkeypatch.setattr(staging, "PackedLayout", noted)
    engine = ChatEngine(model, model.decoder.kv_slots(2, 300), chunk=4, graphs=True, record=record)
    engine.record_all(lambda *_: None)
    engine.seal()
    assert engine._prompts.graphs is not None
    shapes = list(engine._prompts.graphs._by_shape)
    chunks = [shape for shape in shapes if shape.prefills and any(shape.samples)]
    assert engine.recordings == len(indices) / 2 == len(shapes) and len(chunks) == 2
    assert len(tiled.tables) == len(shapes) + len(chunks), "a chunk that samples has one more, for its last layer"
    assert all(alive(tiled.tables + indices))
    prompt, params = model.text_prompt("abcdefg"), SamplingParams(max_tokens=6)
    expected = ChatEngine(load_chat_model(tmp_path, torch.float32, CPU), model.decoder.kv_slots(1, 300))
    answers = [Generation(each, prompt, params, ignore_stop=True) for each in (engine, expected)]
    for each, answer in zip((engine, expected), answers, strict=True):
        list(generate(each, answer, 4))
    assert engine._prompts.graphs.eager_passes == 0 and answers[0].tokens == answers[1].tokens
    del engine
    assert not any(alive(tiled.tables)), "nothing else kept them"


def test_the_recorder_of_these_tests_sees_memory_that_is_gone():
    graphs: Graphs[Tensor] = Graphs(lambda program: record(lambda: program() + torch.ones(1)))
    buffer = torch.zeros(1)
    outside = [torch.ones(1)]
    recording = graphs.find("shape", lambda: (buffer, lambda: buffer + outside[0]))
    assert recording is not None and recording.run(torch.ones(1)).item() == 3.0
    outside.clear()
    with pytest.raises(FreedMemoryError, match=r"\[1\] of torch.float32"):
        recording.run(torch.ones(1))


class NewGraph:
    """torch.cuda.CUDAGraph of torch 2.13 without a GPU: notes how it is captured."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.ended = False

    def capture_begin(self, pool: Any, capture_error_mode: str = "", check_input_liveness: bool = False) -> None:
        self.options = {"pool": pool, "mode": capture_error_mode, "checked": check_input_liveness}

    def capture_end(self) -> None:
        self.ended = True

    def replay(self) -> None: ...


class OldGraph(NewGraph):
    """That of torch 2.6, which cannot check inputs."""

    def capture_begin(self, pool: Any, capture_error_mode: str = "") -> None:  # type: ignore[override]
        super().capture_begin(pool, capture_error_mode)


@pytest.fixture(params=[NewGraph, OldGraph])
def graph_type(request, monkeypatch) -> type[NewGraph]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", request.param)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    for name in ("Stream", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    return request.param


def test_inputs_are_checked_where_torch_can_and_only_on_request(graph_type: type[NewGraph]):
    for wanted in (False, True):
        replay, outputs = CudaRecord(CPU, check_inputs=wanted)(lambda: "outputs")
        checked = wanted and graph_type is NewGraph
        assert replay.__self__.options == {"pool": "pool", "mode": "thread_local", "checked": checked}
        assert outputs == "outputs" and replay.__self__.ended


def test_no_graph_is_destroyed_before_its_record_not_even_a_failed_one(graph_type: type[NewGraph], monkeypatch):
    made: list[weakref.ref[NewGraph]] = []
    runs: list[int] = []

    def program() -> None:
        runs.append(1)
        if len(runs) % 3 == 0:  # the capture, after two warm-ups
            raise RuntimeError("operation not permitted when stream is capturing")

    class NotedGraphs(graph_type):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(torch.cuda, "CUDAGraph", NotedGraphs)
    record = CudaRecord(CPU)
    with pytest.raises(CaptureError, match="not permitted"):
        record(program)
    record(lambda: None)
    gc.collect()
    assert len(made) == 2 and all(each() is not None and each().ended for each in made)
    del record
    gc.collect()
    assert all(each() is None for each in made)


def test_a_failed_capture_tells_what_failed_and_not_how_it_ended(graph_type: type[NewGraph], monkeypatch):
    def end(graph: NewGraph) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")

    def program() -> None:
        if not gc.isenabled():  # in the capture
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(graph_type, "capture_end", end)
    told = "graphs: a pass could not be captured: operation not permitted when stream is capturing"
    with pytest.raises(CaptureError, match=f"^{told}$"):
        CudaRecord(CPU)(program)
    assert gc.isenabled()
    with pytest.raises(CaptureError, match="previous error"):
        CudaRecord(CPU)(lambda: None)
