"""Workers with scripted robots, recorded and replayed exactly: are all actions equal bit for bit?

    .venv/bin/python -m benchmarks.recording.exact --json FILE

Every policy in every mode with one to four robots, in turn, until there are ANSWERS answers; with silence, bursts,
frames that are superseded, seen or rejected, resets, other instructions, parked sessions and a lost worker in each run.
ACT and π0 are the cases in tests/recorded; OpenVLA-OFT has random weights. Nothing is timed. That a changed pixel, seed
or weight is seen is tested (tests/lab/recordings/test_exact.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import keep, machine_facts, options
from benchmarks.recording.robots import RobotScript, ScriptedRun
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace, Speculation
from edgeflow.lab.recordings.exact import replay_exactly
from edgeflow.lab.recordings.exact_report import ExactReport
from tests.oracles import RECORDED
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft

ANSWERS = 20_000
ROBOTS = (1, 2, 3, 4)
NOISE = {"noise_scale": 1.0, "noise_seed": 5}
LIMITS = {"limits": {"x": {"velocity": 0.2, "acceleration": 2.0}}}


SHARED: dict[str, Any] = {"device": "cpu", "max_sessions": max(ROBOTS), "drain_after_ms": 2}


def scripts(folder: Path) -> Iterator[tuple[str, RobotScript]]:
    """Every policy in every mode that it has, by name. OpenVLA-OFT is written to the folder."""
    demo = ServiceConfig(**SHARED)
    flow = ServiceConfig(model="demo-flow", policy=NOISE, **SHARED)
    for name, pace in {
        "serial": Pace(1),
        "depth 3": Pace(3),
        "pipelined": Pace(7),
        "speculative": Pace(0, Speculation()),
        "speculative, 2 bins, 3 passes": Pace(0, Speculation(2, 3)),
    }.items():
        yield f"demo {name}", RobotScript(config=demo, pace=pace)
    for name, pace in {"serial": Pace(1), "depth 2": Pace(2), "pipelined": Pace(4)}.items():
        yield f"demo-flow {name}", RobotScript(config=flow, pace=pace)
        yield f"demo-flow {name}, rtc", RobotScript(config=flow, pace=pace, continues=True)
    best = ServiceConfig(model="demo-flow", policy={**NOISE, "candidates": 3}, trajectory=LIMITS, **SHARED)
    yield "demo-flow serial, rtc, best of 3 within limits", RobotScript(config=best, pace=Pace(1), continues=True)
    rtc = {"control_rate_hz": 20.0, "rtc": {"execution_horizon": 8}}
    pi0 = ServiceConfig(model=str(RECORDED / "pi0"), policy=rtc, **SHARED)
    yield "pi0 serial, guided rtc", RobotScript(config=pi0, pace=Pace(1), continues=True)
    yield "pi0 pipelined, guided rtc", RobotScript(config=pi0, pace=Pace(5), continues=True)
    act = ServiceConfig(model=str(RECORDED / "act"), policy={"control_rate_hz": 50.0}, **SHARED)
    yield "act", RobotScript(config=act, pace=Pace(1))
    settings = {"family": "openvla_oft", **TinyOFT().settings()}
    oft = ServiceConfig(model=str(write_oft(folder)), policy=settings, **SHARED)
    yield "openvla-oft", RobotScript(config=oft, pace=Pace(1))


def main() -> None:
    """Record, replay and print; exit code 1 when an action differs."""
    parser = options(__doc__)
    parser.add_argument("--answers", type=int, default=ANSWERS, help="of all runs together")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        every = list(scripts(Path(folder)))
        share = -(-arguments.answers // (len(every) * len(ROBOTS)))
        for name, script in every:
            for robots in ROBOTS:
                seed = len(found)
                run = ScriptedRun(replace(script, robots=robots, answers=share, seed=seed, reset=0.04, parked=0.02))
                report = replay_exactly(run.run())
                complete = report.answers == run.answers and not report.not_comparable
                found.append({"cell": name, "robots": robots, **_figures(report), "complete": complete})
                print(f"{name}, {robots}: {report.equal} of {run.answers} answers equal, {report.passes} passes")
                if not report.agrees:
                    print("\n".join(report.lines()))
    totals = {key: sum(each[key] for each in found) for key in ("answers", "equal", "actions", "equal_actions")}
    equal = all(each["complete"] and each["agrees"] for each in found)
    print(
        f"{totals['equal']:,} of {totals['answers']:,} answers, "
        f"{totals['equal_actions']:,} of {totals['actions']:,} rows equal bit for bit"
    )
    keep(arguments.json, {**machine_facts(), **totals, "met": equal, "runs": found})
    raise SystemExit(0 if equal else 1)


def _figures(report: ExactReport) -> dict[str, Any]:
    names = ("answers", "equal", "actions", "equal_actions", "passes", "frames", "sessions", "workers", "agrees")
    return {name: getattr(report, name) for name in names}


if __name__ == "__main__":
    main()
