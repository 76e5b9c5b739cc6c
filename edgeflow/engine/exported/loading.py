"""Loads the graphs of a model that decodes tokens."""

from __future__ import annotations

from pathlib import Path

from edgeflow.artifacts.files import TokenForm, check_contents
from edgeflow.artifacts.manifest import Manifest, StageName, spec
from edgeflow.artifacts.sessions import GraphSession, Runtime, check_providers
from edgeflow.engine.exported.tokens import TokenGraphs
from edgeflow.models.llama import LlamaConfig


def token_form(config: LlamaConfig, images: tuple[int, ...] | None) -> TokenForm:
    """The form of a decoder's graphs. images: the shape of pixel_values of a policy; None of a chat model."""
    return TokenForm(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        width=config.hidden_size,
        vocabulary=config.vocab_size,
        images=() if images is None else (spec("pixel_values", *images),),
        chunks=images is None,
    )


def load_token_graphs(folder: Path, manifest: Manifest, form: TokenForm, runtime: Runtime) -> TokenGraphs:
    """Compare the files with the manifest and load the graphs; CheckpointError or ConfigError says what is wrong."""
    check_providers(runtime.providers)
    check_contents(folder, manifest)
    sessions = {stage: tuple(GraphSession(folder, each, runtime) for each in manifest.of(stage)) for stage in StageName}
    return TokenGraphs(
        kv=manifest.kv,
        width=form.width,
        vocabulary=form.vocabulary,
        embeds=form.chunks,
        towers=sessions[StageName.TOWERS],
        prefills=sessions[StageName.PREFILL],
        steps=sessions[StageName.STEP],
    )
