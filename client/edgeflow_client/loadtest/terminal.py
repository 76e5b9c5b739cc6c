"""Commands in a terminal: their settings, their tables, and one line for an error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from typer.core import TyperCommand

from edgeflow_client.errors import ConfigError, DependencyError, EdgeflowError, StartError

OF_THE_SYSTEM = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EPIPE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
)
"""A full or broken disk, a reader that has gone, no more descriptors, memory or processes."""
WIDE = 140  # columns of tables that go to a file or a pipe
CONTROL = dict.fromkeys(each for each in (*range(32), *range(127, 160)) if each != ord("\n"))
"""Characters that a terminal may take as commands, for `str.translate`."""


def settings_of(
    given: Sequence[str], options: Mapping[str, object], read: Callable[[str], object] = str
) -> dict[str, object]:
    """The values of `--set KEY=VALUE` and of options, by key; options that are None were not given."""
    settings = {key: value for key, value in options.items() if value is not None}
    for each in given:
        key, equals, text = each.partition("=")
        if not (key and equals):
            raise ConfigError(f"set: {each!r} is not KEY=VALUE")
        if key in settings:
            raise ConfigError(f"{key}: is given twice")
        settings[key] = read(text)
    return settings


def setting_command(keys: Callable[[], Sequence[str]], renamed: Mapping[str, str]) -> type[TyperCommand]:
    """The class of a command with `--set`, which answers an option that it does not have by the setting of that name.

    renamed: settings of another name, by option.
    """

    class SettingCommand(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            try:
                return super().parse_args(ctx, args)
            except Exception as error:
                if type(error).__name__ != "NoSuchOption":  # click's, of which some versions of typer have a copy
                    raise
                option = str(getattr(error, "option_name", ""))
                key = {**_option_names(keys()), **renamed}.get(option.lstrip("-"))
                if key is None:
                    raise
                raise ConfigError(f"{option}: is not an option; write --set {key}=VALUE") from None

    return SettingCommand


def _option_names(keys: Sequence[str]) -> dict[str, str]:
    """Keys by the name that an option for them has: the key, or where no other has it, the last part of the key."""
    last = {key.rpartition(".")[2].removesuffix("_s"): key for key in reversed(keys)}
    names = {**last, **{key: key for key in keys}}
    return {name.replace("_", "-").replace(".", "-"): key for name, key in names.items()}


def table_console() -> Console:
    """A console for results on standard output: as wide as the terminal, or WIDE columns elsewhere."""
    return _HarmlessConsole(width=None if sys.stdout.isatty() else WIDE)


class _HarmlessConsole(Console):
    """A console that leaves out the control characters of texts, which may be those of a robot or a file."""

    def render(self, *given: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*given, **options):
            yield segment if segment.control else Segment(segment.text.translate(CONTROL), segment.style)


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
        print(f"{name}:", " ".join(text.split()).translate(CONTROL), file=sys.stderr)
    except OSError:  # a full disk or a closed pipe: the exit code says it too
        sys.stderr = None
    return code
