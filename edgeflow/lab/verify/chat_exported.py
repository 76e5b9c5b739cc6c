"""Checks of an exported chat model against a bundle's recordings, in every way it is run."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.artifacts.sessions import Runtime
from edgeflow.engine.exported.chat import read_exported_chat
from edgeflow.lab.verify.chat import check_answers
from edgeflow.lab.verify.policies.request import Progress
from edgeflow.lab.verify.recorded.exported import Results, artifact_of, judged


def verify_exported_chat(directory: Path, artifact: Path, progress: Progress) -> Results:
    """Logits, tokens and texts of all recorded answers; ConfigError for an artifact of another checkpoint."""
    manifest = artifact_of(directory, artifact)
    model = read_exported_chat(artifact).load(Runtime(threads=torch.get_num_threads()))
    with torch.inference_mode():
        return judged(manifest, check_answers(directory, model, progress))
