"""The form in which a flow-matching policy lies in its folder: weights, or graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.engine.policy import Published
from edgeflow.policies.flow.checkpoint import FlowCheckpoint
from edgeflow.policies.flow.exported.published import StaticFlow
from edgeflow.policies.flow.published import FlowArchitecture, PublishedFlow


def published_flow(directory: Path, checkpoint: FlowCheckpoint[Any], architecture: FlowArchitecture[Any]) -> Published:
    """The checkpoint or the artifact of a folder."""
    kind = StaticFlow if is_artifact(directory) else PublishedFlow
    return kind(directory, checkpoint, architecture)
