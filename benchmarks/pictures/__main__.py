"""Draws the pictures of result files, each beside its file.

    .venv/bin/python -m benchmarks.pictures [FILE.json ...]

Without files, those in benchmarks/results that have a picture are drawn again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pictures import closed_loop, executions, long_context, processes
from edgeflow_client.errors import ConfigError

RESULTS = Path(__file__).parents[1] / "results"
Draw = Callable[[Path, Mapping[str, Any]], None]
PICTURES: Mapping[str, Draw] = {
    "closed-loop": closed_loop.draw_success,
    "closed-loop-figures": closed_loop.draw_delays,
    "executions": executions.draw_executions,
    "long-context": long_context.draw_answers,
    "long-context-speed": long_context.draw_speed,
    "metaworld": closed_loop.draw_metaworld,
    "soak": processes.draw_soak,
    "static-graphs-latency": processes.draw_static_graphs,
    "sweep": processes.draw_sweep,
}
"""How results are drawn, by the beginning of the file's name."""


def main() -> None:
    """Draw and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="result files")
    for file in parser.parse_args().files or [path.with_suffix(".json") for path in sorted(RESULTS.glob("*.png"))]:
        draw_of(file.name)(file.with_suffix(".png"), json.loads(file.read_text()))
        print(f"written: {file.with_suffix('.png')}")


def draw_of(name: str) -> Draw:
    """How a result file of this name is drawn; ConfigError where nothing draws it."""
    found = [beginning for beginning in PICTURES if name.startswith(beginning)]
    if not found:
        raise ConfigError(f"{name}: has no picture; files with one begin with {', '.join(PICTURES)}")
    return PICTURES[max(found, key=len)]


if __name__ == "__main__":
    main()
