"""Workers with scripted robots, recorded and replayed exactly: are all actions equal bit for bit?

    .venv/bin/python -m benchmarks.recording.exact --json FILE

Every policy in every mode with one to four robots, in turn, until there are ANSWERS answers; with silence, bursts,
frames that are superseded, seen or rejected, resets, other instructions, parked sessions and a lost worker in each run.
Then the counter-proof: of one recording a pixel, the seed and the last bit of a weight are changed, and each must be
reported with its first frame and pass. ACT and π0 are the cases in tests/recorded; OpenVLA-OFT has random weights.
Nothing is timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import keep, machine_facts, options
from benchmarks.recording.robots import MemoryRecording, RobotScript, ScriptedRun
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace, Speculation
from edgeflow.lab.recordings.exact import ready_engine, replay_exactly, replay_on
from edgeflow.lab.recordings.exact_report import ExactReport
from edgeflow_client.recording.records import RecordedObservation
from tests.oracles import RECORDED
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft

ANSWERS = 20_000
ROBOTS = (1, 2, 3, 4)
NOISE = {"noise_scale": 1.0, "noise_seed": 5}
LIMITS = {"limits": {"x": {"velocity": 0.2, "acceleration": 2.0}}}


def cells(folder: Path) -> Iterator[tuple[str, RobotScript]]:
    """Every policy in every mode that it has, by name."""
    shared: dict[str, Any] = {"device": "cpu", "max_sessions": max(ROBOTS), "drain_after_ms": 2}
    demo = ServiceConfig(**shared)
    flow = ServiceConfig(model="demo-flow", policy=NOISE, **shared)
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
    best = ServiceConfig(model="demo-flow", policy={**NOISE, "candidates": 3}, trajectory=LIMITS, **shared)
    yield "demo-flow serial, rtc, best of 3 within limits", RobotScript(config=best, pace=Pace(1), continues=True)
    rtc = {"control_rate_hz": 20.0, "rtc": {"execution_horizon": 8}}
    pi0 = ServiceConfig(model=str(RECORDED / "pi0"), policy=rtc, **shared)
    yield "pi0 serial, guided rtc", RobotScript(config=pi0, pace=Pace(1), continues=True)
    yield "pi0 pipelined, guided rtc", RobotScript(config=pi0, pace=Pace(5), continues=True)
    act = ServiceConfig(model=str(RECORDED / "act"), policy={"control_rate_hz": 50.0}, **shared)
    yield "act", RobotScript(config=act, pace=Pace(1))
    settings = {"family": "openvla_oft", **TinyOFT().settings()}
    oft = ServiceConfig(model=str(write_oft(folder)), policy=settings, **shared)
    yield "openvla-oft", RobotScript(config=oft, pace=Pace(1))


def main() -> None:
    """Record, replay and print; exit code 1 when an action differs or a change goes unseen."""
    parser = options(__doc__)
    parser.add_argument("--answers", type=int, default=ANSWERS, help="of all runs together")
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scripts = list(cells(Path(folder)))
        share = -(-arguments.answers // (len(scripts) * len(ROBOTS)))
        for name, script in scripts:
            for robots in ROBOTS:
                seed = len(found)
                run = ScriptedRun(replace(script, robots=robots, answers=share, seed=seed, reset=0.04, parked=0.02))
                report = replay_exactly(run.run())
                complete = report.answers == run.answers and not report.not_comparable
                found[f"{name}, {robots}"] = {**_figures(report), "complete": complete}
                print(f"{name}, {robots}: {report.equal} of {run.answers} answers equal, {report.passes} passes")
                if not report.agrees:
                    print("\n".join(report.lines()))
    changes = counter_proof()
    totals = {
        key: sum(each[key] for each in found.values()) for key in ("answers", "equal", "actions", "equal_actions")
    }
    equal = all(each["complete"] and each["agrees"] for each in found.values())
    seen = all(each["seen"] for each in changes.values())
    print(
        f"{totals['equal']:,} of {totals['answers']:,} answers, "
        f"{totals['equal_actions']:,} of {totals['actions']:,} rows equal bit for bit"
    )
    print("\n".join(f"{name}: {each['first']}" for name, each in changes.items()))
    report = {**machine_facts(), **totals, "changes": changes, "met": {"equal": equal, "seen": seen}, "runs": found}
    keep(arguments.json, report)
    raise SystemExit(0 if equal and seen else 1)


def counter_proof() -> dict[str, dict[str, Any]]:
    """One recording with a pixel, a seed and a weight changed: whether each is seen, and its first difference."""
    config = ServiceConfig(model="demo-flow", policy=NOISE, device="cpu", max_sessions=2)
    script = RobotScript(config=config, pace=Pace(2), robots=2, answers=100, continues=True, lost_workers=0)
    recording = ScriptedRun(script).run()
    built = ready_engine(config)
    policy = built.engine.policy

    def replayed(other: MemoryRecording) -> ExactReport:
        return replay_on(built, config, other)

    assert replayed(recording).agrees
    reports = {"pixel": replayed(_with_a_changed_pixel(recording))}
    settings = policy._settings
    policy._settings = settings.model_copy(update={"noise_seed": 6})
    reports["seed"] = replayed(recording)
    policy._settings = settings
    bias = policy.network._out._bias
    with torch.no_grad():
        bias[0] = torch.nextafter(bias[0], bias[0] + 1)
    reports["weight"] = replayed(recording)
    return {
        name: {
            "seen": not report.agrees and report.first is not None and report.first.number is not None,
            "first": (report.first_action or report.first).text if report.first else "",
            "difference": asdict(report.first) if report.first else None,
        }
        for name, report in reports.items()
    }


def _with_a_changed_pixel(recording: MemoryRecording) -> MemoryRecording:
    """The recording with the lowest bit of a pixel changed, in the middle of the 20th frame."""
    frames = list(recording.frames)
    place = [index for index, (record, _) in enumerate(frames) if isinstance(record, RecordedObservation)][19]
    record, (unused, image, *others) = frames[place]
    changed = bytearray(image)
    changed[len(changed) // 2] ^= 1
    frames[place] = record, (unused, bytes(changed), *others)
    return MemoryRecording(recording.passes, frames)


def _figures(report: ExactReport) -> dict[str, Any]:
    names = ("answers", "equal", "actions", "equal_actions", "passes", "frames", "sessions", "workers", "agrees")
    return {name: getattr(report, name) for name in names}


if __name__ == "__main__":
    main()
