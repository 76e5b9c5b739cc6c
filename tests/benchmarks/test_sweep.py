"""The sweep of Figure 5 runs for answers of more tokens than the checkpoint's actions have."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.passes import sweep
from tests.tiny_checkpoint import write_checkpoint


def test_a_sweep_over_action_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    report = tmp_path / "sweep.json"
    model = write_checkpoint(tmp_path / "tiny")
    options = f"--model {model} --k 7 16 --prompts 8 --rounds 1 --threads 1 --frames 1 --json {report}"
    monkeypatch.setattr(sys, "argv", ["sweep", *options.split()])
    with pytest.raises(SystemExit) as ended:
        sweep.main()
    assert ended.value.code == 0, "tokens are equal in both modes"
    told = json.loads(report.read_text())
    assert [cell["action_tokens"] for cell in told["cells"]] == [7, 16]
    for cell in told["cells"]:
        decodes_ms = (cell["action_tokens"] - 1) * cell["decode_ms"]
        assert cell["bound"] == pytest.approx((cell["prefill_ms"] + decodes_ms) / cell["packed_ms"])
        assert all(cell[name] > 0 for name in ("serial_fps", "pipelined_fps", "ratio", "packed_ms"))
    assert "bound" in capsys.readouterr().out
