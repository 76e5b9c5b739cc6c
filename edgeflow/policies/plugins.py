"""Families that other installed distributions bring, by entry points of the group `edgeflow.policies`.

They are found by their metadata, and imported when a checkpoint or the configuration needs them. Control imports them
too, without torch. Before that, control tries them in a separate process, since it is foreign code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

from edgeflow.policies.family import CheckpointFiles, Family, Settings
from edgeflow_client.errors import ConfigError, EdgeflowError

GROUP = "edgeflow.policies"
TRIAL_S = 20.0
"""The longest that a plug-in may take to be imported and to check a checkpoint."""
TRIED = 42
"""The exit code of a trial that came to its end."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A family of another distribution, not imported yet."""

    name: str
    """The name of its entry point, which is the family's."""
    origins: tuple[str, ...]
    """The distributions that provide a family of this name, with their versions."""
    entry: EntryPoint
    """The entry point with its code."""
    fault: str = ""
    """How its trial failed; "" for one that did not fail, or was not tried."""

    @property
    def origin(self) -> str:
        """Name, distribution and version, for people."""
        return f"{self.name} of {' and of '.join(self.origins)}"

    @property
    def is_ambiguous(self) -> bool:
        """True when several distributions bring it, so that none of them can be used."""
        return len(self.origins) > 1

    def load(self) -> Family:
        """The family; ConfigError, naming the distribution, for one that cannot be used."""
        if self.is_ambiguous:
            raise ConfigError(f"policy.family: {self.name} is brought by {' and by '.join(self.origins)}: remove one")
        if self.fault:
            raise self._unusable(RuntimeError(self.fault), self.fault)
        without_torch = "torch" not in sys.modules
        with self._explained(), _own_signals():
            found = self.entry.load()
        if not isinstance(found, Family) or found.name != self.name:
            kind = f"a family of the name {found.name}" if isinstance(found, Family) else f"a {type(found).__name__}"
            raise self._unusable(TypeError(f"{self.entry.value} is {kind}, and no Family of the name {self.name}"))
        if without_torch and "torch" in sys.modules:
            raise self._unusable(ImportError("it imports torch, which only its load and prepare may do"))
        return replace(found, check=partial(self._check, found))

    def recognises(self, files: CheckpointFiles) -> bool:
        """True for a checkpoint of this family; ConfigError as in `load`."""
        family = self.load()
        with self._explained():
            return family.detect(files)

    def _check(self, family: Family, directory: Path, settings: Settings) -> object:
        """The check of a family; ConfigError for an exception that is not its verdict."""
        with self._explained():
            return family.check(directory, settings)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what foreign code raises into a ConfigError; what it prints goes to standard error."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except EdgeflowError:
            raise
        except (Exception, SystemExit) as error:
            raise self._unusable(error) from error

    def tried(self, directory: Path | None = None, settings: Settings | None = None, *, pinned: bool = False) -> Plugin:
        """The plug-in after a trial: it is imported, looks at a checkpoint, and checks it with these settings if it
        recognises it. All this in a separate process, which a plug-in may end or keep busy.

        pinned: it need not recognise the checkpoint, as the configuration names it.
        """
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _try; _try(*sys.argv[1:])"
        arguments = [self.name, self.entry.value, str(directory or ""), json.dumps([dict(settings or {}), pinned])]
        silent = subprocess.DEVNULL
        trial = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )
        try:
            done = trial.wait(TRIAL_S)
        except subprocess.TimeoutExpired:
            return replace(self, fault=f"no answer within {TRIAL_S:g} s")
        finally:
            with contextlib.suppress(OSError):
                os.killpg(trial.pid, signal.SIGKILL)  # and what it has started
            trial.wait()
        if done == TRIED:
            return self
        how = f"with exit code {done}" if done >= 0 else f"by signal {-done}"
        return replace(self, fault=f"it ends its process {how}")

    def _unusable(self, error: BaseException, why: str = "") -> ConfigError:
        """The error, without the exception's own text, which may hold anything; `edgeflow doctor` shows the cause."""
        text = f"policy.family: {self.origin} cannot be used ({why or type(error).__name__})"
        unusable = ConfigError(f"{text}; see `edgeflow doctor`")
        unusable.__cause__ = error
        return unusable


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of the signals that end a process, which foreign code may replace as it is imported."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            if signal.getsignal(each) is not handler:
                signal.signal(each, handler)


def _try(name: str, value: str, directory: str, asked: str) -> None:
    """The trial of a plug-in, in its process. An exception ends it as well as success: it is raised again where the
    plug-in is used.
    """
    with contextlib.suppress(Exception, SystemExit):
        plugin = Plugin(name, (name,), EntryPoint(name, value, GROUP))
        settings, pinned = json.loads(asked)
        family = plugin.load()
        path = Path(directory)
        if directory and (pinned or plugin.recognises(CheckpointFiles.of(path))):
            family.check(path, settings)
    os._exit(TRIED)
