"""Options shared by several commands, and settings of the configuration. Typer reads these types at run time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from edgeflow_client.loadtest.terminal import setting_command, settings_of
from edgeflow_client.types import Mode

MODE_HELP = (
    "serial: one frame at a time; pipelined: highest rate; depth: in between; speculative: drafts are verified, for "
    "fresh actions at a high rate; auto: highest rate within the age limit; without a limit, speculative where tokens "
    "are drafted, otherwise serial."
)
OptionalMode = Optional[Mode]  # noqa: UP045 - typer reads these at run time
OptionalText = Optional[str]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
TlsCa = Annotated[OptionalPath, typer.Option(metavar="FILE", help="CA certificate to verify the service with (PEM).")]
TlsCert = Annotated[OptionalPath, typer.Option(metavar="FILE", help="Client certificate for mutual TLS (PEM).")]
TlsKey = Annotated[OptionalPath, typer.Option(metavar="FILE", help="Private key of the client certificate (PEM).")]
TokenFile = Annotated[
    OptionalPath, typer.Option(metavar="FILE", help="File with the access token; default: the variable EDGEFLOW_TOKEN.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other key of the configuration, such as chat.capacity=4096; the value is JSON or text. Repeatable.",
    ),
]


def number(text: str, low: float = -math.inf, high: float = math.inf) -> Any:
    """An option for a number from `low` to `high`.

    Typer would show the limits in a column beside the name, which at 80 columns leaves too little room for the text.
    """

    def check(value: Any) -> Any:
        if value is not None and not low <= value <= high:
            limits = f"at least {low}" if high == math.inf else f"from {low} to {high}"
            raise typer.BadParameter(f"must be {limits}, got {value}")
        return value

    return typer.Option(metavar="N", help=text, callback=check)


def overrides_of(given: Sequence[str], options: Mapping[str, object]) -> dict[str, object]:
    """The keys of the configuration that `--set` and other options give."""
    return settings_of(given, options, _json_or_text)


def config_command(section: str, renamed: Mapping[str, str]) -> type[TyperCommand]:
    """The class of a command whose `--set` takes the keys of a section ("" for all); see setting_command."""

    def keys() -> list[str]:
        from edgeflow.config.service import ServiceConfig, keys_of

        return [key for key in keys_of(ServiceConfig) if key.startswith(section)]

    return setting_command(keys, renamed)


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
