"""The stages of a checkpoint, whichever kind it is."""

from __future__ import annotations

from pathlib import Path

from edgeflow.lab.export.graphs.chat import CHAT_FAMILIES, chat_program
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.policies.families import EXPORT
from edgeflow.models.published import read_published
from edgeflow.models.quantization import read_quantization
from edgeflow.policies.registry import FAMILIES, detected
from edgeflow_client.errors import CheckpointError


def program_of(folder: Path, shapes: ExportShapes) -> tuple[str, ModelProgram]:
    """The family of a checkpoint, and its stages; CheckpointError for one that is not exported."""
    if read_quantization(folder) is not None:
        raise CheckpointError(f"model: {folder} is quantised already: export the checkpoint of floats")
    family = detected(folder)
    if family is None:
        return read_published(folder).family, chat_program(folder, shapes)
    if family.name not in EXPORT:
        exported = [each.name for each in FAMILIES if each.name in EXPORT]
        raise CheckpointError(
            f"model: policies of the family {family.name} have no static graphs; exported: {', '.join(exported)}, and "
            f"chat models of the families {', '.join(CHAT_FAMILIES)}"
        )
    return family.name, EXPORT[family.name](folder, shapes)
