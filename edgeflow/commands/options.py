"""Options that several commands share. Typer reads these types at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from edgeflow.types import Mode

MODE_HELP = "serial: least age. pipelined: highest rate. depth: between them. auto: highest rate of an allowed age."
DEPTH_HELP = "Ticks a frame takes in mode depth: 1 (serial) to K (pipelined)."
AGE_HELP = "Age that mode auto keeps; an older action becomes HOLD."
OptionalMode = Annotated[Optional[Mode], typer.Option(help=MODE_HELP)]  # noqa: UP045 - typer reads it at run time
OptionalText = Optional[str]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
TlsCa = Annotated[OptionalPath, typer.Option(help="Whose certificate the service must show (PEM).")]
TlsCert = Annotated[OptionalPath, typer.Option(help="Own certificate, for mutual TLS (PEM).")]
TlsKey = Annotated[OptionalPath, typer.Option(help="Its private key (PEM).")]
TokenFile = Annotated[OptionalPath, typer.Option(help="Holds the token; else EDGEFLOW_TOKEN may.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on standard output.")]

ENDS = (Mode.SERIAL, Mode.PIPELINED)
