"""The comparison of pipelines: its verdict on its rounds, and a small run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.chaos.service import ROOT
from benchmarks.passes import pipeline
from edgeflow.contract import PassTimes
from tests.tiny_checkpoint import write_checkpoint


def rounds(*fps: tuple[float, float, float]) -> list[dict[str, tuple]]:
    """The frames per second of the naive pipe, copy and rotate in each round."""
    names = ("naive pipe", "pipelined, copy", "pipelined, rotate")
    return [{name: (each, 1.0, []) for name, each in zip(names, one, strict=True)} for one in fps]


def test_a_gain_must_show_in_every_round():
    copy, rotate, shift = pipeline.gains_of(rounds((10, 11, 12), (10, 9.5, 12.5), (10, 12, 13)))
    assert (copy.median, copy.least, copy.most, copy.clear) == (1.1, 0.95, 1.2, False)
    assert "inside the scatter" in copy.line
    assert rotate.clear and rotate.line == "pipelined, rotate / naive pipe: 1.25 (1.20 .. 1.30), faster in every round"
    assert (shift.system, shift.over) == ("pipelined, rotate", "pipelined, copy")


def test_the_bound_follows_from_the_passes():
    times = {"two_prefills_ns": 9, "decodes_ns": 1, "row_ns": 0, "launch_ns": 0}
    assert pipeline.bound_of(PassTimes(stages=7, prefill_ns=8, decode_ns=2, packed_ns=10, **times)) == 2.0


def test_a_small_run(tmp_path: Path):
    """In a separate process: transformers imports Triton, which must be loaded before other libraries."""
    report, model = tmp_path / "pipeline.json", write_checkpoint(tmp_path / "tiny")
    options = f"--model {model} --frames 8 --rounds 1 --threads 1 --json {report}"
    command = [sys.executable, "-m", "benchmarks.passes.pipeline", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"every system gives the tokens of serial decoding: {done.stdout}{done.stderr}"
    told = json.loads(report.read_text())
    assert len(told["rows"]) == 5 and len(told["gains"]) == 3 and told["bound"] > 0
    assert f"bound of the ratio {told['bound']:.2f}" in done.stdout
