"""The work of `edgeflow quantize`: from the options of the command to what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from edgeflow.kernels.awq import GROUPS
from edgeflow.lab.progress import Report, reporting
from edgeflow.lab.quantize.outcome import Outcome
from edgeflow.lab.quantize.policies.sources import is_policy
from edgeflow.lab.quantize.policy_run import Loss, quantize_policy
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.run import is_embedded, quantize
from edgeflow.lab.quantize.search.scales import ScaleForm
from edgeflow.model_paths import EMBEDDED_CHAT, resolve_model
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

MACRO = "awq-macro"
QUESTIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command, as given; None for those that were not. loss: all or actions. keep_frames: a file
    for a policy's frames."""

    model: str
    out: Path
    group: int | None
    scales: str
    identity: bool
    clip: bool
    calibration: str
    seed: int
    questions: int | None
    loss: str | None
    keep_frames: Path | None
    layout: str


def quantize_command(options: Options, *, as_json: bool) -> None:
    """Quantise a checkpoint and print the report; ConfigError or CheckpointError says what does not fit."""
    if options.group is not None and options.group not in GROUPS:
        raise ConfigError(f"group: must be one of {', '.join(map(str, GROUPS))}, got {options.group}")
    folder = resolve_model(options.model, chat=True)
    work = _policy_work(options) if is_policy(folder) else _chat_work(options, folder)
    request = Request(
        folder=folder,
        out=options.out,
        group=options.group,
        form=ScaleForm(options.scales),
        identity=options.identity,
        clip=options.clip,
        calibration=options.calibration,
        seed=options.seed,
    )
    with reporting(Console(stderr=True)) as report:
        outcome = work(request, report)
    if as_json:
        print(json.dumps(outcome.as_json(), indent=2))
    else:
        _show(options.model, outcome)


def _chat_work(options: Options, folder: Path) -> Callable[[Request, Report], Outcome]:
    for name, given in (("loss", options.loss), ("keep_frames", options.keep_frames)):
        if given is not None:
            raise ConfigError(f"{name}: is for policies, and {options.model} is a chat model; remove it")
    if options.questions is not None and not is_embedded(folder):
        raise ConfigError(f"questions: are for {EMBEDDED_CHAT}, and {options.model} is another chat model; remove it")
    return partial(quantize, questions=options.questions or QUESTIONS, macros=options.layout == MACRO)


def _policy_work(options: Options) -> Callable[[Request, Report], Outcome]:
    if options.questions is not None:
        raise ConfigError(f"questions: are for {EMBEDDED_CHAT}, and {options.model} is a policy; remove it")
    if options.layout == MACRO:
        raise ConfigError(f"layout: the accelerator runs chat models, and {options.model} is a policy; remove it")
    return partial(quantize_policy, loss=Loss(options.loss or Loss.ALL.value), kept=options.keep_frames)


def _show(model: str, outcome: Outcome) -> None:
    table = FoldingTable("held out", "round to nearest", "AWQ", title=escape(f"{model} in 4 bits"))
    for name, nearest, awq in outcome.rows():
        table.add_row(name, nearest, awq)
    table_console().print(table)
    for line in outcome.remarks():
        print(line)
