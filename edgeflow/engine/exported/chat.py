"""A chat model as static graphs: its settings, its memory, and loading it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.artifacts.files import loaded_bytes, open_artifact
from edgeflow.artifacts.manifest import MANIFEST, Manifest
from edgeflow.artifacts.sessions import Runtime
from edgeflow.config.chat import ChatConfig
from edgeflow.engine.exported.tokens import CPU, ExportedGraphs, ExportedNetwork, token_form
from edgeflow.engine.placement import check_host
from edgeflow.models.chat import ChatModel
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.published import PublishedChat, read_published
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError, ConfigError


class ExportedTextNetwork(ExportedNetwork):
    """The network of a chat model (models/chat.TextNetwork); its prompts are token ids. config: as exported."""

    prompt_row = (1, torch.long)

    def __init__(self, graphs: ExportedGraphs, name: str, config: LlamaConfig) -> None:
        super().__init__(graphs, name)
        self.config = config

    def prompt_rows(self, ids: Tensor) -> Tensor:
        """[n] → [n, 1]"""
        return ids[:, None]


@dataclass(frozen=True, slots=True)
class ExportedChat:
    """The folder of an artifact whose JSON files have been read. text: its positions are those of its slots."""

    folder: Path
    published: PublishedChat
    manifest: Manifest

    @property
    def text(self) -> LlamaConfig:
        return replace(self.published.text, max_position_embeddings=self.manifest.kv.positions)

    @property
    def loaded_bytes(self) -> int:
        """Memory of the graphs."""
        return loaded_bytes(self.folder, self.manifest)

    def load(self, runtime: Runtime, *, text: bool = True) -> ChatModel:
        """Load graphs, and tokenizer and chat template if `text`; CheckpointError says what is wrong with them."""
        graphs = ExportedGraphs.load(self.folder, self.manifest, runtime)
        return ChatModel(
            name=self.published.family,
            network=ExportedTextNetwork(graphs, self.published.family, self.text),
            tokenizer=TextTokenizer(self.folder, self.text.vocab_size) if text else None,
            template=ChatTemplate.load(self.folder) if text else None,
            generation=self.published.generation,
            vision=None,
            device=CPU,
        )


def read_exported_chat(folder: Path) -> ExportedChat:
    """Read and check the JSON files; CheckpointError for graphs of other shapes than the checkpoint gives."""
    published, manifest = read_published(folder), open_artifact(folder)
    if published.vision is not None or published.text.latent is not None:
        raise CheckpointError(f"model: {folder}: a chat model of the family {published.family} is not exported")
    if manifest.family != published.family:
        raise CheckpointError(
            f"{MANIFEST}.family is {manifest.family}, and config.json is of {published.family}: copy it again"
        )
    if token_form(published.text, None).fixed_rows(manifest):
        raise CheckpointError(f"{MANIFEST}: towers of a chat model have a row for each token: export the model again")
    return ExportedChat(folder, published, manifest)


def check_exported_chat(config: ChatConfig, chat: ExportedChat, device: torch.device) -> None:
    """ConfigError for settings that graphs do not have."""
    check_host(device, config.dtype, section="chat.")
    reasons = {
        "decode_model": (config.decode_model, "", "steps are graphs of the same model"),
        "weights": (config.weights, "float", "the precision of graphs is chosen when they are exported"),
        "head": (config.head, "float", "the precision of graphs is chosen when they are exported"),
        "operators": (config.operators, "", "graphs do not use the operator table"),
        "kv": (config.kv, "model", "graphs read keys and values in float32"),
        "long.gate": (config.long.gate, "", "graphs read no memory"),
        "draft": (config.draft if config.draft != "auto" else "none", "none", "a step takes one row of a sequence"),
    }
    for key, (value, served, reason) in reasons.items():
        if value != served:
            raise ConfigError(f"chat.{key}: {value}; in an exported chat model {reason}: remove it")
    positions = chat.manifest.kv.positions
    if config.capacity < positions:
        raise ConfigError(
            f"chat.capacity: {config.capacity}; the slots of this artifact have {positions} positions: use at least "
            f"these, or export with --positions {config.capacity}"
        )
