"""Options shared by several commands, and settings of the configuration. Typer reads these types at run time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer
from typer.core import TyperCommand

from edgeflow.contract import KVName
from edgeflow_client.loadtest.terminal import setting_command, settings_of
from edgeflow_client.types import Mode

MODE_HELP = (
    "serial: one frame at a time; pipelined: highest rate; depth: between them; speculative: drafts are verified, for "
    "young actions at a high rate; auto: highest rate within the age limit, and without one speculative where tokens "
    "are drafted, else serial."
)
DEPTH_HELP = "Pipeline depth in mode depth: 1 (serial) to K (pipelined)."
TOLERANCE_HELP = "In mode speculative, bins that a token may be from its draft and still be settled; 0: exact tokens."
PASSES_HELP = "In mode speculative, the most passes of a frame, 1 to K; 0: K, after which all tokens are settled."
AGE_HELP = "Limit on the action age: mode auto plans for it, and older actions become HOLD."
OptionalMode = Optional[Mode]  # noqa: UP045 - typer reads these at run time
OptionalText = Optional[str]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
TlsCa = Annotated[OptionalPath, typer.Option(help="CA certificate to verify the service with (PEM).")]
TlsCert = Annotated[OptionalPath, typer.Option(help="Client certificate for mutual TLS (PEM).")]
TlsKey = Annotated[OptionalPath, typer.Option(help="Private key of the client certificate (PEM).")]
TokenFile = Annotated[
    OptionalPath, typer.Option(help="File that contains the access token; default: the variable EDGEFLOW_TOKEN.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Another key of the configuration, dotted, such as chat.capacity=4096; the value as JSON or text. "
        "Repeatable.",
    ),
]

Embedded = Annotated[
    Literal["tokens", "flow"],
    typer.Option(help="Embedded policy: tokens (one action of tokens), or flow (chunks by flow matching)."),
]
OptionalEmbedded = Annotated[
    Optional[Literal["tokens", "flow"]],  # noqa: UP045
    typer.Option(
        help="Embedded policy: tokens (the default), or flow (chunks by flow matching). With --model: the kind that it "
        "must be of."
    ),
]
ChosenKV = Annotated[KVName, typer.Option(help="KV format: model (in the model's dtype), int8, fp8 or int4.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto, cpu or cuda.")]
EMBEDDED_POLICIES = {"tokens": "demo", "flow": "demo-flow"}
"""Model names of the embedded policies."""
MOST_SEED = 2**63 - 1


def overrides_of(given: Sequence[str], options: Mapping[str, object]) -> dict[str, object]:
    """The configuration's keys that `--set` and options give."""
    return settings_of(given, options, _json_or_text)


def config_command(section: str, renamed: Mapping[str, str]) -> type[TyperCommand]:
    """The class of a command that takes the keys of a section, "" for all; see setting_command."""

    def keys() -> list[str]:
        from edgeflow.config.service import ServiceConfig, keys_of

        return [key for key in keys_of(ServiceConfig) if key.startswith(section)]

    return setting_command(keys, renamed)


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
