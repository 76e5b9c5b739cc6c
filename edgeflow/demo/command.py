"""The work of `edgeflow robot` and `edgeflow demo`; each function returns the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from edgeflow.client.connection.credentials import Credentials
from edgeflow.console import reporting, table_console
from edgeflow.demo.driver import FRAME_HZ, RobotRun, RunPlan, run_robot
from edgeflow.demo.live import RunView
from edgeflow.demo.measure import FRESH_SEEDS
from edgeflow.demo.report import conditions, mode_result, result_table, verdict, write_folder
from edgeflow.demo.service_process import ServiceProcess
from edgeflow.engine.control.profile import load_profile
from edgeflow.loadtest.report import json_text
from edgeflow.types import Mode

DEMO_MODES = (Mode.SERIAL, Mode.PIPELINED, Mode.SPECULATIVE)
CHUNK_MODES = (Mode.SERIAL, Mode.PIPELINED)
"""Modes of a policy that has no tokens to draft."""


def robot_command(address: str, plan: RunPlan, credentials: Credentials, as_json: bool) -> int:
    """Run the simulated robot against any service."""
    view = Console(stderr=True) if as_json else table_console()
    with RunView(view, [plan.mode], f"robot at {address}") as show:
        run = run_robot(address, plan, show, credentials=credentials)
    if as_json:
        result = mode_result(run)
        facts = {**conditions(run, "of the service"), "outcomes": [outcome.value for outcome in run.outcomes]}
        print(json_text({**facts, **asdict(result), "statistics": asdict(run.statistics)}))
    else:
        view.print(result_table([run], f"{run.model}, {_objects(plan.object_speed)}"))
    return 0


def demo_command(
    seconds: float, object_speed: float, profile: str, model: str, out: Path, *, modes: Sequence[Mode]
) -> int:
    """Serve a policy, run one mode after the other, compare them and write the report.

    seconds: per mode. object_speed: m/s. profile: device whose pass times the passes are held to. model: the policy's
    name or directory.
    """
    console = table_console()
    frame_hz = _frame_hz(profile)
    with ServiceProcess(("--model", model, "--profile", profile)) as service:
        with reporting(console) as report:
            address = service.start(report)
        console.print(
            f"service ready at {address}; {seconds:.0f} s per mode, camera {frame_hz:.0f} Hz", highlight=False
        )
        runs: list[RobotRun] = []
        with RunView(console, modes, "simulated robot") as show:
            for mode in modes:
                plan = RunPlan(
                    mode=mode, seconds=seconds, object_speed=object_speed, seed=FRESH_SEEDS, frame_hz=frame_hz
                )
                runs.append(run_robot(address, plan, show))
    sentence = verdict(runs)
    console.print(result_table(runs, f"{runs[0].model}, {_objects(object_speed)}, device profile {profile}"))
    console.print(sentence, highlight=False)
    write_folder(out, runs, conditions(runs[0], profile), sentence)
    console.print(f"written: {out}/report.json, {out}/modes.png and further plots", highlight=False)
    return 0


def _frame_hz(profile: str) -> float:
    """A camera rate somewhat above the device's pipelined rate, at most FRAME_HZ."""
    device = load_profile(profile)
    return FRAME_HZ if device is None else min(FRAME_HZ, 1.2e9 / device.packed_ns)


def _objects(speed: float) -> str:
    return f"objects at {100 * speed:g} cm/s" if speed else "still objects"
