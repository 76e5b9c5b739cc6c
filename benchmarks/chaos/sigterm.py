"""Sends SIGTERM to the service under eight robots at 10 Hz.

    .venv/bin/python -m benchmarks.chaos sigterm --trials 50 --json FILE

Every trial starts a service. The robots together take nearly all of the device, so that the pipeline is full when the
signal comes. Accepted frames are recorded inside the service, where a session accepts them; the robot must have
received exactly one disposition for each. A ninth robot uses the SDK: its last action must be followed by HOLD.
"""

from __future__ import annotations

import json
import random
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.chaos.process_facts import alive, wait_for
from benchmarks.chaos.report import ScenarioReport, parser, progress
from benchmarks.chaos.robots import OVERCOMMIT, KillableProcess, RawRobot
from benchmarks.chaos.rules import Account, BoundedFigure, account, spread
from benchmarks.chaos.sdk_robot import Change, RobotTotals, sdk_robot
from benchmarks.chaos.service import ServiceUnderTest
from edgeflow_client.rpc import control_pb2 as pb

ROBOTS, HZ = 8, 10.0
PROCESSES = 2  # that the robots are in
BAR_S, GIVE_UP_S = 5.0, 20.0
CONFIG = {"max_sessions": ROBOTS + 1, **OVERCOMMIT, "mode": "pipelined"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessages:
    """Messages that a robot received until its stream ended."""

    session: int
    sent: int
    dispositions: dict[int, int]
    """Number of dispositions by frame."""
    drain: bool
    held: bool
    """True if the last command was HOLD."""
    code: str

    @classmethod
    def of(cls, robot: RawRobot) -> ReceivedMessages:
        """The record of a robot whose stream has ended."""
        drain, held = "drain" in robot.notices, robot.last_command == pb.COMMAND_HOLD
        dispositions, code = dict(robot.dispositions), robot.code
        return cls(session=robot.session, sent=robot.sent, dispositions=dispositions, drain=drain, held=held, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of a trial."""

    exit_s: float
    exit_code: int | None
    """Both: of control after SIGTERM; None if it did not exit."""
    orphans: int
    accounts: list[Account]
    without_drain: int
    without_hold: int
    codes: list[str]
    sent: int
    sdk_held: bool
    """True if the SDK's robot held in time."""


def main() -> int:
    """Run the scenario; return the exit code."""
    arguments = parser(__doc__, 50).parse_args()
    report = ScenarioReport("sigterm", arguments)
    generator = random.Random(arguments.seed)
    with progress() as bar:
        turns = bar.track(range(arguments.trials), description="services stopped")
        trials = [_one(generator) for _ in turns]
    accounts = [each for trial in trials for each in trial.accounts]
    rows = [
        BoundedFigure("services stopped", len(trials)),
        BoundedFigure("frames sent", sum(trial.sent for trial in trials)),
        BoundedFigure("frames accepted", sum(each.accepted for each in accounts)),
        BoundedFigure("accepted frames without a disposition", sum(len(each.untold) for each in accounts), "", 0),
        BoundedFigure("frames with more than one", sum(len(each.repeated) for each in accounts), "", 0),
        BoundedFigure("dispositions of frames not accepted", sum(len(each.strange) for each in accounts), "", 0),
        BoundedFigure("robots without notice of the drain", sum(trial.without_drain for trial in trials), "", 0),
        BoundedFigure("robots whose last command is not HOLD", sum(trial.without_hold for trial in trials), "", 0),
        BoundedFigure("SDK robots that did not hold in time", sum(not trial.sdk_held for trial in trials), "", 0),
        BoundedFigure("exit codes other than 0", sum(trial.exit_code != 0 for trial in trials), "", 0),
        *spread("SIGTERM to exit", [trial.exit_s for trial in trials], "s", max=BAR_S),
        BoundedFigure("processes left behind", sum(trial.orphans for trial in trials), "", 0),
    ]
    return report.finish(rows, trials=[asdict(trial) for trial in trials])


def _one(generator: random.Random) -> Trial:
    with tempfile.TemporaryDirectory(prefix="edgeflow-chaos-") as folder:
        path = Path(folder) / "accepted.json"
        with ServiceUnderTest(CONFIG, ["--accepted", str(path)]) as service:
            return _stopped(service, path, generator.uniform(0.5, 1.5))


def _stopped(service: ServiceUnderTest, path: Path, after_s: float) -> Trial:
    groups = [KillableProcess(_robots, service.address, ROBOTS // PROCESSES) for _ in range(PROCESSES)]
    sdk = KillableProcess(sdk_robot, service.address, HZ, 0.02)
    while not (isinstance(message := sdk.receive(), Change) and message.command == "act"):
        pass
    for group in groups:
        group.receive()
    time.sleep(after_s)
    worker = service.worker()
    asked = time.monotonic()
    service.signal(signal.SIGTERM)
    code = service.wait_exit(GIVE_UP_S)
    exit_s = time.monotonic() - asked
    orphan = wait_for(lambda: not alive(worker), 0.5) is None
    received: list[ReceivedMessages] = [each for group in groups for each in group.receive()]  # type: ignore[attr-defined]
    held = _sdk_held(sdk)
    for robot in (*groups, sdk):
        robot.close()
    accepted = json.loads(path.read_text()) if path.exists() else {}
    return Trial(
        exit_s=exit_s,
        exit_code=code,
        orphans=int(orphan),
        accounts=[account(accepted.get(str(each.session), []), each.dispositions) for each in received],
        without_drain=sum(not each.drain for each in received),
        without_hold=sum(not each.held for each in received),
        codes=sorted(each.code for each in received),
        sent=sum(each.sent for each in received),
        sdk_held=held,
    )


def _sdk_held(sdk: KillableProcess) -> bool:
    """True if its last change is to HOLD, at most 20 ms after the last action's validity, and no action was overdue."""
    sdk.link.send("stop")
    last: Change | None = None
    while not isinstance(message := sdk.receive(), RobotTotals):
        last = message if isinstance(message, Change) else last
    return last is not None and last.command == "hold" and last.late_ns <= 20_000_000 and message.overdue == 0


def _robots(link: Connection, address: str, count: int) -> None:
    """Send frames until the service ends the streams, then report."""
    robots = [RawRobot(address, HZ) for _ in range(count)]
    for robot in robots:
        robot.wait_opened()
        robot.acted.wait()
    link.send("acting")
    for robot in robots:
        robot.wait_ended(2 * GIVE_UP_S)
    link.send([ReceivedMessages.of(robot) for robot in robots])
    link.poll(GIVE_UP_S)
