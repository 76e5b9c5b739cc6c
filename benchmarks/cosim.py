"""The co-simulation of the paper's model on the KV260, and hybrid runs of checkpoints in 4 bits beside the reference.

The times of the first part follow from the constants in edgeflow/lab/kv260/constants.py; nothing is measured. The
second part runs the accelerator's model on this machine: its tokens count, its speed is that of a simulation.

    .venv/bin/python -m benchmarks.cosim --json benchmarks/results/cosim-DATE.json
    .venv/bin/python -m benchmarks.cosim --checkpoint CHECKPOINT --checkpoint ANOTHER
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from benchmarks.command import keep, machine_facts, options
from edgeflow.lab.kv260.hybrid import compare_run
from edgeflow.lab.kv260.network import PAPER_MODEL
from edgeflow.lab.kv260.report import cosimulate, subject
from edgeflow_client.loadtest.terminal import table_console

PROMPTS = ("Hello!", "Once upon a time", "pick up the red cup")


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = options(__doc__)
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="run this checkpoint too")
    parser.add_argument("--tokens", type=int, default=32, help="tokens per prompt")
    arguments = parser.parse_args()
    for checkpoint in arguments.checkpoint:
        subject(str(checkpoint), None)  # CheckpointError for one that the KV260 cannot hold, before any is run
    report = cosimulate(subject(PAPER_MODEL, None))
    table = Table("placement", "tokens/s", "no overlap", "token, ms", title=PAPER_MODEL)
    for time in report.times:
        table.add_row(time.placement.name, f"{time.rate:.2f}", f"{time.rate_in_turn:.2f}", f"{time.milliseconds:.2f}")
    table_console().print(table)
    runs = []
    for checkpoint in arguments.checkpoint:
        for prompt in PROMPTS:
            run = compare_run(checkpoint, None, prompt, arguments.tokens)
            runs.append({"checkpoint": checkpoint.name, **asdict(run), "equal": run.equal})
            print(f"{checkpoint.name}: {prompt!r}: equal {run.equal}, {run.ms_per_token:.1f} ms per token simulated")
    keep(arguments.json, {"machine": machine_facts(), "cosim": report.as_dict(), "runs": runs})


if __name__ == "__main__":
    main()
