"""The kinds of drafts that a chat engine can make, their sizes in memory, and the one that is configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.drafts.drafters import Drafter, EagleDrafter, LookupDrafter
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.slots import KVSlots, rounded_capacity
from edgeflow.kernels.weights import FLOAT, Int8Weight
from edgeflow.model_paths import resolve_head
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.config import Eagle3Config, read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.llama import LlamaConfig
from edgeflow.scheduler.plan import DraftForm
from edgeflow_client.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSizes:
    """Sizes of the drafts that a pass verifies."""

    rows: Mapping[DraftForm, int]
    """The rows of a verification in each form that requests may have."""
    head: Eagle3Config | None = None
    """The head of EAGLE-3; None for drafts without one, which have only `rows`."""
    extra_places: int = 0
    """Places of the head's slots beyond those of the base's."""
    width: int = 0
    """Rows of its forwards while a tree grows."""

    @property
    def most_rows(self) -> int:
        return max(self.rows.values())


def chain_of(depth: int) -> TreeSizes:
    """A chain of depth + 1 drafts."""
    return TreeSizes(rows=depth + 2, depth=depth, width=1)


def _forms(tree: TreeSizes | None, depth: int) -> dict[DraftForm, TreeSizes]:
    """The sizes of an EAGLE-3 head's drafts in each form. tree, depth: as in `kinds.Eagle`."""
    return {DraftForm.CHAIN: chain_of(depth), **({DraftForm.TREE: tree} if tree else {})}


def eagle_sizes(head: Eagle3Config, tree: TreeSizes | None, depth: int) -> DraftSizes:
    """The sizes of an EAGLE-3 head's drafts. tree, depth: as in `kinds.Eagle`."""
    grown = _forms(tree, depth)
    return DraftSizes(
        rows={form: sizes.rows for form, sizes in grown.items()},
        head=head,
        extra_places=max(sizes.places for sizes in grown.values()) + depth + 2,
        width=max(sizes.width for sizes in grown.values()),
    )


class DraftKind(Protocol):
    """How drafts are made. name: as in `chat.draft`. form: of requests that no grammar binds; those are chains. rows:
    the most of a verification, the newest token included.
    """

    @property
    def name(self) -> str: ...

    @property
    def form(self) -> DraftForm: ...

    @property
    def rows(self) -> int: ...

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        """A drafter for the slots of an engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Prompt look-up; the numbers are those of `LookupDrafter`."""

    drafts: int = 8
    shortest: int = 1
    longest: int = 4
    name: str = "lookup"
    form: DraftForm = DraftForm.CHAIN

    @property
    def rows(self) -> int:
        return 1 + self.drafts

    @property
    def sizes(self) -> DraftSizes:
        return DraftSizes(rows={self.form: self.rows})

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:  # noqa: ARG002 - alike for all
        return LookupDrafter(state, drafts=self.drafts, shortest=self.shortest, longest=self.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle:
    """An EAGLE-3 head."""

    head: Eagle3Head
    tree: TreeSizes | None
    """The sizes of its trees; None to draft only chains, of depth + 1 tokens."""
    depth: int
    name: str = "eagle3"

    @property
    def form(self) -> DraftForm:
        return DraftForm.CHAIN if self.tree is None else DraftForm.TREE

    @property
    def rows(self) -> int:
        return self.sizes.most_rows

    @property
    def sizes(self) -> DraftSizes:
        return eagle_sizes(self.head.config, self.tree, self.depth)

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        capacity = rounded_capacity(kv.capacity + self.sizes.extra_places)
        store = self.head.kv_slots(kv.slots, capacity, kv.format.turned(kv.capacity) + capacity - kv.capacity)
        return EagleDrafter(self.head, store, state, _forms(self.tree, self.depth))


def sizes_of(kind: DraftKind | None) -> DraftSizes | None:
    """The sizes by which a kind takes memory; None without drafts."""
    if isinstance(kind, (Eagle, Lookup)):
        return kind.sizes
    return None if kind is None else DraftSizes(rows={kind.form: kind.rows})


KEY = "chat.eagle3.model"


def eagle_header(config: ChatConfig, text: LlamaConfig) -> Eagle3Config | None:
    """The configured head by its headers; None if none drafts. text: of the base.

    ConfigError or CheckpointError, each with both values, for a head that does not fit the base. No weight is loaded.
    """
    if config.draft_kind != "eagle3":
        return None
    found = read_eagle3(resolve_head(config.eagle3.model, KEY), text)
    if config.eagle3.top > found.draft_vocabulary:
        raise ConfigError(
            f"chat.eagle3.width: {config.eagle3.top} drafts per node are more than the {found.draft_vocabulary} tokens "
            f"of the head: lower it to {found.draft_vocabulary} or less"
        )
    return found


def draft_sizes(config: ChatConfig, head: Eagle3Config | None) -> DraftSizes | None:
    """The sizes of the configured drafts; None if none are. head: as in `eagle_header`."""
    if config.draft_kind == "lookup":
        return Lookup(**config.lookup.model_dump()).sizes
    return None if head is None else eagle_sizes(head, _tree(config), config.eagle3.depth)


def choose_drafts(config: ChatConfig, model: ChatModel, weights: str = FLOAT) -> DraftKind | None:
    """How a loaded model drafts; None where it does not. weights: the format of its weights (precision.ChosenWeights).

    ConfigError for 8-bit decode weights: they serve single rows, so a verification would meet other weights than a
    decode row does. `auto` does without drafts there.
    """
    kind = config.draft_kind
    if kind == "none":
        return None
    if weights == Int8Weight.format:
        if config.draft == "auto":
            return None
        raise ConfigError(
            f"chat.draft: {kind} needs the same weights for all rows of a verification, but chat.weights "
            f"{config.weights} chose int8, which serves single rows: set chat.weights to float, or chat.draft to none"
        )
    if kind == "lookup":
        return Lookup(**config.lookup.model_dump())
    return _eagle(config, model)


@torch.inference_mode()
def _eagle(config: ChatConfig, model: ChatModel) -> Eagle:
    header, settings = eagle_header(config, model.config), config.eagle3
    if header is None:
        raise ValueError("no head is configured")
    directory, decoder = resolve_head(settings.model, KEY), model.decoder
    head = Eagle3Head.read(directory, header, decoder, decoder.dtype, model.device)
    return Eagle(head=head, tree=_tree(config), depth=settings.depth)


def _tree(config: ChatConfig) -> TreeSizes | None:
    """The sizes of the configured trees; None for chains."""
    settings = config.eagle3
    if settings.chain:
        return None
    return TreeSizes(rows=settings.pass_rows, depth=settings.depth, width=settings.top)
