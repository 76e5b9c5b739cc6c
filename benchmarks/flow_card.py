"""The figures of the embedded flow policy's card: success of chunks in lockstep, by delay, kind and object speed.

    .venv/bin/python -m benchmarks.flow_card --json benchmarks/results/flow-card-cpu.json

The policy is evaluated with its training network, in fp32, in lockstep with the simulation. A delay is in rows of
50 ms, from the capture of a frame to the arrival of its chunk; meanwhile the rows of the chunk before are played, and
the next frame is captured when a chunk arrives. A continued chunk keeps the rows that are played meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.command import keep, options
from benchmarks.machine import machine_facts
from edgeflow.demo.chunk_episodes import ChunkTiming, run_chunks
from edgeflow.demo.flow_training.export import NUM_STEPS
from edgeflow.demo.flow_training.sampling import FlowSampler
from edgeflow.demo.measure import measure_runs
from edgeflow.demo.world.sim import RobotSim
from edgeflow.demo.world.task import Outcome
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY
from tests.demo.flow_training.reference import read_sampler


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for steps, (name, timing, speed) in itertools.product(
        arguments.steps, _conditions(arguments.speeds, arguments.delays)
    ):
        sampler = read_sampler(EMBEDDED_FLOW_POLICY, steps)
        result = measure_runs(_runner(sampler, timing), speed, arguments.episodes)
        low, high = result.rate.interval
        rows.append(
            {
                "condition": name,
                "euler_steps": steps,
                "successes": result.rate.successes,
                "episodes": arguments.episodes,
                "interval_95": [low, high],
                "outcomes": result.outcomes,
                "seconds_of_successes": result.seconds,
            }
        )
        tally = f"{result.rate.successes} of {arguments.episodes} ({100 * low:.1f} to {100 * high:.1f} %)"
        print(f"{steps} steps, {name}: {tally}, {result.seconds:.2f} s", flush=True)
    keep(arguments.json, {**machine_facts(), "flow": rows})


def _runner(sampler: FlowSampler, timing: ChunkTiming) -> Any:
    def run(sims: list[RobotSim]) -> list[Outcome]:
        return run_chunks(sims, sampler, timing)

    return run


def _conditions(speeds: list[float], delays: list[int]) -> Iterator[tuple[str, ChunkTiming, float]]:
    for speed in (each / 100 for each in speeds):
        objects = f"objects at {100 * speed:g} cm/s" if speed else "still objects"
        yield f"{objects}, no delay, replanned every row", ChunkTiming(), speed
        yield f"{objects}, no delay, replanned every 4 rows", ChunkTiming(every=4), speed
        for delay, conditioned in itertools.product(delays, (False, True)):
            how = "continued" if conditioned else "fresh"
            yield f"{objects}, delay {delay} rows, {how}", ChunkTiming(0.05, delay, delay, conditioned), speed


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200, help="per condition")
    parser.add_argument("--steps", type=int, nargs="+", default=[NUM_STEPS], help="numbers of Euler steps")
    parser.add_argument("--delays", type=int, nargs="+", default=[2, 3], help="rows of 50 ms")
    parser.add_argument("--speeds", type=float, nargs="+", default=[0.0, 5.0], help="of the objects, cm/s")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
