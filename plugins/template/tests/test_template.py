"""The policy passes the checks of `edgeflow policy check`."""

from __future__ import annotations

from pathlib import Path

from edgeflow_template.checkpoint import write_checkpoint

from edgeflow.config.service import load_config
from edgeflow.lab.conformance.kit import check_policy


def test_the_policy_passes_the_conformance_kit(tmp_path: Path) -> None:
    config = load_config(None, {"model": str(write_checkpoint(tmp_path / "template"))})
    assert [verdict for verdict in check_policy(config) if verdict.failed] == []
