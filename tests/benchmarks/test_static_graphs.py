"""The benchmark of static graphs and the tables of their page: shapes, work, both sides, tables, picture."""

from __future__ import annotations

import json
import re

import pytest
import torch
from rich.console import Console

from benchmarks.pages.files import results
from benchmarks.static_graphs.compared_systems import EngineSide, OnnxSide, export_graphs, served_network
from benchmarks.static_graphs.latency_rounds import MODELS, PREFIXES, SUFFIXES, inputs_of, shaped, work_of
from benchmarks.static_graphs.operators import counts_of
from benchmarks.static_graphs.report import (
    ENGINE16,
    ENGINE32,
    JOURNEY,
    JOURNEY_PREFILL,
    JOURNEY_STEP,
    ONNX,
    ShapeRow,
    as_json,
    tables,
)
from benchmarks.static_graphs.timing import best, ceilings_of, in_turn, watched
from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.gpu.subjects.floors import Ceilings, PassFloor
from edgeflow.lab.gpu.subjects.flow_floors import prefix_work, step_work
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS

PUBLISHED, TINY = MODELS["smolvla-450m"], MODELS["tiny"]
RATES = dict.fromkeys((ONNX, ENGINE32, ENGINE16), Ceilings(1e10, 1e11))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_shape_has_exactly_the_rows_that_are_asked_for(model):
    for prefix in model.prefixes:
        for suffix in model.suffixes:
            shape = shaped(model.shape, prefix, suffix)
            assert (shape.prefix, shape.sizes.rows) == (prefix, suffix)
    least = CAMERAS * model.shape.image_rows + model.shape.sizes.closing
    with pytest.raises(ValueError, match=f"prefix: {least} rows; .* take {least}"):
        shaped(model.shape, least, 4)


def test_the_papers_figures_are_in_the_shapes_that_are_measured():
    assert set(JOURNEY_PREFILL) == set(PREFIXES)
    assert set(JOURNEY_STEP) == {(prefix, suffix) for prefix in PREFIXES for suffix in SUFFIXES}


def test_a_steps_work_is_that_of_a_hand_calculation():
    """16 layers of 720 with 15 heads over 5 of 64, 8 of which have only queries; rows of 512, followed by 32."""
    projections = 16 * (2 * 720 * 960 + 3 * 720 * 2048) + 8 * 720 * 2 * 320
    keys = 16 * 512 + 8 * (32 + 1) / 2
    step = work_of(shaped(PUBLISHED.shape, 512, 32), 4)["step"]
    assert step.flops == 32 * (2 * projections + 4 * 960 * keys)
    assert step.bytes == 4 * (projections + 16 * 2 * 320 * (512 + 32))


def test_stages_are_the_whole_work():
    shape = shaped(PUBLISHED.shape, 1024, 64)
    work = work_of(shape, 2, frames=3)
    assert work["towers"] + work["prefill"] == prefix_work(shape)
    assert work["tick"] == work["prefill"] + step_work(shape, 3)


def test_calls_take_turns_and_the_first_round_is_not_counted():
    order: list[str] = []
    found = in_turn({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2, repeats=3)
    assert order == list("aaabbb" * 3)
    for figures in found.values():
        assert figures["samples"] == 6
        assert figures["min"] <= figures["median"] <= figures["max"]
        assert figures["min"] <= figures["mean"] <= figures["max"]


def test_the_work_of_other_processes_is_noted():
    found: dict[str, float] = {}
    with watched(found):
        torch.randn(200, 200) @ torch.randn(200, 200)
    assert found["seconds"] >= 0 and found["cores_of_others"] >= 0
    assert {"load_before", "load_after"} <= set(found)


def test_the_best_rates_are_taken():
    assert best([Ceilings(1, 5), Ceilings(3, 2)]) == Ceilings(3, 5)


def test_rates_are_measured(monkeypatch):
    monkeypatch.setattr("benchmarks.static_graphs.timing.PRODUCT", 64)
    monkeypatch.setattr("benchmarks.static_graphs.timing.COPIED", 1 << 12)
    rates = ceilings_of(torch.float32)
    assert 0 < rates.bandwidth < 1e13 and 0 < rates.matrix_rate < 1e15


def row(stage: str, prefix: int, suffix: int, system: str, ms: float) -> ShapeRow:
    figures = {"mean": ms, "median": ms, "min": ms, "max": ms, "cpu_median": 2 * ms, "samples": 3}
    return ShapeRow(stage=stage, prefix=prefix, suffix=suffix, system=system, ms=figures, work=PassFloor(1e9, 1e8))


def rows() -> list[ShapeRow]:
    systems = (ONNX, ENGINE32, ENGINE16)
    prefills = [row("prefill", prefix, 32, system, 40.0) for prefix in PREFIXES for system in systems]
    steps = [row("step", *place, system, 20.0) for place in JOURNEY_STEP for system in systems]
    return [*prefills, *steps, row("tick", 512, 32, ONNX, 9.0)]


def test_the_tables_have_the_papers_figures_beside_ours():
    console = Console(width=200, record=True)
    for each in tables(rows(), RATES):
        console.print(each)
    told = console.export_text()
    assert told.count(JOURNEY) == len(JOURNEY_PREFILL) + len(JOURNEY_STEP)
    assert re.search(r"2048 +│ - +│ Journey 6M.* 899\.39 ", told)
    assert re.search(r"512 +│ 32 +│ Journey 6M.* 12\.51 +│ 12\.42 +│ 12\.31 +│ 12\.89 ", told)
    assert re.search(r"512 +│ 32 +│ engine, float32 +│ 20\.0 .* 10\.0 +│ 2\.00", told)


def test_a_row_is_kept_with_its_floor():
    kept = json.loads(json.dumps(as_json(row("prefill", 512, 32, ONNX, 40.0), RATES)))
    assert (kept["floor_ms"], kept["min_over_floor"], kept["journey_6m_ms"]) == (10.0, 4.0, [74.26])
    assert (kept["flops"], kept["bytes"]) == (10**9, 10**8)


@pytest.mark.night
def test_both_sides_compute_the_same(tmp_path):
    shape = shaped(TINY.shape, *TINY.tick)
    frames = shape.sizes.steps
    network = served_network(shape, torch.float32)
    hidden, x, _ = inputs_of(shape, network.decoder.prefix_width)
    stages = export_graphs({shape.prefix: shape}, {shape.prefix: (frames,)}, tmp_path, towers=False)[shape.prefix]
    graphs, engine = OnnxSide(stages, tmp_path, threads=1), EngineSide(network, shape, frames)
    kept = graphs.prefill(hidden[None].numpy())
    for slot in range(frames):
        engine.prefill(hidden, slot)
    torch.testing.assert_close(torch.from_numpy(kept[0][0]), engine.keys(0), rtol=1e-4, atol=1e-5)
    graphs.fill(frames, kept)
    every = x.repeat(frames, 1, 1)
    expected = engine.step(x).expand(frames, -1, -1)
    for velocity in (torch.from_numpy(graphs.step(every.numpy())), engine.tick(hidden, every), engine.step(every)):
        torch.testing.assert_close(velocity, expected, rtol=1e-4, atol=1e-5)


def test_the_operators_on_file_are_those_of_a_new_graph():
    step = StageName.STEP
    kept = results()["static-graphs-operators"].data["models"]["demo-flow"]["plain"][step]
    assert kept == counts_of("demo-flow", (), [step])[step], "run `python -m benchmarks.static_graphs.operators`"
