"""The two sides of the comparison, with the same random networks.

Static graphs, exported and run by ONNX Runtime on this CPU; and packed rows over KV slots by torch, as the engine
serves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.flow.packed import FlowNetwork
from edgeflow.engine.flow.rows import FlowLayouts, FlowRows, PrefixSegment, StepSegment
from edgeflow.engine.placement import operator_table
from edgeflow.engine.policy import Placement
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.lab.export.graphs.flow import FlowExport, flow_program
from edgeflow.lab.export.graphs.graph_files import SharedWeights, to_onnx, trace, write_graph
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph, kv_names
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, FlowShape
from edgeflow.models.stack_norms import RowTimes

Feed = dict[str, NDArray[Any]]
CPU = torch.device("cpu")


class OnnxSide:
    """The graphs of a shape whose prefix has so many rows. batches: frames of a step, a graph each."""

    def __init__(self, programs: Sequence[StageGraph], folder: Path, threads: int) -> None:
        self._sessions = {(each.stage, each.batch): _session(folder / _file(each), threads) for each in programs}
        self._feeds = {(each.stage, each.batch): _feed(each) for each in programs}

    def towers(self, pixels: NDArray[Any]) -> None:
        """The rows of a frame's images, text and state."""
        feed = self._feeds[StageName.TOWERS, 1]
        feed["pixel_values"] = pixels
        self._sessions[StageName.TOWERS, 1].run(None, feed)

    def prefill(self, hidden: NDArray[Any]) -> list[NDArray[Any]]:
        """Keys and values [1, P, KH, D] of each layer."""
        feed = self._feeds[StageName.PREFILL, 1]
        feed["hidden"] = hidden
        rows: list[NDArray[Any]] = self._sessions[StageName.PREFILL, 1].run(None, feed)
        return rows

    def fill(self, batch: int, rows: Sequence[NDArray[Any]]) -> None:
        """Steps of a batch read these keys and values from now on, the same for each frame."""
        repeated = (np.repeat(each, batch, axis=0) for each in rows)
        self._feeds[StageName.STEP, batch] |= dict(zip(kv_names(len(rows) // 2), repeated, strict=True))

    def step(self, x: NDArray[Any]) -> NDArray[Any]:
        """x [B, H, A] → velocity [B, H, A], all at flow time 1"""
        feed = self._feeds[StageName.STEP, len(x)]
        feed["x"] = x
        velocity: NDArray[Any] = self._sessions[StageName.STEP, len(x)].run(None, feed)[0]
        return velocity


def export_graphs(
    shapes: Mapping[int, FlowShape], batches: Mapping[int, tuple[int, ...]], folder: Path, *, towers: bool
) -> dict[int, tuple[StageGraph, ...]]:
    """Write the graphs of shapes that differ only in their prefixes, by their rows; the stages of each.

    towers: write those of the first.
    """
    first = next(iter(shapes.values()))
    network = first.network(Placement(dtype=torch.float32, device=CPU, table=static_table()))
    written: dict[int, tuple[StageGraph, ...]] = {}
    with SharedWeights(folder) as weights:
        for prefix, shape in shapes.items():
            program = _program(shape, network, batches[prefix])
            whole = towers and shape is first
            stages = tuple(each for each in program.stages if whole or each.stage is not StageName.TOWERS)
            for stage in stages:
                write_graph(to_onnx(trace(stage)), stage, folder, weights, _file(stage))
            written[prefix] = stages
    return written


def _program(shape: FlowShape, network: FlowNetwork, batches: tuple[int, ...]) -> ModelProgram:
    flow = shape.config.flow
    return flow_program(
        FlowExport(
            network=network,
            sizes=shape.sizes,
            cameras=CAMERAS,
            side=flow.side,
            state=flow.state_dims,
            image_rows=shape.image_rows,
            text=(shape.text,),
            batches=batches,
        )
    )


def _session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session whose idle threads sleep."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _feed(stage: StageGraph) -> Feed:
    """The example inputs, all rows at the first flow time."""
    inputs = stage.inputs
    return {name: (value * 0 if name == "times" else value).numpy() for name, value in inputs.items()}


def _file(stage: StageGraph) -> str:
    return f"{stage.stage.value}-{stage.past or stage.rows}-{stage.rows}-{stage.batch}.onnx"


def served_network(shape: FlowShape, dtype: torch.dtype) -> FlowNetwork:
    """The network of a shape with the operators that serve it on this CPU."""
    return shape.network(Placement(dtype=dtype, device=CPU, table=operator_table(None, "float", CPU, dtype)))


class EngineSide:
    """A network over its slots, one for each frame in flight and one for the newest. frames: in flight."""

    def __init__(self, network: FlowNetwork, shape: FlowShape, frames: int) -> None:
        self._network, self._shape, self._frames = network, shape, frames
        decoder = network.decoder
        self._kv = decoder.kv_slots(frames + 1, rounded_capacity(shape.prefix + shape.sizes.rows))
        self._layouts = FlowLayouts(shape.sizes, decoder.kinds)
        self._nothing = torch.empty(0, 1)
        self._state = torch.zeros(1, shape.config.flow.state_dims)
        self._times = network.time_table(shape.sizes.times)
        self._ids = torch.zeros(shape.text, dtype=torch.long)

    @torch.inference_mode()
    def towers(self, pixels: Tensor) -> None:
        """The rows of a frame's images, text and state."""
        self._network.embed_prefix([pixels], [self._ids], self._state)

    @torch.inference_mode()
    def prefill(self, hidden: Tensor, slot: int = 0) -> None:
        """Rows of a prefix [P, E]; their keys and values enter a slot."""
        self._pass(hidden, None, self._places(slot, ()))

    @torch.inference_mode()
    def step(self, x: Tensor) -> Tensor:
        """x [n, H, A] of the frames in the first n slots → velocity [n, H, A], all at flow time 1"""
        return self._pass(None, x, self._places(None, range(len(x))))

    @torch.inference_mode()
    def tick(self, hidden: Tensor, x: Tensor) -> Tensor:
        """The prefix of the newest frame and a step of each one in flight, in one pass."""
        return self._pass(hidden, x, self._places(self._frames, range(len(x))))

    def keys(self, layer: int) -> Tensor:
        """Keys of the first slot's prefix [P, KH, D]."""
        keys: Tensor = self._kv.layer(layer).keys[0, : self._shape.prefix]
        return keys

    def _places(self, begins: int | None, steps: range | tuple[()]) -> FlowRows:
        rows = self._shape.prefix
        begin = [] if begins is None else [PrefixSegment(slot=begins, rows=rows)]
        stepping = [StepSegment(slot=slot, prefix=rows, step=1) for slot in steps]
        return self._layouts.of(begin, stepping)

    def _pass(self, hidden: Tensor | None, x: Tensor | None, places: FlowRows) -> Tensor:
        network, prefix = self._network, self._nothing if hidden is None else hidden.clone()
        if x is None:
            return network.decoder.forward(prefix, self._nothing, places.layout, self._kv)
        count, horizon = x.shape[:2]
        times = RowTimes(self._times, torch.zeros(count, horizon, dtype=torch.int64))
        rows, condition = network.embed_step(x, times, self._state.expand(count, -1))
        return network.velocity(network.decoder.forward(prefix, rows, places.layout, self._kv, condition))
