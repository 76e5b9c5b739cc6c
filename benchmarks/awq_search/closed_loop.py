"""The embedded policy with action tokens in closed loop, in floats and in the 4 bits of `edgeflow quantize`.

python -m benchmarks.awq_search.closed_loop --json FILE

The same 200 fresh episodes for both, still objects, serial, at the pass times of an RTX 5090 in simulated time.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command import edgeflow, keep, machine_facts, options

CONDITION = ("--mode", "serial", "--profile", "rtx5090", "--speed", "0", "--json")


def evaluated(model: str, episodes: int) -> dict[str, Any]:
    """The report of the one condition."""
    conditions = json.loads(edgeflow("eval-demo", "--model", model, "--episodes", str(episodes), *CONDITION))
    condition: dict[str, Any] = conditions[0]
    return condition


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": machine_facts()}
    with tempfile.TemporaryDirectory() as folder:
        quantised = str(Path(folder) / "policy")
        edgeflow("quantize", "demo", "--out", quantised)
        models = {"floats": "demo", "4 bits, groups of 32": quantised}
        report["policies"] = {name: evaluated(model, arguments.episodes) for name, model in models.items()}
    for name, figures in report["policies"].items():
        print(f"{name:>20}: {figures['successes']} of {figures['episodes']}, {figures['seconds_per_success']:.2f} s")
    keep(arguments.json, report)


if __name__ == "__main__":
    main()
