"""Pass-time jitter of the pipelined mode: full pipelines of the embedded policy in the worker's own loop.

.venv/bin/python -m benchmarks.passes.jitter --json FILE
"""

from __future__ import annotations

import gc

import numpy as np
from rich.progress import track

from benchmarks.command import keep, machine_facts, options
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace
from edgeflow.ipc.messages import Message, OpenSession, SubmitFrame
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import MonotonicClock

CAMERA = 96
BAR = 1.5  # p99 / p50


def main() -> None:
    """Measure and print; exit code 1 when the target is missed."""
    parser = options(__doc__)
    parser.add_argument("--passes", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = as the service chooses")
    arguments = parser.parse_args()
    times_ms = measure(arguments.passes, arguments.warm_up, arguments.threads)
    quantiles = {name: float(np.percentile(times_ms, share)) for name, share in _SHARES.items()}
    ratio = quantiles["p99"] / quantiles["p50"]
    print(f"{len(times_ms)} full passes: " + ", ".join(f"{name} {value:.2f} ms" for name, value in quantiles.items()))
    print(f"jitter p99 / p50: {ratio:.2f} (target {BAR}): {'met' if ratio <= BAR else 'MISSED'}")
    report = {**machine_facts(), "passes": len(times_ms), "milliseconds": quantiles, "p99_over_p50": ratio}
    keep(arguments.json, report)
    raise SystemExit(0 if ratio <= BAR else 1)


_SHARES = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}


def measure(passes: int, warm_up: int, threads: int) -> list[float]:
    """Time of each full pass in milliseconds, including drain and publish."""
    built = build_engine(ServiceConfig(max_sessions=1, threads=threads))
    stages = built.engine.policy.K
    messages: list[Message] = []
    worker = Worker(built.engine, Scheduler(built.limits), MonotonicClock(), messages.append)
    worker.inbox.put(OpenSession(session=1, epoch=1, pace=Pace(stages), unnorm_key=""))
    images = np.random.default_rng(0).integers(0, 256, (32, CAMERA, CAMERA, 3), np.uint8)
    gc.collect()
    gc.freeze()
    times_ms: list[float] = []
    for seq in track(range(1, warm_up + passes + 1), description="passes"):
        worker.inbox.put(
            SubmitFrame(
                session=1,
                epoch=1,
                seq=seq,
                sizes=[CAMERA, CAMERA],
                instruction="grasp the red handle",
                payload=images[seq % 32].tobytes(),
            )
        )
        worker.step()
        messages.clear()
        sample = worker.take_passes()[-1]
        if seq > warm_up and (sample.prefills, sample.decodes) == (1, stages - 1):
            times_ms.append(sample.ns / 1e6)
    return times_ms


if __name__ == "__main__":
    main()
