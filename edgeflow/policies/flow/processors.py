"""The pipelines around a flow-matching policy: normalisation, tokenizer and text. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeflow.policies.flow.config import MOST_TOKENS, FlowConfig, at_most
from edgeflow.policies.lerobot.features import STATE
from edgeflow.policies.lerobot.folders import local_folder
from edgeflow.policies.lerobot.processors import (
    ABSOLUTE,
    BATCH,
    DEVICE,
    NORMALISE,
    POSTPROCESSOR,
    PREPROCESSOR,
    RELATIVE,
    RENAME,
    UNNORMALISE,
    Normalisation,
    read_normalisation,
    read_pipeline,
)
from edgeflow.text.fields import Fields
from edgeflow.text.tokenizer import TOKENIZER_FILE
from edgeflow_client.errors import CheckpointError

TOKENIZER = "tokenizer_processor"
BEFORE = (RENAME, BATCH, RELATIVE, NORMALISE, TOKENIZER, DEVICE)
AFTER = (UNNORMALISE, ABSOLUTE, DEVICE)
"""The steps that are served, besides the one that writes the text."""


@dataclass(frozen=True, slots=True)
class FlowProcessors:
    """tokens: of a text at most, the rest of it is cut off. tokenizer: the folder of tokenizer.json."""

    normalisation: Normalisation
    tokens: int
    tokenizer: Path


def load_processors(
    directory: Path, config: FlowConfig, *, writer: str, reads_state: bool, folders: tuple[str, ...]
) -> FlowProcessors:
    """Read and check both pipelines; CheckpointError names the step, statistic or file at fault.

    writer: the step that makes the text from the task. reads_state: it writes the normalised state into it. folders:
    where tokenizer.json may lie besides the folder that the pipeline names.
    """
    before = read_pipeline(directory, PREPROCESSOR, (*BEFORE, writer))
    after = read_pipeline(directory, POSTPROCESSOR, AFTER)
    before.one(writer)
    entry = before.one(TOKENIZER).object("config")
    before.ordered(writer, TOKENIZER)
    if reads_state:
        before.ordered(NORMALISE, writer)
    shapes: dict[str, tuple[int, ...]] = {camera.name: (3, 1, 1) for camera in config.cameras}
    normalisation = read_normalisation(directory, before, after, {**shapes, STATE: (config.state,)}, config.action)
    images = [name for name in normalisation.inputs if name != STATE]
    if images:
        raise CheckpointError(f"{PREPROCESSOR}: {images[0]} is normalised by statistics; served: IDENTITY")
    entry.only("padding_side", "right")
    entry.only("truncation", True)
    entry.only("task_key", "task")
    return FlowProcessors(
        normalisation,
        at_most(entry, "max_length", config.prompt, MOST_TOKENS),
        _tokenizer_folder(directory, entry, folders),
    )


def _tokenizer_folder(directory: Path, entry: Fields, folders: tuple[str, ...]) -> Path:
    name = entry.text("tokenizer_name")
    candidates = [local_folder(directory, each) for each in (name, *folders)]
    for folder in candidates:
        if folder is not None and (folder / TOKENIZER_FILE).is_file():
            return folder
    raise CheckpointError(
        f"{directory} has no {TOKENIZER_FILE} of {name}, which its pipeline names: put that tokenizer into "
        f"{directory / folders[0]}"
    )
