"""Checks of an exported OpenVLA against a bundle's recordings: tokens, logits and actions of every frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from edgeflow.artifacts.sessions import Runtime
from edgeflow.engine.policy import Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.verify.policies.openvla.recorded import read_bundle
from edgeflow.lab.verify.policies.openvla.verify import check_decoding, decode, prepared
from edgeflow.lab.verify.policies.request import Verification
from edgeflow.lab.verify.recorded.exported import Results, artifact_of, judged
from edgeflow.policies.openvla.exported import StaticOpenVLACheckpoint
from edgeflow.scheduler.pace import paces_by_mode
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode

MODES = (Mode.SERIAL, Mode.PIPELINED)


def verify_exported(directory: Path, artifact: Path, asked: Verification) -> Results:
    """The answers of the graphs to all recordings; ConfigError for an artifact of another checkpoint."""
    manifest = artifact_of(directory, artifact)
    runtime = Runtime(threads=torch.get_num_threads())
    placement = Placement(dtype=torch.float32, device=asked.device, table=built_in_table(), runtime=runtime)
    policy = StaticOpenVLACheckpoint(artifact, center_crop=False).load(placement)
    cases = [prepared(case, policy) for case in read_bundle(directory)]
    results: Results = []
    paces = paces_by_mode(_modes(asked.modes), policy.program())
    for index, (name, pace) in enumerate(paces.items()):
        asked.progress(name, index, len(paces))
        for case, decodings in zip(cases, decode(cases, policy, pace, placement.table), strict=True):
            results += [(name, each) for each in check_decoding(case, decodings, policy)]
    return judged(manifest, results)


def _modes(asked: Sequence[Mode]) -> Sequence[Mode]:
    if Mode.SPECULATIVE in asked:
        names = ", ".join(mode.value for mode in (*MODES, Mode.DEPTH, Mode.AUTO))
        raise ConfigError(f"mode: exported graphs are not run speculative, since they verify no drafts; use {names}")
    return asked or MODES
