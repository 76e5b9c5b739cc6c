"""Two ways to draft after a wrong draft: from the pass's output there, or from the previous draft. Passes per verified
action.

    .venv/bin/python -m benchmarks.passes.guesses --json benchmarks/results/guesses-cpu-DATE.json

Closed loop with the embedded policy, drafts verified exactly, objects at 5 cm/s, passes of the RTX 5090 profile, the
same episodes.
"""

from __future__ import annotations

from statistics import mean

from rich.progress import track

from benchmarks.command import keep, machine_facts, options
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace, Speculation
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.profile import load_profile
from edgeflow.lab.demo.lockstep import FRESH_SEEDS
from edgeflow.lab.demo.simulated.episodes import EpisodeRun
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.worker.build import build_engine

SPEED_M_S = 0.05
PERIOD_S = 0.05


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    found = {name: _measured(name, kept, arguments.episodes) for name, kept in (("new", False), ("kept", True))}
    for name, figures in found.items():
        print(f"{name} guesses: " + ", ".join(f"{key} {value:.3g}" for key, value in figures.items()))
    keep(arguments.json, {**machine_facts(), "episodes": arguments.episodes, "guesses": found})


def _measured(name: str, kept: bool, episodes: int) -> dict[str, float]:
    built, profile = build_engine(ServiceConfig(max_sessions=1)), load_profile("rtx5090")
    if profile is None:
        raise RuntimeError("there is no such profile")
    policy, capacity = built.engine.policy, built.engine.capacity
    engine = PolicyEngine(policy, policy.K, capacity, keeps_guesses=kept)
    service = VirtualService(engine, built.limits, profile.times(policy.K))
    sim = RobotSim(FRESH_SEEDS, SPEED_M_S)
    runs: list[EpisodeRun] = []
    for index in track(range(episodes), description=f"{name} guesses"):
        sim.reset(FRESH_SEEDS + index)
        runs.append(service.run_episode(sim, Pace(0, Speculation()), period_s=PERIOD_S, anchored=True))
    sim.close()
    acted = [action for run in runs for action in run.acted]
    return {
        "passes": mean(action.passes for action in acted),
        "age_ms": mean(action.arrived_ns - action.captured_ns for action in acted) / 1e6,
        "actions_per_s": len(acted) / sum(run.seconds for run in runs),
        "successes": sum(run.outcome is EpisodeOutcome.SUCCESS for run in runs),
    }


if __name__ == "__main__":
    main()
