"""Recorded cases and exported graphs: whose they are, and how strictly they are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgeflow.artifacts.files import open_artifact
from edgeflow.artifacts.manifest import MANIFEST, Manifest, is_artifact
from edgeflow.lab.verify.recorded.comparison import CheckResult
from edgeflow.models.checkpoint import fingerprint
from edgeflow_client.errors import ConfigError

Results = list[tuple[str, CheckResult]]
EXACT = "float32"


def artifact_of(bundle: Path, folder: Path) -> Manifest:
    """The manifest of an artifact that was exported from a bundle's checkpoint; ConfigError with both fingerprints for
    another one.
    """
    if not is_artifact(folder):
        raise ConfigError(f"artifact: {folder} has no {MANIFEST}: give a folder that `edgeflow export` wrote")
    manifest, known_by = open_artifact(folder), fingerprint(bundle)
    if manifest.fingerprint != known_by:
        raise ConfigError(
            f"artifact: {folder} was exported from the checkpoint {manifest.fingerprint[:16]}…, and {bundle} is "
            f"{known_by[:16]}…: export it from this bundle"
        )
    return manifest


def judged(manifest: Manifest, results: Sequence[tuple[str, CheckResult]]) -> Results:
    """Results as they are where all graphs are of float32 without substitutions; otherwise without a bound, and with
    what was chosen in their name.
    """
    others = sorted({graph.precision for graph in manifest.graphs} - {EXACT})
    others += [each.name for each in manifest.rewrites if each.sites]
    if not others:
        return list(results)
    chosen = ", ".join(others)
    return [
        (mode, replace(each, quantity=f"{each.quantity}, deviation with {chosen}", tolerance=math.inf))
        for mode, each in results
    ]
