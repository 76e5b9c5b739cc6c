"""The placement of a pass's rows in KV slots: the one description that models and kernels share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.kernels.kv.visibility import Visibility
from edgeflow_client.errors import ConfigError

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Span:
    """One segment of a pass, host integers: its rows enter `slot` at positions start .. start+length."""

    slot: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """The rows of a pass, in the order of its spans."""

    lengths: tuple[int, ...]
    """Rows of each span."""
    reach: int
    """An upper bound on where spans end. Like `lengths`, it is known on the host: they are the shape of the pass."""
    row_slot: Tensor
    """[L_Q]: int64, the slot of each row. Like `row_position`, it begins at a multiple of 16 bytes, so that a Triton
    kernel is compiled for one alignment only.
    """
    row_position: Tensor
    """[L_Q]: int64, the place in the slot where each row's KV is written."""
    rope_position: Tensor
    """[C, L_Q]: int64, the positions RoPE rotates by: C = 1, or 3 (time, height, width) for M-RoPE."""
    sampled_rows: Tensor
    """[n]: int64, ascending: the rows whose output the pass is for, any number of any span. A chunk of a prompt that
    is not its last has none, a span of drafts all of them.
    """
    samples: tuple[int, ...] | None = None
    """The number of sampled rows of each span, its last ones, on the host; None: one each. It is read only with
    `places`.
    """
    places: tuple[Span, ...] | None = None
    """The spans themselves; None where only the device knows them (passes of one shape that replay one graph)."""
    live: Tensor | None = None
    """[L_Q]: bool, False for rows that only pad their span; None where no row does."""
    visibility: Visibility | None = None
    """The places that rows see; None where each row sees all up to itself."""
    kinds: Mapping[str, Visibility | None] = field(default_factory=dict)
    """The visibility by kind of layer, where kinds differ."""
    gated: tuple[bool, ...] = ()
    """For each span, True when its rows read the memory of their slot (kernels/kv/memory.py); empty where none does. No
    row sees beyond what the pass and earlier passes have written in its slot.
    """
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        spans: Sequence[Span],
        device: torch.device,
        rope_position: Tensor | None = None,
        samples: Sequence[int] | None = None,
        visibility: Sequence[Visibility] | None = None,
    ) -> PackedLayout:
        """The layout of `spans`, with index tensors on `device`.

        rope_position: defaults to each row's position in its slot. samples: how many of the last rows of each span are
        sampled; by default one. visibility: the places that the rows of each span see, on the host; by default all up
        to themselves.
        """
        slots: list[int] = []
        positions: list[int] = []
        sampled: list[int] = []
        for span, count in zip(spans, _counts(spans, samples), strict=True):
            slots += [span.slot] * span.length
            positions += range(span.start, span.start + span.length)
            sampled += range(len(slots) - count, len(slots))
        rows, odd = len(slots), [0] * (len(slots) % 2)  # one upload, both halves aligned
        row_slot, row_position = (half[:rows] for half in on_device(slots + odd + positions + odd, device).chunk(2))
        rotation = row_position[None] if rope_position is None else rope_position.to(device, non_blocking=True)
        lengths = tuple(span.length for span in spans)
        reach = max((span.start + span.length for span in spans), default=0)
        return cls(
            lengths=lengths,
            reach=reach,
            row_slot=row_slot,
            row_position=row_position,
            rope_position=rotation,
            sampled_rows=on_device(sampled, device),
            samples=None if samples is None else tuple(samples),
            places=tuple(spans),
            visibility=None if visibility is None else _joined(spans, visibility, device),
        )

    def seen_by_kind(self, kinds: Mapping[str, Sequence[Visibility] | None]) -> PackedLayout:
        """This layout, whose rows see something else in layers of these kinds: values as in `of`."""
        device = self.row_slot.device
        of_kinds = {
            kind: None if visibility is None else _joined(self.spans, visibility, device)
            for kind, visibility in kinds.items()
        }
        return replace(self, kinds=of_kinds)

    def of_kind(self, kind: str) -> PackedLayout:
        """The layout of layers of one kind."""
        if kind not in self.kinds:
            return self
        return replace(self, visibility=self.kinds[kind], kinds={}).sharing(self, ("kind", kind))

    def seen(self, rows: slice = slice(None)) -> Tensor:
        """[n, reach] bool: the places that some rows see."""
        if self.visibility is None:
            return torch.arange(self.reach, device=self.row_slot.device) <= self.row_position[rows, None]
        return self.visibility.of_rows(rows).mask(self.reach)

    def of_sampled_rows(self) -> PackedLayout:
        """Each sampled row as a separate span, over everything that the pass has written.

        Its index tensors are gathered anew per call, so that a graph gathers them per replay. Cached values are shared
        by all calls, so they must not hold index tensors (see `sharing`).
        """
        sampled = self.sampled_rows
        alone = PackedLayout(
            lengths=(1,) * len(sampled),
            reach=self.reach,
            row_slot=self.row_slot[sampled],
            row_position=self.row_position[sampled],
            rope_position=self.rope_position[:, sampled],
            sampled_rows=torch.arange(len(sampled), device=sampled.device),
            places=self._sampled_places(),
            visibility=self.visibility and self.visibility.of_rows(sampled),
            kinds={kind: visibility and visibility.of_rows(sampled) for kind, visibility in self.kinds.items()},
            gated=self._sampled_gated(),
        )
        return alone.sharing(self, "sampled rows")

    def _sampled_places(self) -> tuple[Span, ...] | None:
        """The spans of the sampled rows, where the host knows."""
        if self.places is None:
            return None
        return tuple(
            Span(span.slot, place, 1)
            for span, count in zip(self.places, _counts(self.places, self.samples), strict=True)
            for place in range(span.start + span.length - count, span.start + span.length)
        )

    def _sampled_gated(self) -> tuple[bool, ...]:
        """`gated` of the sampled rows."""
        counts = [min(1, length) for length in self.lengths] if self.samples is None else self.samples
        return tuple(gated for gated, count in zip(self.gated, counts, strict=False) for _ in range(count))

    def sharing(self, whole: PackedLayout, part: Hashable) -> PackedLayout:
        """This layout, with the values that earlier layouts of this part of `whole`, lengths and reach cached.

        Cached values then outlive the layout they were made for. They may depend on `lengths` and `reach`, but must not
        hold its index tensors: a graph would read where the rows of an earlier call were placed.
        """
        object.__setattr__(self, "_kept", whole.kept((part, self.lengths, self.reach), dict))
        return self

    @property
    def spans(self) -> tuple[Span, ...]:
        """Slots and positions on the host; ConfigError while a graph is captured, which replays with other ones."""
        if self.places is None:
            raise ConfigError("packed_attention: this implementation reads slots on the host, a graph cannot hold it")
        return self.places

    def kept(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """A value that an operator derives once, such as a list of tiles; cached for as long as the layout lives, and
        without its index tensors (see `sharing`)."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: Made = self._kept[name]
        return kept


def _counts(spans: Sequence[Span], samples: Sequence[int] | None) -> Sequence[int]:
    """How many of the last rows of each span are sampled."""
    return [min(1, span.length) for span in spans] if samples is None else samples


def _joined(spans: Sequence[Span], visibility: Sequence[Visibility], device: torch.device) -> Visibility:
    """The places that the rows of all spans see. ValueError for other numbers of rows, and for places beyond the last
    one that the pass writes in their slot."""
    ends: dict[int, int] = {}
    for span in spans:
        ends[span.slot] = max(ends.get(span.slot, 0), span.start + span.length)
    for span, part in zip(spans, visibility, strict=True):
        if len(part.ranges) != span.length or int(part.ranges.max()) > ends[span.slot]:
            raise ValueError(f"{span}: {len(part.ranges)} rows see up to place {int(part.ranges.max())}")
    return Visibility.joined(visibility, device)


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Integers of the host as a tensor, uploaded."""
    return uploaded(torch.tensor(values, dtype=dtype), device)


def uploaded(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`; on CUDA copied from pinned memory, so that the host does not wait."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
