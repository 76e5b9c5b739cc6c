"""The measurements of `benchmarks.static_graphs.latency`: shapes, sides and rounds.

A shape is a prefix of so many rows and a step of so many, in the sizes of SmolVLA-450M.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from benchmarks.command import keep, machine_facts, options
from benchmarks.static_graphs.compared_systems import EngineSide, OnnxSide, export_graphs, served_network
from benchmarks.static_graphs.report import ENGINE16, ENGINE32, ONNX, ShapeRow, as_json, tables
from benchmarks.static_graphs.timing import best, ceilings_of, in_turn, watched
from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.flow.packed import FlowNetwork
from edgeflow.lab.export.graphs.stages import StageGraph
from edgeflow.lab.gpu.subjects.floors import NUMBER_BYTES, Ceilings, PassFloor
from edgeflow.lab.gpu.subjects.flow_floors import language_work, step_work, vision_work
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, PUBLISHED, TINY, FlowShape
from edgeflow_client.loadtest.terminal import table_console

PREFIXES, SUFFIXES = (512, 1024, 2048), (32, 64)
TINY_PREFIXES, TINY_SUFFIXES = (16, 24), (4, 6)
DTYPES = {ENGINE32: torch.float32, ENGINE16: torch.bfloat16}
SYSTEMS = {ONNX: torch.float32, **DTYPES}
CLOSE = 1e-3
"""The largest difference of keys and velocities in float32, relative to the largest value."""


@dataclass(frozen=True, slots=True)
class Model:
    """A network's sizes with the shapes that it is measured in."""

    shape: FlowShape
    prefixes: tuple[int, ...]
    suffixes: tuple[int, ...]
    tick: tuple[int, int]
    """Rows of prefix and suffix of a pipelined tick: a prefill, and a step of every frame in flight."""


MODELS: Mapping[str, Model] = {
    "smolvla-450m": Model(PUBLISHED[0], PREFIXES, SUFFIXES, (512, 32)),
    "tiny": Model(TINY[0], TINY_PREFIXES, TINY_SUFFIXES, (TINY_PREFIXES[0], TINY_SUFFIXES[0])),
}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The figures of a run."""

    arguments: argparse.Namespace
    rows: list[ShapeRow] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    """Differences between the two systems, by name of the compared values."""

    def add(self, stage: str, shape: FlowShape, calls: Mapping[str, Callable[[], object]], *, repeats: int = 1) -> None:
        """Time calls in turn and keep a row for each."""
        times = in_turn(calls, self.arguments.rounds, repeats)
        for system, ms in times.items():
            work = work_of(shape, SYSTEMS[system].itemsize, shape.sizes.steps)[stage]
            row = ShapeRow(stage=stage, prefix=shape.prefix, suffix=shape.sizes.rows, system=system, ms=ms, work=work)
            self.rows.append(row)
            print(f"{stage} {row.prefix}/{row.suffix}, {system}: median {ms['median']:.1f} ms", flush=True)


def measure(description: str | None) -> int:
    """Measure and print; 1 where the two sides differ. description: of the command."""
    arguments = _arguments(description)
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    model, run = MODELS[arguments.model], MeasuredRun(arguments)
    found: dict[str, Any] = {}
    with watched(found):
        rates = [_rates()]
        for suffix in arguments.suffixes or model.suffixes:
            for _ in _measured(run, model, suffix, arguments.prefixes or model.prefixes):
                _keep(run, found, rates)
        rates.append(_rates())
    ceilings = _ceilings(rates)
    for table in tables(run.rows, ceilings):
        table_console().print(table)
    for name, difference in run.differences.items():
        print(f"{name}: differ by {difference:.1e} of the largest")
    _keep(run, found, rates)
    return int(any(not difference <= CLOSE for difference in run.differences.values()))


def _keep(run: MeasuredRun, found: Mapping[str, Any], rates: Sequence[Mapping[torch.dtype, Ceilings]]) -> None:
    """Write what has been measured so far."""
    ceilings = _ceilings(rates)
    figures = {"rows": [as_json(row, ceilings) for row in run.rows], "differences": run.differences}
    keep(run.arguments.json, {**_facts(run.arguments), **found, "rates": [_named(each) for each in rates], **figures})


def _ceilings(rates: Sequence[Mapping[torch.dtype, Ceilings]]) -> dict[str, Ceilings]:
    """The best rates by system."""
    return {system: best([each[dtype] for each in rates]) for system, dtype in SYSTEMS.items()}


def _measured(run: MeasuredRun, model: Model, suffix: int, prefixes: tuple[int, ...]) -> Iterator[int]:
    """Measure all prefixes with steps of so many rows; each prefix that is done.

    Prefills and towers are measured only with the first suffix.
    """
    shapes = {prefix: shaped(model.shape, prefix, suffix) for prefix in prefixes}
    first = suffix == (run.arguments.suffixes or model.suffixes)[0]
    batches = {
        prefix: (1, shape.sizes.steps) if (prefix, suffix) == model.tick else (1,) for prefix, shape in shapes.items()
    }
    with tempfile.TemporaryDirectory(dir=run.arguments.folder) as name:
        folder = Path(name)
        graphs = export_graphs(shapes, batches, folder, towers=first)
        networks = {system: served_network(shapes[prefixes[0]], dtype) for system, dtype in DTYPES.items()}
        for prefix, shape in shapes.items():
            _cell(run, shape, graphs[prefix], folder, networks, ticks=len(batches[prefix]) > 1, whole=first)
            yield prefix


def _cell(
    run: MeasuredRun,
    shape: FlowShape,
    stages: tuple[StageGraph, ...],
    folder: Path,
    networks: Mapping[str, FlowNetwork],
    *,
    ticks: bool,
    whole: bool,
) -> None:
    """One shape. ticks: measure them too. whole: measure prefills."""
    graphs = OnnxSide(stages, folder, run.arguments.threads)
    frames = shape.sizes.steps if ticks else 1
    engines = {system: EngineSide(network, shape, frames) for system, network in networks.items()}
    hidden, x, pixels = inputs_of(shape, next(iter(networks.values())).decoder.prefix_width)
    rows = graphs.prefill(hidden[None].numpy())
    graphs.fill(1, rows)
    for system, engine in engines.items():
        for slot in range(frames):
            engine.prefill(hidden.to(DTYPES[system]), slot)
    place = f"{shape.prefix}/{shape.sizes.rows}"
    run.differences[f"keys of the last layer, {place}"] = _difference(
        torch.from_numpy(rows[-2][0]), engines[ENGINE32].keys(len(rows) // 2 - 1)
    )
    velocity = torch.from_numpy(graphs.step(x.numpy()))
    run.differences[f"velocity, {place}"] = _difference(velocity, engines[ENGINE32].step(x))
    if any(each.stage is StageName.TOWERS for each in stages):
        run.add("towers", shape, _calls(graphs, engines, "towers", pixels))
    if whole:
        run.add("prefill", shape, _calls(graphs, engines, "prefill", hidden))
    run.add("step", shape, _calls(graphs, engines, "step", x), repeats=shape.sizes.steps)
    if ticks:
        graphs.fill(frames, rows)
        run.add("tick", shape, _ticks(graphs, engines, hidden, x.repeat(frames, 1, 1)))


def _calls(
    graphs: OnnxSide, engines: Mapping[str, EngineSide], stage: str, given: Tensor
) -> dict[str, Callable[[], object]]:
    """A stage by each system. Prefills of a graph have a batch."""
    array = given[None].numpy() if stage == "prefill" else given.numpy()
    calls: dict[str, Callable[[], object]] = {ONNX: lambda: getattr(graphs, stage)(array)}
    for system, engine in engines.items():
        cast = given.to(DTYPES[system]) if stage == "prefill" else given
        calls[system] = lambda engine=engine, cast=cast: getattr(engine, stage)(cast)
    return calls


def _ticks(
    graphs: OnnxSide, engines: Mapping[str, EngineSide], hidden: Tensor, x: Tensor
) -> dict[str, Callable[[], object]]:
    rows, noise = hidden[None].numpy(), x.numpy()
    calls: dict[str, Callable[[], object]] = {ONNX: lambda: (graphs.prefill(rows), graphs.step(noise))}
    for system, engine in engines.items():
        cast = hidden.to(DTYPES[system])
        calls[system] = lambda engine=engine, cast=cast: engine.tick(cast, x)
    return calls


def inputs_of(shape: FlowShape, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a prefix [P, E] of a width E, latents [1, H, A] and pixels [C, 3, h, w], the same at every call."""
    draws, flow, sizes = torch.Generator().manual_seed(0), shape.config.flow, shape.sizes
    hidden = torch.randn(shape.prefix, width, generator=draws)
    x = torch.randn(1, sizes.horizon, sizes.dims, generator=draws)
    return hidden, x, torch.rand(CAMERAS, 3, flow.side, flow.side, generator=draws) * 2 - 1


def shaped(shape: FlowShape, prefix: int, suffix: int) -> FlowShape:
    """The shape whose prefix and steps have exactly so many rows: three cameras, the state, and text for the rest."""
    flow = replace(shape.config.flow, chunk=suffix, horizon=suffix)
    text = prefix - CAMERAS * shape.image_rows - shape.sizes.closing
    if text < 1:
        raise ValueError(f"prefix: {prefix} rows; images and state take {prefix - text} and a text at least one")
    return replace(shape, config=replace(shape.config, flow=flow), text=text)


def work_of(shape: FlowShape, number_bytes: int, frames: int = 1) -> dict[str, PassFloor]:
    """FLOPs and bytes of each stage, and of a tick of so many frames: a prefill, and a step of each."""
    prefill = language_work(shape)
    works = {"towers": vision_work(shape), "prefill": prefill, "step": step_work(shape)}
    works["tick"] = prefill + step_work(shape, frames)
    return {name: PassFloor(work.flops, work.bytes * number_bytes / NUMBER_BYTES) for name, work in works.items()}


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _facts(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {name: str(value) for name, value in vars(arguments).items() if name not in ("json", "folder")}
    versions = {"onnxruntime": onnxruntime.__version__, "numpy": np.__version__}
    return {**machine_facts(), **versions, "instructions": torch.backends.cpu.get_cpu_capability(), **asked}


def _rates() -> dict[torch.dtype, Ceilings]:
    """The rates that a product and a copy reach now, by dtype."""
    return {dtype: ceilings_of(dtype) for dtype in dict.fromkeys(SYSTEMS.values())}


def _named(rates: Mapping[torch.dtype, Ceilings]) -> dict[str, dict[str, float]]:
    return {
        str(dtype).removeprefix("torch."): {
            "product_gflop_s": round(each.matrix_rate / 1e9, 1),
            "copy_gb_s": round(each.bandwidth / 1e9, 2),
        }
        for dtype, each in rates.items()
    }


def _arguments(description: str | None) -> argparse.Namespace:
    parser = options(description)
    parser.add_argument("--model", choices=list(MODELS), default=next(iter(MODELS)), help="tiny: to try the benchmark")
    parser.add_argument("--prefixes", type=int, nargs="+")
    parser.add_argument("--suffixes", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each system; a turn of steps is ten of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where graphs are written, 1.5 GB, and removed again")
    parser.add_argument("--beside", default="", help="what else runs on the machine, for the result file")
    return parser.parse_args()
