"""The work of `edgeflow train-gate`: from its options to what it prints."""

from __future__ import annotations

import json

from rich.console import Console

from edgeflow.lab.training.gate.run import GateRequest, train_gate
from edgeflow.lab.training.learner import ANEW
from edgeflow.lab.training.run import training_progress


def train_gate_command(request: GateRequest, *, as_json: bool) -> None:
    """Train and print the outcome; with `as_json` nothing else goes to standard output."""
    errors = Console(stderr=True)
    with training_progress(errors) as progress:
        report = train_gate(request, progress, lambda line: errors.print(line, highlight=False, soft_wrap=True))
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        told = f": already finished, {ANEW}" if report.loss is None else f", loss {report.loss:.3f}"
        steps = f"{report.steps} step" if report.steps == 1 else f"{report.steps} steps"
        print(f"{request.out}: {report.gate} weights ({report.share:.3%}) after {steps}{told}")
