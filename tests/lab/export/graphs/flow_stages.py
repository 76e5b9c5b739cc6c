"""A flow policy's stages run as another engine would run them: padded towers, a prefill, batched steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.exported.flow import Bucket, BucketMasks
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes
from edgeflow.lab.export.graphs.flow import FlowExport, flow_program
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph
from edgeflow.lab.export.graphs.static import static_table
from tests.engine.flow.tiny_flow import INPUTS, PATCHES, SIDE, STATE, Shape, TinyFlowPolicy

TEXT = (4, 8)
Run = Callable[[StageGraph, Mapping[str, Tensor]], Sequence[Tensor]]


def policy_of(shape: Shape) -> TinyFlowPolicy:
    return TinyFlowPolicy(shape, table=static_table())


def program_of(policy: TinyFlowPolicy, *batches: int) -> ModelProgram:
    """batches: by default the candidates of one frame."""
    return flow_program(
        FlowExport(
            network=policy.network,
            sizes=policy.sizes,
            images=len(INPUTS.cameras),
            side=SIDE,
            state=STATE,
            image_rows=PATCHES,
            text=TEXT,
            batches=batches or (policy.sizes.candidates,),
        )
    )


def by_torch(stage: StageGraph, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
    """Run the function of a stage."""
    assert list(inputs) == list(stage.inputs)
    assert all(inputs[name].shape == each.shape for name, each in stage.inputs.items())
    with torch.no_grad():
        return stage.run(*inputs.values())


def denoised(program: ModelProgram, sizes: FlowSizes, frame: FlowFrame, run: Run = by_torch) -> list[Tensor]:
    """x before each step of every candidate, and the answer: N + 1 of [M, H, A]."""
    kinds, past = tuple(dict.fromkeys(program.kv.kinds)), program.kv.positions
    text = next(each for each in TEXT if each >= len(frame.prompt_ids))
    bucket = Bucket(images=len(INPUTS.cameras), image_rows=PATCHES, text=text, closing=sizes.closing)
    masks, used = BucketMasks(bucket, sizes, kinds, past), (len(frame.pixel_values), len(frame.prompt_ids))
    stages = {(each.stage, each.rows): each for each in program.stages}
    hidden = run(stages[StageName.TOWERS, bucket.rows], _towers(frame, bucket))[0]
    prefill = {"hidden": hidden, **masks.prefix(*used)}
    rows = run(stages[StageName.PREFILL, bucket.rows], prefill)
    step = stages[StageName.STEP, sizes.rows]
    kv = {name: _padded(each, past, step.batch) for name, each in zip(_kv_names(step), rows, strict=True)}
    x, found, mask = frame.noise, [], masks.step(*used)
    for index in range(sizes.steps):
        found.append(x)
        inputs = {"x": x, "times": torch.full(x.shape[:2], index)}
        if sizes.state:
            inputs["state"] = frame.state[None].expand(step.batch, -1)
        inputs |= {name: value.expand(step.batch, *value.shape) for name, value in mask.items()}
        x = x - run(step, inputs | kv)[0] / sizes.steps
    return [*found, x]


def _towers(frame: FlowFrame, bucket: Bucket) -> dict[str, Tensor]:
    """Places that nothing sees hold noise."""
    cameras, words = len(frame.pixel_values), len(frame.prompt_ids)
    pixels = torch.randn(bucket.images, 3, SIDE, SIDE) * 9
    pixels[:cameras] = frame.pixel_values
    ids = torch.full((bucket.text,), 7)
    ids[:words] = torch.tensor(frame.prompt_ids)
    return {"pixel_values": pixels, "prompt_ids": ids, "state": frame.state[None]}


def _padded(rows: Tensor, past: int, batch: int) -> Tensor:
    """Rows of a prefill [1, P, KH, D] in the slots of a step [B, T, KH, D], followed by noise."""
    places = torch.randn(batch, past, *rows.shape[2:]) * 9
    places[:, : rows.shape[1]] = rows
    return places


def _kv_names(step: StageGraph) -> list[str]:
    return [name for name in step.inputs if name.startswith(("key.", "value."))]
