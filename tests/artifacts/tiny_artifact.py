"""The artifact of a tiny flow policy, and its manifest as an object to edit."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from edgeflow.artifacts.manifest import MANIFEST
from tests.artifacts.exported import write_program
from tests.policies.flow.tiny import write_checkpoint
from tests.policies.flow.weights import Tiny


@lru_cache
def _written() -> Path:
    from edgeflow.lab.export.graphs.shapes import ExportShapes
    from edgeflow.lab.export.programs import EXPORT
    from edgeflow.models.checkpoint import fingerprint
    from edgeflow.policies.registry import family_of

    source = write_checkpoint(Path(mkdtemp(prefix="edgeflow-")) / "checkpoint", Tiny(kind="smolvla"))
    (source / "edgeflow.json").write_text('{"control_rate_hz": 20.0}')
    family, folder = family_of(source), source.with_name("artifact")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    program = EXPORT[family.name](source, ExportShapes(text=(12,)))
    write_program(folder, program, family="smolvla", fingerprint=fingerprint(source), vision=True)
    return folder


def checkpoint() -> Path:
    """The checkpoint that was exported."""
    return _written().with_name("checkpoint")


def artifact(folder: Path) -> Path:
    """A copy of its artifact."""
    return Path(shutil.copytree(_written(), folder / "artifact"))


def edited(folder: Path, *path: str | int, value: Any) -> None:
    """Change one entry of artifact.json."""
    values = json.loads((folder / MANIFEST).read_text())
    at = values
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (folder / MANIFEST).write_text(json.dumps(values))
