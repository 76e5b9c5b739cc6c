"""Intermediate values of the answers to recorded frames, in the stored form: with rows for absent cameras and tokens,
of which only masks are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes
from edgeflow.engine.flow.packed import FlowNetwork
from edgeflow.engine.flow.rows import FlowLayouts, PrefixSegment, StepSegment
from edgeflow.kernels.kv.slots import KVSlots, rounded_capacity
from edgeflow.lab.verify.policies.flow.recorded import RecordedBatch
from edgeflow.models.stack_norms import RowTimes
from edgeflow.policies.flow.network import PrefixedNetwork
from edgeflow.policies.smolvla.config import ENCLOSING

IMAGES = ("mid.images", "mid.images_after_resize")
PAD_MASK = "mid.prefix_pad_masks"
KEYS, VALUES = "mid.prefix_k_layer", "mid.prefix_v_layer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InnerValues:
    """The intermediate values of one frame."""

    embeddings: Tensor
    hidden: Tensor
    """`embeddings`, `hidden` [L_P, E]: of its prefix before and after the stack."""
    kv: KVSlots
    """Its slot."""
    sees: Tensor
    turned: Tensor
    """`sees` [L_P, L_P], `turned` [L_P]: what rows of the prefix see, and their positions."""
    step_sees: Tensor
    step_turned: Tensor
    """`step_sees` [R, L_P + R], `step_turned` [R]: the same for a step."""
    rows: Tensor
    last: Tensor
    """`rows` [N, R, E'], `last` [R, E']: rows of the steps, and after the expert in the first step."""


def inner_values_of(network: FlowNetwork, sizes: FlowSizes, frame: FlowFrame, x: Tensor) -> InnerValues:
    """Run the networks over one frame.

    x [N, H, A]: before each step.
    """
    decoder = network.decoder
    device, length = decoder.device, network.prefix_rows(len(frame.pixel_values), len(frame.prompt_ids))
    layouts = FlowLayouts(replace(sizes, candidates=1), decoder.kinds)
    begin = layouts.of([PrefixSegment(slot=0, rows=length, ids=frame.prompt_ids)], [], device)
    step = layouts.of([], [StepSegment(slot=0, prefix=length, step=1)], device)
    state = frame.state.to(device)[None]
    (embeddings,) = network.embed_prefix([frame.pixel_values.to(device)], begin.ids, state)
    kv = decoder.kv_slots(1, rounded_capacity(length + sizes.rows))
    hidden, _ = decoder.run(embeddings.clone(), embeddings[:0], begin.layout, kv, None, norm_prefix=True)
    table = network.time_table(sizes.times.to(device))
    of_rows = torch.arange(sizes.steps, device=device)[:, None, None].expand(-1, 1, sizes.horizon)
    embedded = [
        network.embed_step(each[None].to(device), RowTimes(table, of_row), state[:, : sizes.state])
        for each, of_row in zip(x, of_rows, strict=True)
    ]
    rows, condition = embedded[0]
    last = decoder.forward(embeddings[:0], rows.clone(), step.layout, kv, condition)
    return InnerValues(
        embeddings=embeddings.cpu(),
        hidden=hidden.cpu(),
        kv=kv,
        sees=begin.layout.joint.seen().cpu(),
        turned=begin.layout.joint.rope_position[0].cpu(),
        step_sees=step.layout.joint.seen().cpu(),
        step_turned=step.layout.joint.rope_position[0].cpu(),
        rows=torch.stack([each.cpu() for each, _ in embedded]),
        last=last.cpu(),
    )


def values_inside(network: PrefixedNetwork, sizes: FlowSizes, recording: RecordedBatch, x: Tensor) -> dict[str, Tensor]:
    """Values of prefix and steps of a case, by stored name.

    x [N, B, H, A]: before each step.
    """
    images = recording.images
    pad = _pad_mask(network, sizes, recording)
    frames = [inner_values_of(network, sizes, each, x[:, index]) for index, each in enumerate(recording.frames)]
    stored = recording.case.tensors

    def filled(name: str, of: Callable[[InnerValues], Tensor]) -> Tensor:
        """The stored tensor [B, L, …] with the computed values in its valid rows."""
        found = stored[name].clone()
        for each, valid, inside in zip(found, pad, frames, strict=True):
            each[valid] = of(inside).to(each.dtype)
        return found

    values: dict[str, Tensor] = {
        "mid.image_masks": _slots(torch.ones(images.shape[:2]), stored.get("mid.image_masks"), 0),
        PAD_MASK: pad,
        "mid.prefix_att_masks": _blocks(pad, sizes.closing),
        "mid.timesteps": sizes.times[:-1],
        "mid.suffix_embs": torch.stack([inside.rows for inside in frames], dim=1),
        "mid.suffix_last_hidden_step0": torch.stack([inside.last for inside in frames]),
        "mid.suffix_position_ids": torch.stack([inside.step_turned for inside in frames]),
        "mid.prefix_attend": torch.stack([_spread(each.sees, valid) for each, valid in zip(frames, pad, strict=True)]),
        "mid.suffix_attend": torch.stack(
            [_spread_columns(each.step_sees, valid) for each, valid in zip(frames, pad, strict=True)]
        ),
    }
    values |= {name: _slots(images, stored.get(name), -1) for name in IMAGES}
    of_rows: dict[str, Callable[[InnerValues], Tensor]] = {
        "mid.prefix_embs": lambda inside: inside.embeddings,
        "mid.prefix_last_hidden": lambda inside: inside.hidden,
        "mid.prefix_position_ids": lambda inside: inside.turned,
    }
    values |= {name: filled(name, of) for name, of in of_rows.items() if name in stored and _fits(stored[name], pad)}
    return values | dict(_keys_and_values(recording, frames, pad))


def _keys_and_values(recording: RecordedBatch, frames: list[InnerValues], pad: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Keys and values of the prefix in some layers: [B, KH, L, D]."""
    for name, wanted in recording.case.tensors.items():
        prefix = next((each for each in (KEYS, VALUES) if name.startswith(each)), None)
        layer = name.removeprefix(prefix or "")
        if prefix is None or not layer.isdigit() or wanted.dim() != 4 or not _fits(wanted.transpose(1, 2), pad):
            continue
        found = wanted.clone()
        for each, valid, inside in zip(found, pad, frames, strict=True):
            if int(layer) < len(inside.kv.data):
                pair = inside.kv.layer(int(layer)).read(0, slice(int(valid.sum())), 0)
                each[:, valid] = pair[prefix == VALUES].cpu().transpose(0, 1)
                yield name, found


def _pad_mask(network: PrefixedNetwork, sizes: FlowSizes, recording: RecordedBatch) -> Tensor:
    """[B, L] bool: rows of the present cameras, of absent ones up to the stored length, of text, of the state."""
    batch, images = len(recording.frames), recording.frames[0]
    own = network.prefix_rows(len(images.pixel_values), 0) - sizes.closing
    wanted, text = recording.case.tensors.get(PAD_MASK), recording.mask.shape[1]
    absent = 0 if wanted is None else max(wanted.shape[-1] - own - text - sizes.closing, 0)
    special = 0 if network.prefix.absent is None else len(network.prefix.absent)
    images_only = [1] * (own - special), [0] * absent
    if special:  # around the rows of each absent image, which are masked
        around = [1, 1, *[0] * (absent * ENCLOSING // special), 1]
        images_only = images_only[0], around * (special // ENCLOSING)
    present = torch.tensor([*images_only[0], *images_only[1]]).bool().expand(batch, -1)
    return torch.cat([present, recording.mask, torch.ones(batch, sizes.closing, dtype=torch.bool)], dim=1)


def _slots(found: Tensor, wanted: Tensor | None, value: float) -> Tensor:
    """[C, B, …] with absent cameras after the present ones, as many as are stored."""
    missing = 0 if wanted is None else max(len(wanted) - len(found), 0)
    return torch.cat([found, found.new_full((missing, *found.shape[1:]), value)])


def _blocks(pad: Tensor, closing: int) -> Tensor:
    """1 where rows start that earlier ones do not see."""
    marks = torch.zeros(pad.shape, dtype=torch.long)
    marks[:, pad.shape[1] - closing :] = 1
    return marks


def _spread(sees: Tensor, valid: Tensor) -> Tensor:
    """From [L_P, L_P] of valid rows to [L, L]."""
    spread = torch.zeros(len(valid), len(valid), dtype=torch.bool)
    rows = valid.nonzero()[:, 0]
    spread[rows[:, None], rows] = sees
    return spread


def _spread_columns(sees: Tensor, valid: Tensor) -> Tensor:
    """From [R, L_P + R] to [R, L + R]."""
    columns = torch.cat([valid, torch.ones(len(sees), dtype=torch.bool)])
    spread = torch.zeros(len(sees), len(columns), dtype=torch.bool)
    spread[:, columns] = sees
    return spread


def _fits(wanted: Tensor, pad: Tensor) -> bool:
    return wanted.shape[:2] == pad.shape
