"""Commands in a terminal: their tables, and one line for an error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from edgeflow_client.errors import DependencyError, EdgeflowError, StartError

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
WIDE = 140  # columns of tables that go to a file or a pipe


def table_console() -> Console:
    """A console for results on standard output: as wide as the terminal, or WIDE columns elsewhere."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


class FoldingTable(Table):
    """A table that folds what a narrow terminal has no room for; rich would cut it."""

    def __init__(self, *headings: str, **options: Any) -> None:
        super().__init__(*headings, **{"collapse_padding": True, **options})

    def add_column(self, *args: Any, **options: Any) -> None:
        super().add_column(*args, **{"overflow": "fold", **options})


def open_standard_streams() -> None:
    """Open the standard streams that this program was started without (`2>&-`): no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def run(app: Callable[[], object], name: str, *, doctor: str = "") -> None:
    """Run a command line. A StartError becomes one line on standard error and exit code 2.

    doctor: the command that says how to install a library that is missing.
    """
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # otherwise the interpreter finds at its end that the disk is full
    except StartError as error:
        sys.exit(_fail(name, error.text, 2))
    except EdgeflowError as error:
        sys.exit(_fail(name, error.text, 1))
    except OSError as error:
        sys.exit(_cannot_go_on(name, error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("edgeflow", "edgeflow_client"):
            raise
        advice = f"run `{doctor}` to see how to install it" if doctor else "install it"
        sys.exit(_fail(name, DependencyError(f"{error.name} is not installed; {advice}").text, 2))


def _cannot_go_on(name: str, error: OSError) -> int:
    """The exit code after an error of the system's that is nobody's mistake; others are raised."""
    if error.errno not in OF_THE_SYSTEM:
        raise error
    sys.stdout = None  # the interpreter would flush it at its end
    about = f": {error.filename}" if error.filename else ""
    return 1 if error.errno == errno.EPIPE else _fail(name, f"{error.strerror}{about}", 1)


def _fail(name: str, text: str, code: int) -> int:
    try:
        print(f"{name}:", " ".join(text.split()), file=sys.stderr)
    except OSError:  # a full disk or a closed pipe: the exit code says it too
        sys.stderr = None
    return code
