"""Commands for operators: the open sessions of a running service, listed, held, resumed, instructed and ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.markup import escape

from edgeflow.commands.options import Json, TlsCa, TlsCert, TlsKey, TokenFile, number
from edgeflow_client.loadtest.terminal import FoldingTable, table_console
from edgeflow_client.types import MOST_TOLERANCE_BINS, Mode

PATH = "/admin/v1/sessions"
ANSWER_S = 20.0
SHOWN = 60  # characters
Address = Annotated[str, typer.Option(help="HTTP address of the service, host:port or URL.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="Number of the session, as `sessions list` shows it.")]
Text = Annotated[str, typer.Option("--reason", help="Text for the people at the robot, up to 200 characters.")]
Where: TypeAlias = tuple[str, Path | None, Path | None, Path | None, Path | None]
"""Address and credential files of a service."""

sessions_app = typer.Typer(
    help="List the open sessions of a running service, hold their robots, resume, instruct or end them.",
    no_args_is_help=True,
)


@sessions_app.command("list")
def list_sessions(
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """List the open sessions."""
    found = _call((address, tls_ca, tls_cert, tls_key, token_file), "GET", PATH)["sessions"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print("no robot is connected")
        return
    table = FoldingTable("session", "robot", "state", "mode", "instruction")
    for each in found:
        status = each["status"]
        peer = " ".join(filter(None, (each["principal"], each["front"] or "gRPC", each["peer"])))
        table.add_row(
            str(each["session"]), escape(peer), escape(_state(status)), status["pace"], escape(_shown(status))
        )
    table_console().print(table)


@sessions_app.command("hold")
def hold(
    session: Number,
    reason: Text = "",
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Hold a robot: it gets HOLD until it is resumed.

    This is not an emergency stop: HOLD passes through the service, the network and the robot's program.
    """
    where = (address, tls_ca, tls_cert, tls_key, token_file)
    _act(where, session, "hold", {"reason": reason}, as_json)


@sessions_app.command("resume")
def resume(
    session: Number,
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Let a held robot go on, with its next frame."""
    _act((address, tls_ca, tls_cert, tls_key, token_file), session, "resume", {}, as_json)


@sessions_app.command("instruct")
def instruct(
    session: Number,
    instruction: Annotated[str, typer.Argument(metavar="TEXT", help="The instruction, up to 200 characters.")],
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Give a robot another instruction, in a new epoch.

    It is in force until the robot itself gives another text than before.
    """
    where = (address, tls_ca, tls_cert, tls_key, token_file)
    _act(where, session, "instruct", {"instruction": instruction}, as_json)


@sessions_app.command("mode")
def change_mode(
    session: Number,
    mode: Annotated[Mode, typer.Argument(metavar="MODE", help="serial, pipelined, depth, speculative or auto.")],
    depth: Annotated[int, number("Frames in flight, with mode depth.", 0)] = 0,
    tolerance_bins: Annotated[
        int, number("With mode speculative: bins by which a token may differ from its draft.", 0, MOST_TOLERANCE_BINS)
    ] = 0,
    max_passes: Annotated[int, number("With mode speculative: most passes of a frame; 0: all.", 0)] = 0,
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Serve a robot in another mode from its next frame on, if the device can."""
    body = {"mode": mode.value, "depth": depth, "tolerance_bins": tolerance_bins, "max_passes": max_passes}
    _act((address, tls_ca, tls_cert, tls_key, token_file), session, "mode", body, as_json)


@sessions_app.command("end")
def end(
    session: Number,
    reason: Text = "",
    address: Address = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """End a session: the robot gets HOLD, and its stream ends."""
    where = (address, tls_ca, tls_cert, tls_key, token_file)
    _act(where, session, "end", {"reason": reason}, as_json)


def _act(where: Where, session: int, action: str, body: dict[str, Any], as_json: bool) -> None:
    """Act on a session and print its status."""
    status = _call(where, "POST", f"{PATH}/{session}/{action}", body)
    if as_json:
        print(json.dumps(status, indent=2))
    else:
        print(f"session {session}: {_state(status)}, {status['pace']}, {_shown(status)!r}")


def _state(status: dict[str, Any]) -> str:
    """The state of a session, its reason and who holds it."""
    held = status["operator"]
    by = f" by {held['by'] or 'an operator'}{': ' + held['reason'] if held['reason'] else ''}" if held else ""
    return _line(f"{status['state']} {status['reason']}".strip() + by)


def _shown(status: dict[str, Any]) -> str:
    return _line(status["instruction"])


def _line(text: str) -> str:
    """A text in one short line."""
    return " ".join(text.split())[:SHOWN]


def _call(where: Where, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    from edgeflow_client.connection.credentials import Credentials
    from edgeflow_client.connection.http import HttpService

    address, *files = where
    return HttpService.of(address, Credentials.of(*files)).call(method, path, body, ANSWER_S)
