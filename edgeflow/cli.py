"""The command line. Commands import what they need when they run: `--help` is quick, missing extras are named."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from typing import Annotated

from edgeflow_client.errors import DependencyError, EdgeflowError, StartError, how_to_install

if importlib.util.find_spec("typer") is None:
    print(f"edgeflow: the command line needs more than the robot-side SDK; {how_to_install('server')}", file=sys.stderr)
    sys.exit(2)

import typer

from edgeflow import __version__
from edgeflow.commands import chatting, prefixes, serving, settings
from edgeflow.commands.doctor import doctor
from edgeflow.commands.laboratory import add_to
from edgeflow.console import open_standard_streams
from edgeflow.openmp import limit_spinning
from edgeflow_client.loadtest.options import loadtest

OF_THE_SYSTEM = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
    errno.EPIPE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
)
"""A full or broken disk, a reader that has gone, no more descriptors, memory or processes."""

app = typer.Typer(
    name="edgeflow",
    help="Robot-control inference service: pipelined vision-language-action models over gRPC.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(help="Print or check the configuration file of the service.", no_args_is_help=True)
app.add_typer(config_app, name="config")
token_app = typer.Typer(help="Manage the access tokens of a service.", no_args_is_help=True)
app.add_typer(token_app, name="token")
app.add_typer(prefixes.prefix_app, name="prefix")
app.command()(serving.serve)
app.command()(serving.health)
app.command()(loadtest)
app.command()(chatting.chat)
app.command()(doctor)
add_to(app)
config_app.command("schema")(settings.config_schema)
config_app.command("check")(settings.config_check)
token_app.command("new")(settings.token_new)


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


def main() -> None:
    """Run the command line. A StartError becomes one line on standard error and exit code 2."""
    open_standard_streams()
    limit_spinning(os.environ)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # otherwise the interpreter finds at its end that the disk is full
    except StartError as error:
        sys.exit(_fail(error.text, 2))
    except EdgeflowError as error:
        sys.exit(_fail(error.text, 1))
    except OSError as error:
        sys.exit(_cannot_go_on(error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "edgeflow":
            raise
        missing = DependencyError(f"{error.name} is not installed; run `edgeflow doctor` to see how to install it")
        sys.exit(_fail(missing.text, 2))


def _cannot_go_on(error: OSError) -> int:
    """The exit code after an error of the system's that is nobody's mistake; others are raised."""
    if error.errno not in OF_THE_SYSTEM:
        raise error
    sys.stdout = None  # the interpreter would flush it at its end
    about = f": {error.filename}" if error.filename else ""
    return 1 if error.errno == errno.EPIPE else _fail(f"{error.strerror}{about}", 1)


def _fail(text: str, code: int) -> int:
    try:
        print("edgeflow:", " ".join(text.split()), file=sys.stderr)
    except OSError:  # a full disk or a closed pipe: the exit code says it too
        sys.stderr = None
    return code


if __name__ == "__main__":
    main()
