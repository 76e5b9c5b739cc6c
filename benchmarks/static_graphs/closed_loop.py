"""The embedded flow policy in closed loop, served from artifacts of every precision by ONNX Runtime.

python -m benchmarks.static_graphs.closed_loop --json FILE

The episodes are those of `edgeflow eval-demo`, the same for every precision; passes last as long as on a device
profile. The bar: INT16 succeeds at most 2 points less often than float32, at each speed of the objects. Exit code 1
where it is missed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.command import keep, machine_facts, options
from benchmarks.static_graphs.demo_flow import REWRITES
from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.demo.evaluation import EvaluationPlan, evaluate
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.request import ExportRequest, Precision
from edgeflow.lab.export.run import export
from edgeflow.lab.verify.comparison import silent
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY
from edgeflow_client.types import Execution, Mode

PROFILE = "rtx5090"
SPEEDS = (0.0, 0.05)  # m/s
BAR, POINTS = Precision.INT16, 2.0


def measured(precision: Precision, episodes: int) -> Iterator[dict[str, Any]]:
    """A row for each speed."""
    with tempfile.TemporaryDirectory() as folder:
        request = ExportRequest(
            folder=EMBEDDED_FLOW_POLICY,
            out=Path(folder) / "artifact",
            shapes=ExportShapes(batches=(1,)),
            precisions=dict.fromkeys(StageName, precision),
            rewrites=REWRITES,
        )
        export(request, silent)
        plan = EvaluationPlan(
            episodes=episodes,
            modes=(Mode.SERIAL,),
            anchored=(True,),
            speeds=SPEEDS,
            profiles=(PROFILE,),
            model=str(request.out),
            executions=(Execution.CONTINUE,),
        )
        for result in evaluate(plan, silent):
            yield {"precision": precision.value, **result.as_json()}


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The bars that do not hold, a line each."""
    success = {(row["precision"], row["speed_cm_s"]): 100 * row["success"] for row in rows}
    found = []
    for (precision, speed), share in success.items():
        floats = success[Precision.FLOAT32.value, speed]
        if precision == BAR.value and floats - share > POINTS:
            found.append(f"{precision} at {speed:g} cm/s: {share:.1f} %, float32 {floats:.1f} %")
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200, help="of each precision and speed (default: 200)")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for precision in Precision:
        for row in measured(precision, arguments.episodes):
            rows.append(row)
            print(
                f"{row['precision']:>8}, {row['speed_cm_s']:g} cm/s: {row['successes']} of {row['episodes']}, "
                f"{row['seconds_per_success'] or 0:.2f} s per success",
                flush=True,
            )
    found = missed(rows)
    keep(arguments.json, {"machine": machine_facts(), "profile": PROFILE, "rows": rows, "missed": found})
    for line in found:
        print(f"missed: {line}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
