"""The implementation of `edgeflow quantize`: from the command's options to its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.progress import Report, reporting
from edgeflow.lab.quantize.outcome import QuantisedCheckpoint
from edgeflow.lab.quantize.policies.sources import is_policy
from edgeflow.lab.quantize.policy_run import Loss, quantize_policy
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.run import is_embedded, quantize
from edgeflow.model_paths import EMBEDDED_CHAT
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

MACRO = "awq-macro"
QUESTIONS = 100


def quantize_command(
    model: str,
    request: Request,
    *,
    questions: int | None,
    loss: str | None,
    keep_frames: Path | None,
    layout: str,
    as_json: bool,
) -> None:
    """Quantise a checkpoint and print the report; ConfigError or CheckpointError if something does not fit.

    questions, loss, keep_frames: None if not given. loss: all or actions. keep_frames: a file for a policy's frames.
    """
    work: Callable[[Request, Report], QuantisedCheckpoint]
    if is_policy(request.folder):
        if questions is not None:
            raise ConfigError(f"questions: are only for {EMBEDDED_CHAT}; {model} is a policy; remove it")
        if layout == MACRO:
            raise ConfigError(f"layout: the accelerator only runs chat models; {model} is a policy; remove it")
        work = partial(quantize_policy, loss=Loss(loss or Loss.ALL.value), kept=keep_frames)
    else:
        for name, given in (("loss", loss), ("keep_frames", keep_frames)):
            if given is not None:
                raise ConfigError(f"{name}: is only for policies; {model} is a chat model; remove it")
        if questions is not None and not is_embedded(request.folder):
            raise ConfigError(f"questions: are only for {EMBEDDED_CHAT}; {model} is another chat model; remove it")
        work = partial(quantize, questions=questions or QUESTIONS, macros=layout == MACRO)
    with reporting(Console(stderr=True)) as report:
        outcome = work(request, report)
    if as_json:
        print(json.dumps(outcome.as_json(), indent=2))
    else:
        _show(model, outcome)


def _show(model: str, outcome: QuantisedCheckpoint) -> None:
    table = FoldingTable("held out", "round to nearest", "AWQ", title=escape(f"{model} in 4 bits"))
    for name, nearest, awq in outcome.rows():
        table.add_row(name, nearest, awq)
    table_console().print(table)
    for line in outcome.remarks():
        print(line)
