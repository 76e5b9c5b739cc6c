"""The command line. Commands import what they need when they run: `--help` is quick, missing extras are named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from edgeflow.commands import chat, serving
from edgeflow.commands.doctor import doctor
from edgeflow.commands.laboratory import add_everyday, add_laboratory
from edgeflow.commands.pull import pull
from edgeflow.commands.sessions import sessions_app
from edgeflow.openmp import limit_spinning
from edgeflow.version import __version__
from edgeflow_client.loadtest.options import LoadtestCommand, loadtest
from edgeflow_client.loadtest.terminal import open_standard_streams, run

if TYPE_CHECKING:
    from edgeflow.service.sessions.observers import SessionObserver

app = typer.Typer(
    name="edgeflow",
    help="An inference server for robot policies.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(
    help="Print the schema or an example of the configuration, or check a file.", no_args_is_help=True
)
token_app = typer.Typer(help="Create access tokens.", no_args_is_help=True)
app.command(cls=serving.ServeCommand)(serving.serve)
app.command()(pull)
add_everyday(app)
app.command(cls=LoadtestCommand)(loadtest)
app.command(cls=chat.ChatCommand)(chat.chat)
app.command()(serving.health)
app.command()(doctor)
app.add_typer(config_app, name="config")
app.add_typer(token_app, name="token")
app.add_typer(chat.prefix_app, name="prefix")
app.add_typer(sessions_app, name="sessions")
add_laboratory(app)
config_app.command("schema")(serving.config_schema)
config_app.command("check")(serving.config_check)
config_app.command("example")(serving.config_example)
token_app.command("new")(serving.token_new)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"edgeflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(observers: Sequence[SessionObserver] = ()) -> None:
    """Run the command line. A StartError becomes one line on standard error and exit code 2.

    observers: see every session of `edgeflow serve`.
    """
    open_standard_streams()
    limit_spinning(os.environ)
    run(partial(app, obj=observers), "edgeflow", doctor="edgeflow doctor")


if __name__ == "__main__":
    main()
