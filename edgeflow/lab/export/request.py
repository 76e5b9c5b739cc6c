"""A request of `edgeflow export` with the precision of each stage, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from edgeflow.artifacts.manifest import Graph, Manifest, StageName
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow_client.errors import ConfigError


class Precision(str, Enum):
    """The precision of weights and activations. W8A16: 8-bit weights, 16-bit activations."""

    FLOAT32 = "float32"
    INT16 = "int16"
    W8A16 = "w8a16"
    W8A8 = "w8a8"


WEIGHTS = {Precision.FLOAT32: 32, Precision.INT16: 16, Precision.W8A16: 8, Precision.W8A8: 8}
ACTIVATIONS = {Precision.FLOAT32: 32, Precision.INT16: 16, Precision.W8A16: 16, Precision.W8A8: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A checkpoint to export, and how."""

    folder: Path
    """The folder of the checkpoint."""
    out: Path
    shapes: ExportShapes
    precisions: Mapping[StageName, Precision]
    """Precision of each stage."""
    rewrites: tuple[str, ...] = ()
    """Names of substitutions."""
    frames: Path | None = None
    """A file of recorded frames to calibrate on; None = the built-in ones."""
    first_step: bool = False
    """Calibrate only on the first step, for comparisons."""

    def __post_init__(self) -> None:
        """Raise ConfigError for calibration options if nothing is calibrated."""
        for name, given in (("frames", self.frames is not None), ("first-step", self.first_step)):
            if given and not self.needs_calibration:
                raise ConfigError(f"{name}: a graph of floats is not calibrated; remove it, or give --precision")

    def precision(self, stage: StageName) -> Precision:
        """The precision of a stage, by default float32."""
        return self.precisions.get(stage, Precision.FLOAT32)

    @property
    def is_quantised(self) -> bool:
        """True if any stage is quantised."""
        return any(each is not Precision.FLOAT32 for each in self.precisions.values())

    @property
    def needs_calibration(self) -> bool:
        """True if inputs of the stages must be recorded first."""
        return self.is_quantised or "finite-mask" in self.rewrites


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A written graph."""

    graph: Graph
    size: int
    """Bytes of the graph, without shared weights."""
    error: float
    """Its largest error against torch, relative to the largest output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOutcome:
    """The result of an export."""

    manifest: Manifest
    """The manifest that was written."""
    graphs: tuple[Exported, ...]
    remarks: tuple[str, ...] = field(default=())
    """Lines to print."""

    def as_json(self) -> dict[str, Any]:
        return {
            "family": self.manifest.family,
            "fingerprint": self.manifest.fingerprint,
            "positions": self.manifest.kv.positions,
            "weights_bytes": sum(each.size for each in self.manifest.weights),
            "rewrites": [
                {"name": each.name, "sites": each.sites, "constant": each.constant} for each in self.manifest.rewrites
            ],
            "graphs": [
                {
                    "stage": each.graph.stage.value,
                    "file": each.graph.file,
                    "rows": each.graph.rows,
                    "past": each.graph.past,
                    "batch": each.graph.batch,
                    "precision": each.graph.precision,
                    "operators": dict(each.graph.operators),
                    "bytes": each.size,
                    "error": each.error,
                }
                for each in self.graphs
            ],
            "remarks": list(self.remarks),
        }
