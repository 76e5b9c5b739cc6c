"""The embedded flow policy in closed loop: ways to execute chunks, modes, and none but the camera's delay.

python -m benchmarks.closed_loop.flow --json FILE

Fresh episodes in simulated time, still objects and objects at 5 cm/s, with the scheduler and engine that serve. 200 per
condition; 50 where a pipeline meets moving objects, since failures take long. Half an hour of two cores.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command import edgeflow, keep, machine_facts, options

NO_DELAY = {"name": "no delay", "prefill_ms": 0.001, "decode_ms": 0.001, "packed_ms": 0.001}


def evaluated(profile: str, mode: str, executions: tuple[str, ...], speed: int, episodes: int) -> list[dict[str, Any]]:
    """The reports of one mode and speed."""
    chosen = [argument for name in executions for argument in ("--execution", name)]
    condition = ("--profile", profile, "--mode", mode, "--speed", str(speed), "--episodes", str(episodes))
    reports: list[dict[str, Any]] = json.loads(edgeflow("eval-demo", "--policy", "flow", *condition, *chosen, "--json"))
    for each in reports:
        print(
            f"{profile}, {mode}, {each['execution']}, {speed} cm/s: {each['successes']} of {each['episodes']}",
            flush=True,
        )
    return reports


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--moving-episodes", type=int, default=50, help="of a pipeline and moving objects")
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine_facts(), "model": "demo-flow", "frame_hz": 20.0}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        at_once = Path(folder) / "no-delay.json"
        at_once.write_text(json.dumps(NO_DELAY))
        for speed in (0, 5):
            rows += evaluated(str(at_once), "serial", ("rtc",), speed, arguments.episodes)
            rows += evaluated("rtx5090", "serial", ("rtc", "synchronous", "fresh"), speed, arguments.episodes)
            episodes = arguments.moving_episodes if speed else arguments.episodes
            rows += evaluated("rtx5090", "pipelined", ("rtc", "fresh"), speed, episodes)
    keep(arguments.json, {**report, "conditions": rows})


if __name__ == "__main__":
    main()
