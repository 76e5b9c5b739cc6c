"""A flow policy to export as static graphs, and the preprocessing that other engines need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgeflow.engine.policy import Placement
from edgeflow.lab.export.graphs.flow import FlowExport, flow_program
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.policies.flow.config import FlowProcessors, FlowSettings
from edgeflow.policies.flow.policy import FlowArchitecture
from edgeflow.policies.lerobot import STATE, Affine
from edgeflow.text.tokenizer import TOKENIZER_FILE
from edgeflow_client.errors import CheckpointError


def export_flow(
    directory: Path,
    architecture: FlowArchitecture[Any],
    shapes: ExportShapes,
    processors: FlowProcessors | None,
    settings: FlowSettings | None,
) -> ModelProgram:
    """All stages of a checkpoint.

    processors, settings: None if the folder has none, like recordings of a network.
    """
    flow, sizes = architecture.flow, architecture.sizes
    if settings is not None:
        sizes = replace(sizes, steps=settings.steps or sizes.steps, candidates=settings.candidates)
    shapes.no_positions(architecture.family)
    if architecture.vision.absent:
        raise CheckpointError("config.json.empty_cameras: with add_image_special_tokens only 0 can be exported")
    text = shapes.texts(flow.prompt, flow.prompt, f"prompts of this checkpoint have at most {flow.prompt}")
    placement = Placement(dtype=torch.float32, device=torch.device("cpu"), table=static_table())
    network = architecture.read_network(directory, placement)
    program = flow_program(
        FlowExport(
            network=network,
            sizes=sizes,
            images=flow.images,
            side=flow.side,
            state=flow.state_dims,
            image_rows=architecture.vision.rows,
            text=text,
            batches=shapes.batches or tuple(sorted({sizes.candidates, sizes.candidates * sizes.steps})),
        )
    )
    described = preprocessing(directory, architecture, processors, sizes.steps)
    return replace(program, preprocessing={**described, "vocabulary": len(network.prefix.table)})


def preprocessing(
    directory: Path, architecture: FlowArchitecture[Any], processors: FlowProcessors | None, steps: int
) -> dict[str, Any]:
    """The steps from observations to the inputs of the towers, and from latents to actions."""
    flow = architecture.flow
    described: dict[str, Any] = {
        "cameras": [camera.name for camera in flow.cameras],
        "image": {
            "side": flow.side,
            "resize": "bilinear, no antialiasing, corners not aligned, aspect kept",
            "margin": f"black, {architecture.margin.value}",
            "range": [-1.0, 1.0],
        },
        "state": {"size": flow.state_inputs, "padded": flow.state_dims},
        "action": {"size": flow.action, "padded": flow.dims, "rows": flow.chunk, "played": flow.horizon},
        "denoising": {
            "steps": steps,
            "times": [1.0 - step / steps for step in range(steps)],
            "noise": "standard normal",
            "update": "x - velocity / steps",
        },
    }
    if flow.history > 1:
        described["history"] = {"frames": flow.history, "step_ms": flow.history_step_ms}
    if flow.most_delay_ms:
        described["most_delay_ms"] = flow.most_delay_ms
    if processors is not None:
        if not processors.tokenizer.is_relative_to(directory):
            raise CheckpointError(
                f"{directory} lacks its tokenizer, which is in the hub's cache: run `edgeflow pull` with a folder that "
                "holds both, and export that"
            )
        tokenizer = (processors.tokenizer / TOKENIZER_FILE).relative_to(directory)
        described["text"] = {"tokens": processors.tokens, "tokenizer": tokenizer.as_posix()}
        normalisation = processors.normalisation
        described["state"] |= {"normalise": _affine(normalisation.inputs.get(STATE))}
        described["action"] |= {"restore": _affine(normalisation.action)}
    return described


def _affine(affine: Affine | None) -> dict[str, Any] | None:
    """normalised = (x - centre) / divisor - origin, restored = (y + origin) * factor + centre."""
    if affine is None:
        return None
    numbers = {name: _numbers(getattr(affine, name)) for name in ("centre", "divisor", "factor")}
    return {**numbers, "origin": affine.origin}


def _numbers(values: Any) -> list[float]:
    found: list[float] = np.asarray(values, np.float64).ravel().tolist()
    return found
