"""Static graphs of a random network, exported and run by ONNX Runtime on this CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.flow.policy import FlowNetwork
from edgeflow.engine.policy import Placement
from edgeflow.lab.export.graphs.flow import FlowExport, flow_program
from edgeflow.lab.export.graphs.graph_files import SharedWeights, to_onnx, trace, write_graph
from edgeflow.lab.export.graphs.stages import ModelProgram, StageProgram, kv_names
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.gpu.subjects.random_flow import CAMERAS, FlowShape

Feed = dict[str, NDArray[Any]]
CPU = torch.device("cpu")


class OnnxSide:
    """The graphs of a shape whose prefix has so many rows. batches: frames of a step, a graph each."""

    def __init__(self, programs: Sequence[StageProgram], folder: Path, threads: int) -> None:
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
) -> dict[int, tuple[StageProgram, ...]]:
    """Write the graphs of shapes that differ in their prefixes alone, by their rows; the stages of each.

    towers: write those of the first.
    """
    first = next(iter(shapes.values()))
    network = first.network(Placement(dtype=torch.float32, device=CPU, table=static_table()))
    written: dict[int, tuple[StageProgram, ...]] = {}
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


def _feed(stage: StageProgram) -> Feed:
    """The example inputs, all rows at the first flow time."""
    inputs = stage.inputs
    return {name: (value * 0 if name == "times" else value).numpy() for name, value in inputs.items()}


def _file(stage: StageProgram) -> str:
    return f"{stage.stage.value}-{stage.past or stage.rows}-{stage.rows}-{stage.batch}.onnx"
