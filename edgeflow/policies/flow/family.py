"""Families of flow-matching policies in the registry of policies: they differ in their checkpoints and networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.policies.family import DENOISING_MODES, CheckpointFiles, Family, Settings, reject_crop
from edgeflow.policies.flow.config import FlowCheckpoint, named_tokenizer
from edgeflow.policies.lerobot import RATE_DECISION

if TYPE_CHECKING:
    from edgeflow.engine.policy import LoadOptions, Published
    from edgeflow.kernels.table.model_shape import ModelShape
    from edgeflow.policies.flow.policy import FlowArchitecture


def flow_family(
    name: str,
    read_checkpoint: Callable[[Path, Settings], FlowCheckpoint[Any]],
    load_config: Callable[[Path], Any],
    architecture_of: Callable[[Any], FlowArchitecture[Any]],
    *,
    folders: tuple[str, ...],
    example: Mapping[str, Any],
) -> Family:
    """The entry of a family. architecture_of: of a configuration; imports torch when it is called.

    folders: of a checkpoint, where its tokenizer may lie, the first for one that is fetched.
    """

    def detect(files: CheckpointFiles) -> bool:
        return files.config.get("type") == name

    def load(directory: Path, settings: Settings, options: LoadOptions) -> Published:
        from edgeflow.policies.flow.exported import StaticFlow
        from edgeflow.policies.flow.policy import PublishedFlow

        checkpoint = read_checkpoint(directory, settings)
        reject_crop(name, options)
        kind = StaticFlow if is_artifact(directory) else PublishedFlow
        return kind(directory, checkpoint, architecture_of(checkpoint.config))

    def shape(directory: Path, rows: int) -> ModelShape:
        architecture = architecture_of(load_config(directory))
        sizes = architecture.sizes
        return architecture.stacks.shape(directory, rows, count=sizes.steps, step_rows=sizes.step_rows)

    return Family(
        name=name,
        modes=DENOISING_MODES,
        detect=detect,
        check=read_checkpoint,
        load=load,
        shape=shape,
        named_files=partial(named_tokenizer, folders=folders),
        example=example,
        decisions={**RATE_DECISION, "policy.absent_cameras": "cameras of the checkpoint that your robot does not have"},
    )
