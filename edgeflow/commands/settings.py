"""Commands about the configuration file and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeflow.commands.options import OptionalFloat, OptionalPath


def config_schema() -> None:
    """Print the JSON schema of the configuration file."""
    from edgeflow.config.service import schema_json

    print(schema_json())


def config_check(path: Annotated[Path, typer.Argument(help="Configuration file to check.")]) -> None:
    """Check a configuration file and what it names on this machine, and print it with all defaults filled in."""
    from edgeflow.config.service import load_config
    from edgeflow.service.host.preflight import check_configured

    config = load_config(path, {})
    check_configured(config)
    print(config.model_dump_json(indent=2))


def token_new(
    principal: Annotated[
        str, typer.Option(help="Owner of the token: 1 to 64 letters, digits, dots, underscores or hyphens.")
    ],
    role: Annotated[
        list[str], typer.Option(help="Role: control, observe, chat or admin. Repeat the option for several.")
    ],
    tokens: Annotated[str, typer.Option(help="Tokens file to add the token's hash to.")] = "tokens.json",
    days: Annotated[
        OptionalFloat, typer.Option(min=0, max=36500, help="Days until the token expires; default: never.")
    ] = None,
    out: Annotated[
        OptionalPath, typer.Option(help="New file for the token, readable by you alone; default: print it.")
    ] = None,
) -> None:
    """Create an access token and print it, once: the tokens file stores its SHA-256 only.

    A running service accepts the token within a second.
    """
    from edgeflow.service.security.auth import new_token, secret_file

    if out is None:
        print(new_token(tokens, principal, role, days))
        return
    with secret_file(out) as file:
        file.write(new_token(tokens, principal, role, days) + "\n")
