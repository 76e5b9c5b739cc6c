"""Commands about chat: a conversation in the terminal, and the fixed prefixes of a running service."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.markup import escape

from edgeflow.commands.options import (
    Json,
    OptionalFloat,
    OptionalPath,
    OptionalText,
    Settings,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    config_command,
    number,
    overrides_of,
)
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.files import read_regular
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

PATH = "/admin/v1/prefixes"
CHANGE_S = 600.0  # prefilling a long prefix takes minutes when robots are busy
MAX_FILE_BYTES = 4 << 20
SHOWN = 60  # characters
Address = Annotated[str, typer.Option(help="HTTP address of the service, host:port or URL.")]
Slot = Annotated[str, typer.Argument(help="Id of a slot declared in chat.slots.")]

prefix_app = typer.Typer(help="List and change the fixed prompt prefixes of a running service.", no_args_is_help=True)
ChatCommand = config_command("chat.", {"eagle3": "chat.eagle3.model"})


def chat(
    model: Annotated[
        OptionalText, typer.Option(help="Checkpoint directory, hub id, demo-chat (embedded model) or demo-logs.")
    ] = None,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    system_file: Annotated[
        OptionalPath,
        typer.Option(metavar="FILE", help="Text file with the system message, such as a log to ask questions about."),
    ] = None,
    device: Annotated[OptionalText, typer.Option(help="auto, cpu or cuda.")] = None,
    temperature: Annotated[
        OptionalFloat,
        number("Sampling temperature up to 2; 0: greedy; default: the checkpoint's own.", 0, 2),
    ] = None,
    given: Settings = [],  # noqa: B006 - typer reads it
) -> None:
    """Chat with a model in the terminal; Ctrl-D ends the conversation."""
    from edgeflow.commands.conversation import converse, open_conversation, read_text
    from edgeflow.config.service import load_config

    if system_file is not None:
        if system:
            raise ConfigError("system_file: give --system or --system-file, not both")
        system = read_text(system_file, "system_file")
    overrides = overrides_of(given, {"chat.model": model, "device": device})
    for key in overrides:
        if key != "device" and not key.startswith("chat."):
            raise ConfigError(f"{key}: `edgeflow chat` reads device and the keys of chat, such as chat.capacity")
    config = load_config(None, overrides)
    path = config.chat_path
    if path is None:
        raise CheckpointError("model: the embedded chat model is not installed: give a checkpoint with --model")
    console = Console(stderr=True)
    with console.status("loading"):
        conversation = open_conversation(config.chat, path, config.device, temperature, system)
    for remark in conversation.remarks:
        console.print(remark, style="yellow", highlight=False)
    prompt = "> " if sys.stdin.isatty() else ""
    converse(conversation, lambda: input(prompt), lambda text: print(text, end="", flush=True))


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
        OptionalPath,
        typer.Option(metavar="FILE", help="JSON file with a list of messages, each with role and content."),
    ] = None,
    text: Annotated[OptionalText, typer.Option(help="Plain text, for completions.")] = None,
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Replace the prefix of a slot.

    Returns once the new prefix is in use. Robots and running answers are not disturbed.
    """
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
