"""The embedded flow policy, executed as edgeflow's SDK does, and as other robot clients do by their descriptions.

    .venv/bin/python -m benchmarks.closed_loop.field --json FILE

The passes, the worker and the episodes are the same in each cell; time is virtual, so this machine's speed does not
matter. Finished cells are stored in --runs, and a run that was interrupted goes on there. Cells that do not begin
within --minutes are left out.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.closed_loop.episode_blocks import completed
from benchmarks.closed_loop.field.cells import field_cells, line, run_cell
from benchmarks.closed_loop.grid import PERIOD_S
from benchmarks.command import keep, machine_facts, options
from edgeflow.model_paths import EMBEDDED_FLOW
from edgeflow_client.errors import ConfigError


def main() -> None:
    """Run what is missing, print every cell, and write the results."""
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=50, help="per cell")
    parser.add_argument("--policy", default=EMBEDDED_FLOW, help="another flow policy, by its directory")
    parser.add_argument("--runs", type=Path, default=Path("field-runs"), help="directory of finished cells")
    parser.add_argument("--minutes", type=float, default=600, help="begin no further cell after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes, with one thread each")
    arguments = parser.parse_args()
    facts = machine_facts()
    _check(arguments.runs, str(facts["commit"]))
    cells = field_cells(arguments.policy, arguments.episodes)
    files = [arguments.runs / cell.file for cell in cells]
    missing = [index for index, file in enumerate(files) if not file.exists()]
    ends_s = time.monotonic() + 60 * arguments.minutes
    pool = ProcessPoolExecutor(arguments.workers, get_context("spawn"))
    running = [pool.submit(run_cell, index, arguments.policy, arguments.episodes, arguments.runs) for index in missing]
    try:
        for done, future in enumerate(completed(running, ends_s), 1):
            print(f"{done} of {len(running)}: {future.result()}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    rows: list[dict[str, Any]] = [json.loads(file.read_text()) for file in files if file.exists()]
    for row in rows:
        print(line(row))
    head = {**facts, "cells_wanted": len(cells), "model": arguments.policy, "frame_hz": 1 / PERIOD_S}
    keep(arguments.json, {**head, "conditions": rows})


def _check(runs: Path, commit: str) -> None:
    """ConfigError when the folder holds cells of another commit."""
    runs.mkdir(parents=True, exist_ok=True)
    head = runs / "commit"
    if head.exists() and head.read_text() != commit:
        raise ConfigError(f"runs: {runs} has cells of commit {head.read_text()}; this is {commit}")
    head.write_text(commit)


if __name__ == "__main__":
    main()
