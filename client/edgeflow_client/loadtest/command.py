"""`edgeflow loadtest`: the run in an event loop, the report, the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import ConfigError, InvalidArgument
from edgeflow_client.loadtest.chat import Beside, chat_summary, chatting, check_chat, default_address
from edgeflow_client.loadtest.chat_clients import ChatLoad
from edgeflow_client.loadtest.results import Results, results_json, results_of, write_csv
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.ledger import Fate, Ledger
from edgeflow_client.loadtest.robots.plan import LoadPlan, Ramp
from edgeflow_client.loadtest.run import LoadRun, Measurement
from edgeflow_client.loadtest.summary import summarise
from edgeflow_client.loadtest.tables import print_results
from edgeflow_client.loadtest.terminal import table_console

WINDOW_NS = 1_000_000_000
LOOK_BACK = 2_000  # frames of a robot to search for the actions of the last second
ON_THE_PAGE = "age.png is the latency of a robot, rate.png its rate, dispositions.png its outcomes"
"""Pictures that the live page of the service shows too, as they happen."""


class LiveView:
    """A progress bar: pass it to LoadRun as `tick`, and enter the context to show it."""

    def __init__(self, plan: LoadPlan, console: Console) -> None:
        columns = (TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[now]}"))
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("opening", total=None, now="")
        self._length_s = planned_s(plan)

    def __enter__(self) -> LiveView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, run: Measurement, now_ns: int) -> None:
        if self._progress.disable:
            return
        fps, age_ms = recent(run.ledgers, now_ns)
        age = f"age {age_ms:.0f} ms" if math.isfinite(age_ms) else "no actions"
        elapsed_s = (now_ns - run.begin_ns) / 1e9
        self._progress.update(
            self._task,
            description="warm-up" if elapsed_s < 0 else "measuring",
            completed=max(elapsed_s, 0.0),
            total=self._length_s if elapsed_s >= 0 else None,
            now=f"{fps:.1f} FPS, {age}",
        )


def recent(ledgers: Sequence[Ledger], now_ns: int) -> tuple[float, float]:
    """Actions per second and their median age in ms (NaN: none), over the second before now."""
    ages = [
        frame.age_ns / 1e6
        for ledger in ledgers
        for frame in ledger.frames[-LOOK_BACK:]
        if frame.fate is Fate.ACTED and now_ns - frame.received_ns < WINDOW_NS
    ]
    return len(ages) * 1e9 / WINDOW_NS, float(np.median(ages)) if ages else math.nan


def planned_s(plan: LoadPlan) -> float | None:
    """The longest duration of the measurement; None if a number of frames ends it."""
    if isinstance(plan.pattern, Ramp):
        return len(plan.pattern.rates_hz) * plan.pattern.step_s
    return None if plan.count is not None else plan.duration_s


def loadtest_command(
    plan: LoadPlan,
    limits: Mapping[str, float],
    credentials: Credentials,
    *,
    as_json: bool,
    out: Path | None,
    chat: ChatLoad | None = None,
) -> int:
    """Run the test and report it; exit code 0 or 1, StartError when it cannot run.

    limits: see results.judge. chat: run beside the robots, after the same load without it.
    """
    folder = _prepare(out)
    page = live_page(plan.address, credentials, chat)
    if not as_json:
        Console(stderr=True).print(f"live page: {page}, unless its HTTP port is another one", highlight=False)
    run, results = measured(plan, limits, credentials, Console(stderr=True), chat)
    if as_json:
        print(results_json(results))
    else:
        print_results(results, table_console())
    if folder is not None:
        write_folder(folder, run, results)
        if not as_json:
            text = f"written: {folder}/report.json, frames.csv and pictures; on the live page: {ON_THE_PAGE}"
            table_console().print(text, highlight=False, markup=False)
    return 0 if results.met else 1


def measured(
    plan: LoadPlan,
    limits: Mapping[str, float],
    credentials: Credentials,
    terminal: Console,
    chat: ChatLoad | None = None,
) -> tuple[Measurement, Results]:
    """Run with progress on a terminal. With chat there are two runs, and the second one is returned."""
    with terminal.status("encoding frames"):
        frames = frames_for(plan.session.cameras, plan.frames, plan.distinct, plan.seed)
    if chat is not None:
        check_chat(chat, credentials)
    with LiveView(plan, terminal) as view:
        run = run_plan(plan, frames, credentials, view)
    if chat is None or run.interrupted:
        return run, results_of(run, limits)
    alone = summarise(run, run.ledgers)
    with chatting(chat, credentials, plan.seed) as asked, LiveView(plan, terminal) as view:
        run = run_plan(plan, frames, credentials, view)
    beside = chat_summary(chat.clients, asked, run.begin_ns, run.end_ns)
    return run, results_of(run, limits, Beside(alone, beside))


def run_plan(
    plan: LoadPlan, frames: Sequence[tuple[bytes, ...]], credentials: Credentials | None, view: LiveView | None = None
) -> Measurement:
    """Run on uvloop where it is installed. The first Ctrl-C ends the measurement, a second one the program."""
    loop = _new_loop()
    try:
        return loop.run_until_complete(_measure(plan, frames, credentials, view))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def live_page(address: str, credentials: Credentials, chat: ChatLoad | None = None) -> str:
    """The address of the service's live page: its HTTP address where chat is asked, or else the default one."""
    encrypted = credentials.ca is not None or credentials.cert is not None
    return f"{chat.address if chat is not None else default_address(address, encrypted)}/"


def write_folder(folder: Path, run: Measurement, results: Results) -> None:
    """Write report.json, frames.csv and the plots."""
    from edgeflow_client.loadtest.pictures import draw

    (folder / "report.json").write_text(results_json(results) + "\n")
    write_csv(folder / "frames.csv", run)
    draw(folder, run, results)


def credentials_of(ca: Path | None, cert: Path | None, key: Path | None, token_file: Path | None) -> Credentials:
    """Load the credentials; ConfigError when they do not belong together or cannot be read."""
    try:
        return Credentials.of(ca, cert, key, token_file)
    except InvalidArgument as error:
        raise ConfigError(error.text) from None


def _prepare(out: Path | None) -> Path | None:
    """Create the folder before the run, so that a run is not lost because it cannot be written."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"out: {out}: {error.strerror}") from None
    return out


async def _measure(
    plan: LoadPlan, frames: Sequence[tuple[bytes, ...]], credentials: Credentials | None, view: LiveView | None
) -> Measurement:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no POSIX
        loop.add_signal_handler(signal.SIGINT, interrupt)
    return await LoadRun(plan, frames, credentials, view).measure(stop)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
