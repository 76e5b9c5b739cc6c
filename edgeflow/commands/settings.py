"""Commands about the configuration file and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeflow.commands.options import OptionalFloat


def config_schema() -> None:
    """Print the JSON schema of the configuration file."""
    from edgeflow.config import schema_json

    print(schema_json())


def config_check(path: Annotated[Path, typer.Argument(help="A configuration file.")]) -> None:
    """Check a configuration file and print it with all defaults."""
    from edgeflow.config import load_config

    print(load_config(path, {}).model_dump_json(indent=2))


def token_new(
    principal: Annotated[str, typer.Option(help="Whose it is: letters, digits, . _ - (64 at most).")],
    role: Annotated[list[str], typer.Option(help="control, observe, chat or admin; repeat for several.")],
    tokens: Annotated[str, typer.Option(help="The file that keeps its hash.")] = "tokens.json",
    days: Annotated[OptionalFloat, typer.Option(min=0, max=36500, help="It expires after so many days.")] = None,
) -> None:
    """Print a new token, once; the file keeps its SHA-256 only. A running service sees it within a second."""
    from edgeflow.service.auth import new_token

    print(new_token(tokens, principal, role, days))
