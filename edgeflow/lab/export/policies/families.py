"""The stages of each family of policies that is exported, by its name in the registry (policies/registry.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.policies.flow import export_flow
from edgeflow.lab.export.policies.openvla import export_openvla
from edgeflow.policies.flow.checkpoint import has_processors
from edgeflow.policies.flow.settings import ANY_RATE, read_settings
from edgeflow.policies.pi import architecture as pi
from edgeflow.policies.pi import checkpoint as pi_files
from edgeflow.policies.pi.config import load_config as pi_config
from edgeflow.policies.smolvla import architecture as smolvla
from edgeflow.policies.smolvla import checkpoint as smolvla_files
from edgeflow.policies.smolvla.config import load_config as smolvla_config

Export = Callable[[Path, ExportShapes], ModelProgram]


def _export_pi(kind: str, directory: Path, shapes: ExportShapes) -> ModelProgram:
    config, processors, settings = pi_config(directory, kind), None, None
    if has_processors(directory):
        processors = pi_files.read_processors(directory, config)
        settings = read_settings(kind, directory, ANY_RATE, config.flow)
    return export_flow(directory, pi.architecture_of(config), shapes, processors, settings)


def _export_smolvla(directory: Path, shapes: ExportShapes) -> ModelProgram:
    config, processors, settings = smolvla_config(directory), None, None
    if has_processors(directory):
        processors = smolvla_files.read_processors(directory, config)
        settings = read_settings("smolvla", directory, ANY_RATE, config.flow)
    return export_flow(directory, smolvla.architecture_of(config), shapes, processors, settings)


EXPORT: dict[str, Export] = {
    "openvla": export_openvla,
    "smolvla": _export_smolvla,
    "pi0": partial(_export_pi, "pi0"),
    "pi05": partial(_export_pi, "pi05"),
}
