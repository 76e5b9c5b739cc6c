"""`edgeflow prefix`: list and change the fixed prefixes of a running service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape

from edgeflow.commands.options import Json, OptionalPath, OptionalText, TlsCa, TlsCert, TlsKey, TokenFile
from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

PATH = "/admin/v1/prefixes"
CHANGE_S = 600.0  # a long prefix beside busy robots takes its time
MAX_FILE_BYTES = 4 << 20
SHOWN = 60  # characters
Address = Annotated[str, typer.Option(help="HTTP address of the service, host:port or URL.")]
Slot = Annotated[str, typer.Argument(help="Id of a slot declared in chat.slots.")]

prefix_app = typer.Typer(help="List and change the fixed prompt prefixes of a running service.", no_args_is_help=True)


@prefix_app.command("list")
def list_prefixes(
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """List the prefix of every slot."""
    answer = _call(address, (tls_ca, tls_cert, tls_key, token_file), "GET", PATH)
    if as_json:
        print(json.dumps(answer["data"], indent=2))
        return
    table = FoldingTable("slot", "tokens", "begins with")
    for each in answer["data"]:
        words = each.get("text") or " ".join(message["content"] for message in each.get("messages", []))
        table.add_row(escape(each["id"]), str(each["tokens"]), escape(" ".join(words.split())[:SHOWN]) or "-")
    table_console().print(table)


@prefix_app.command("set")
def set_prefix(
    slot: Slot,
    file: Annotated[
        OptionalPath, typer.Option(help="JSON file: a list of messages, each with role and content.")
    ] = None,
    text: Annotated[OptionalText, typer.Option(help="Plain text, for completions.")] = None,
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Replace the prefix of a slot. Returns once it is in use; robots and running answers are not disturbed."""
    if (file is None) == (text is None):
        raise ConfigError("prefix: give either --file or --text")
    body = {"messages": _messages(file)} if file is not None else {"text": text}
    answer = _call(address, (tls_ca, tls_cert, tls_key, token_file), "PUT", f"{PATH}/{quote(slot, safe='')}", body)
    print(f"{answer['id']}: {answer['tokens']} tokens")


@prefix_app.command("clear")
def clear_prefix(
    slot: Slot,
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Remove the prefix of a slot."""
    answer = _call(address, (tls_ca, tls_cert, tls_key, token_file), "DELETE", f"{PATH}/{quote(slot, safe='')}")
    print(f"{answer['id']}: {answer['tokens']} tokens")


def _call(
    address: str,
    files: tuple[Path | None, Path | None, Path | None, Path | None],
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
) -> Any:
    from edgeflow_client.connection.credentials import Credentials
    from edgeflow_client.connection.http import HttpService

    return HttpService.of(address, Credentials.of(*files)).call(method, path, body, CHANGE_S)


def _messages(path: Path) -> Any:
    try:
        return json.loads(read_regular(path, MAX_FILE_BYTES))
    except OSError as error:
        raise ConfigError(f"file: {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"file: {path} is not JSON") from None
