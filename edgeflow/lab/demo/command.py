"""The implementation of `edgeflow robot` and `edgeflow demo`; each function returns the exit code."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final

import typer
from rich.console import Console
from rich.live import Live

from edgeflow.engine.control.profile import load_profile
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.report import conditions, mode_result, objects_at, result_table, verdict, write_folder
from edgeflow.lab.demo.robot_run import FRAME_HZ, RobotRun, RunPlan, RunProgress, run_robot
from edgeflow.lab.demo.service_process import ServiceProcess
from edgeflow.lab.progress import reporting
from edgeflow.model_paths import resolve_model
from edgeflow.policies.family import Family
from edgeflow.policies.registry import family_of
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable, table_console
from edgeflow_client.types import Mode

_LINE_EVERY_S: Final = 5.0
ON_THE_PAGE: Final = "the live page shows series.png as rate and latency of the robot, and frames-*.png as its camera"


def robot_command(address: str, plan: RunPlan, credentials: Credentials, as_json: bool) -> int:
    """Run the simulated robot against any service."""
    view = Console(stderr=True) if as_json else table_console()
    with RunView(view, [plan.mode] if plan.mode else [], f"robot at {address}") as show:
        run = run_robot(address, plan, show, credentials=credentials)
    if as_json:
        result = mode_result(run)
        facts = {**conditions(run, "of the service"), "outcomes": [outcome.value for outcome in run.outcomes]}
        print(json_text({**facts, **asdict(result), "statistics": asdict(run.statistics)}))
    else:
        view.print(result_table([run], f"{run.model}, {objects_at(plan.object_speed)}"))
    return 0


def demo_command(
    seconds: float,
    object_speed: float,
    profile: str,
    model: str,
    out: Path,
    *,
    like: str = "",
    show_page: bool = False,
) -> int:
    """Serve a policy, run each mode of its family, compare them and write the report.

    seconds: per mode.

    object_speed: m/s.

    profile: the device whose pass times are emulated.

    model: the policy's name or directory.

    like: an embedded policy whose modes the policy must have; "" for any.

    show_page: open the service's live page in the browser.
    """
    modes = _family(model, like).modes
    console = table_console()
    frame_hz = _frame_hz(profile)
    with ServiceProcess(("--model", model, "--profile", profile)) as service:
        with reporting(console) as report:
            address = service.start(report)
        console.print(
            f"service ready at {address}; {seconds:.0f} s per mode, camera {frame_hz:.0f} Hz", highlight=False
        )
        console.print(f"live page while it runs: {service.page}", highlight=False)
        if show_page:
            open_page(service.page, console)
        runs: list[RobotRun] = []
        with RunView(console, modes, "simulated robot") as show:
            for mode in modes:
                plan = RunPlan(
                    mode=mode, seconds=seconds, object_speed=object_speed, seed=FRESH_SEEDS, frame_hz=frame_hz
                )
                runs.append(run_robot(address, plan, show))
    sentence = verdict(runs)
    console.print(result_table(runs, f"{runs[0].model}, {objects_at(object_speed)}, device profile {profile}"))
    console.print(sentence, highlight=False)
    write_folder(out, runs, conditions(runs[0], profile), sentence)
    console.print(f"written: {out}/report.json, {out}/modes.png and further plots; {ON_THE_PAGE}", highlight=False)
    return 0


def open_page(page: str, console: Console) -> None:
    """Open a page in the browser, if there is a display to show it on."""
    variables = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform == "linux" and not any(os.environ.get(each) for each in variables):
        console.print("there is no display here: open that address in a browser of this machine", highlight=False)
    else:
        typer.launch(page)


def _family(model: str, like: str) -> Family:
    """The family of a policy; ConfigError if its modes are not those of the embedded policy `like`."""
    family = family_of(resolve_model(model))
    if like and family.modes != family_of(resolve_model(like)).modes:
        modes = ", ".join(mode.value for mode in family.modes)
        raise ConfigError(
            f"policy: {model} is of the family {family.name}, with the modes {modes}, not of the kind that "
            "--policy names: remove --policy"
        )
    return family


def _frame_hz(profile: str) -> float:
    """A camera rate slightly above the device's pipelined rate, at most FRAME_HZ."""
    device = load_profile(profile)
    return FRAME_HZ if device is None else min(FRAME_HZ, 1.2e9 / device.packed_ns)


class RunView:
    """Context manager that shows the progress of one mode after another."""

    def __init__(self, console: Console, modes: Sequence[Mode], title: str) -> None:
        self._console = console
        self._title = title
        self._latest: dict[Mode, RunProgress | None] = dict.fromkeys(modes)
        self._live = Live(self._table(), console=console, auto_refresh=False) if console.is_terminal else None
        self._next_line_s = _LINE_EVERY_S

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: RunProgress) -> None:
        """Show the latest state of a run."""
        if self._latest.get(progress.mode) is None:
            self._next_line_s = _LINE_EVERY_S
        self._latest[progress.mode] = progress
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif progress.summary.seconds >= self._next_line_s:
            self._next_line_s = progress.summary.seconds + _LINE_EVERY_S
            self._console.print("  ".join(_cells(progress.mode, progress)), highlight=False)

    def _table(self) -> FoldingTable:
        table = FoldingTable("mode", "time", "FPS", "age p50", "age p99", "success so far", title=self._title)
        for mode, progress in self._latest.items():
            table.add_row(*_cells(mode, progress))
        return table


def _cells(mode: Mode, progress: RunProgress | None) -> tuple[str, ...]:
    if progress is None:
        return (mode.value, "-", "-", "-", "-", "-")
    summary = progress.summary
    ages = (f"{age:.0f} ms" if math.isfinite(age) else "-" for age in (summary.age_ms.p50, summary.age_ms.p99))
    done = f"{progress.successes} of {progress.episodes}"
    return (mode.value, f"{summary.seconds:.0f} s", f"{summary.fps:.1f} FPS", *ages, done)
