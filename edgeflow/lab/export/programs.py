"""The stages of a checkpoint of any kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgeflow.lab.export.graphs.chat import CHAT_FAMILIES, chat_program
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.policies.flow import export_flow
from edgeflow.lab.export.policies.openvla import export_openvla
from edgeflow.models.published import read_published
from edgeflow.models.quantization import read_quantization
from edgeflow.policies.flow.config import FlowSettings, read_settings
from edgeflow.policies.lerobot import PREPROCESSOR
from edgeflow.policies.pi import config as pi
from edgeflow.policies.pi import network as pi_network
from edgeflow.policies.registry import FAMILIES, detected
from edgeflow.policies.smolvla import config as smolvla
from edgeflow.policies.smolvla import network as smolvla_network
from edgeflow_client.errors import CheckpointError

ANY_RATE = {"control_rate_hz": 1.0}  # graphs do not depend on the rate of the actions
Export = Callable[[Path, ExportShapes], ModelProgram]


def _export_pi(kind: str, directory: Path, shapes: ExportShapes) -> ModelProgram:
    config, processors, settings = pi.load_config(directory, kind), None, None
    if (directory / PREPROCESSOR).is_file():  # recordings of a network come without pipelines
        processors = pi.read_processors(directory, config)
        settings = read_settings(kind, directory, ANY_RATE, config.flow, pi.PiSettings)
    return export_flow(directory, pi_network.architecture_of(config), shapes, processors, settings)


def _export_smolvla(directory: Path, shapes: ExportShapes) -> ModelProgram:
    config, processors, settings = smolvla.load_config(directory), None, None
    if (directory / PREPROCESSOR).is_file():  # recordings of a network come without pipelines
        processors = smolvla.read_processors(directory, config)
        settings = read_settings("smolvla", directory, ANY_RATE, config.flow, FlowSettings)
    return export_flow(directory, smolvla_network.architecture_of(config), shapes, processors, settings)


EXPORT: dict[str, Export] = {
    "openvla": export_openvla,
    "smolvla": _export_smolvla,
    "pi0": partial(_export_pi, "pi0"),
    "pi05": partial(_export_pi, "pi05"),
}


def program_of(folder: Path, shapes: ExportShapes) -> tuple[str, ModelProgram]:
    """The family of a checkpoint, and its stages; CheckpointError if it cannot be exported."""
    if read_quantization(folder) is not None:
        raise CheckpointError(f"model: {folder} is quantised already: export the float checkpoint")
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
