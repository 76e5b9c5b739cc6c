"""The drafts of a chat model as configured: an EAGLE-3 head, prompt look-up, or none."""

from __future__ import annotations

import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.engine.drafts.kinds import DraftKind, Eagle, Lookup
from edgeflow.engine.drafts.sizes import DraftSizes, eagle_sizes, lookup_sizes
from edgeflow.kernels.kv.formats import DENSE
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.weights import FLOAT, Int8Weight
from edgeflow.model_paths import resolve_head
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.config import Eagle3Config, read_eagle3
from edgeflow.models.eagle3.growing import TreeSizes
from edgeflow.models.eagle3.head import NAME, Eagle3Head
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import ConfigError

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
    """The sizes of the configured drafts; None if none are. head: as of `eagle_header`."""
    if config.draft_kind == "lookup":
        return lookup_sizes(config.lookup.drafts)
    return None if head is None else eagle_sizes(head, _tree(config), config.eagle3.depth)


def choose_drafts(config: ChatConfig, model: ChatModel, weights: str = FLOAT) -> DraftKind | None:
    """How a loaded model drafts; None where it does not. weights: the format of its weights (precision.Weights).

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
        lookup = config.lookup
        return Lookup(drafts=lookup.drafts, shortest=lookup.shortest, longest=lookup.longest)
    return _eagle(config, model)


def _table_of_head(model: ChatModel) -> OperatorTable:
    """Operators of a head: on a device nobody knows on the host where its rows enter."""
    table, hardware = built_in_table(), Hardware.of(model.device)
    if model.device.type == "cpu" or not table.reads_places(NAME, DENSE.name, hardware, model.decoder.dtype):
        return table
    return table.forcing(packed_attention="masked")


@torch.inference_mode()
def _eagle(config: ChatConfig, model: ChatModel) -> Eagle:
    header, settings = eagle_header(config, model.config), config.eagle3
    if header is None:
        raise ValueError("no head is configured")
    directory, decoder = resolve_head(settings.model, KEY), model.decoder
    head = Eagle3Head.read(directory, header, decoder, decoder.dtype, model.device, table=_table_of_head(model))
    return Eagle(head=head, tree=_tree(config), depth=settings.depth)


def _tree(config: ChatConfig) -> TreeSizes | None:
    """The sizes of the configured trees; None for chains."""
    settings = config.eagle3
    if settings.chain:
        return None
    return TreeSizes(rows=settings.pass_rows, depth=settings.depth, width=settings.top)
