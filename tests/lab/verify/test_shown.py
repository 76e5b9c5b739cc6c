"""The comparisons that a table shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeflow.lab.verify.checkpoint import shown, verify_checkpoint
from edgeflow.lab.verify.comparison import CheckResult
from edgeflow.lab.verify.gate_bundle import BASE
from edgeflow_client.errors import ConfigError

GOOD, NEAR, EXACT, OFF = (
    CheckResult("a", "logits", 1e-6, 1e-4),
    CheckResult("b", "hidden", 1e-3, 2e-3),
    CheckResult("a", "tokens", 0, 0),
    CheckResult("b", "tokens", 1, 0),
)
RESULTS = [("one", GOOD), ("two", EXACT), ("one", NEAR), ("one", OFF), ("one", EXACT), ("two", EXACT), ("three", OFF)]


@pytest.fixture
def gate_bundle(tmp_path: Path) -> Path:
    (tmp_path / BASE).mkdir()
    (tmp_path / "gate.json").write_text("{}")
    return tmp_path


def test_a_gate_has_a_row_per_mode_and_one_per_failed_comparison(gate_bundle: Path):
    assert shown(gate_bundle, RESULTS) == [
        ("one", OFF),
        ("one", CheckResult("b", "hidden, the worst of 3", 1e-3, 2e-3)),
        ("two", CheckResult("a", "tokens, the worst of 2", 0, 0)),
        ("three", OFF),
    ]


def test_other_bundles_show_every_comparison(tmp_path: Path):
    assert shown(tmp_path, RESULTS) == RESULTS


def test_two_costs_are_not_measured_at_once(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"^kv, weights: int4 and fp8 are both given; the cost of each is measured by"
    ):
        verify_checkpoint(tmp_path, [], lambda *_: None, kv="int4", weights="fp8")


def test_only_options_that_were_given_are_rejected(gate_bundle: Path):
    for options, told in (({"kv": "int8"}, "kv: a bundle"), ({"kv": "int8", "weights": "fp8"}, "kv, weights: a")):
        with pytest.raises(ConfigError, match=f"^{told}"):
            verify_checkpoint(gate_bundle, [], lambda *_: None, **options)
