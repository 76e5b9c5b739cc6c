"""The cost of KV formats in use: exact answers of the embedded chat model, and the embedded policy in closed loop.

    .venv/bin/python -m benchmarks.kv_formats --json FILE

The questions are the held-out ones of `edgeflow eval-chat`, the episodes those of `edgeflow eval-demo`. They are the
same for every format, and passes last as long as on a device profile, so nothing depends on how fast this machine is.
Bars, in points below KV in the model's dtype: 1 of the answers with int8 and fp8, 3 with int4, and 2 of the episodes of
each condition. Exit code 1 where one is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import torch

from benchmarks.command import keep, machine_facts, options
from edgeflow.contract import KVName
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.kernels.kv.formats import CONFIGURED
from edgeflow.lab.demo.chat.evaluate import QUESTIONS, evaluate_chat
from edgeflow.lab.demo.evaluation import EvaluationPlan, evaluate, load_policy
from edgeflow.lab.demo.recording import wilson
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL, EMBEDDED_MODEL
from edgeflow.models.chat import load_chat_model
from edgeflow_client.types import Mode

FORMATS: tuple[KVName, ...] = ("int8", "int4")
ANSWERS = {"int8": 1.0, "fp8": 1.0, "int4": 3.0}
EPISODES = 2.0
CONDITIONS = {
    f"{mode.value}, {100 * speed:g} cm/s": (mode, speed)
    for mode, speed in ((Mode.SERIAL, 0.0), (Mode.SERIAL, 0.05), (Mode.PIPELINED, 0.0), (Mode.SPECULATIVE, 0.05))
}
"""Mode, and speed of the objects in m/s. Pipelined actions are too old for objects that move, whatever the format."""
PROFILE = "rtx5090"
CHAT_CAPACITY = 2048  # positions of a slot, as served by default
Row = dict[str, Any]


def main() -> None:
    """Measure, print a line for each result, and write the file."""
    arguments = _arguments()
    rows: list[Row] = []
    for kv in arguments.kv:
        if arguments.questions:
            rows.append(_answers(kv, arguments.questions))
            print(_line(rows[-1], rows), flush=True)
        if arguments.episodes and kv != "fp8":  # a CPU cannot serve it
            for row in _episodes(kv, arguments.episodes, arguments.condition):
                rows.append(row)
                print(_line(row, rows), flush=True)
    missed = [row for row in rows if (points := _points(row, rows)) is not None and points < -row["bar"]]
    report = {**machine_facts(), "profile": PROFILE, "rows": [{**row, "points": _points(row, rows)} for row in rows]}
    keep(arguments.json, report)
    for row in missed:
        print(f"missed: {_line(row, rows)}")
    sys.exit(1 if missed else 0)


def _answers(kv: KVName, questions: int) -> Row:
    report = evaluate_chat(EMBEDDED_CHAT_MODEL, questions, kv=kv)
    right = len(report.graded) - len(report.wrong)
    decoder = load_chat_model(EMBEDDED_CHAT_MODEL, torch.float32, torch.device("cpu")).decoder
    slot = decoder.kv_slots(1, CHAT_CAPACITY, CONFIGURED[kv]).nbytes
    return _row("answers", "held-out questions", kv, right, questions, slot / CHAT_CAPACITY, ANSWERS.get(kv, 0.0))


def _episodes(kv: KVName, episodes: int, conditions: Sequence[str]) -> Iterator[Row]:
    engine = load_policy(EMBEDDED_MODEL, kv).engine
    if not isinstance(engine, PolicyEngine):
        raise TypeError(f"{EMBEDDED_MODEL} has no KV slots of tokens")
    position = engine.kv.nbytes / engine.kv.slots / engine.kv.capacity
    for condition in conditions:
        mode, speed = CONDITIONS[condition]
        plan = EvaluationPlan(
            episodes=episodes, modes=[mode], anchored=[True], speeds=[speed], profiles=[PROFILE], kv=kv
        )
        (result,) = evaluate(plan, lambda *_: None)
        yield _row("episodes", condition, kv, result.success.successes, episodes, position, EPISODES)


def _row(what: str, condition: str, kv: KVName, right: int, count: int, position_bytes: float, bar: float) -> Row:
    share = wilson(right, count)
    return {
        "what": what,
        "condition": condition,
        "kv": kv,
        "right": right,
        "count": count,
        "interval_95": [share.low, share.high],
        "bytes_per_position": position_bytes,
        "bar": bar,
    }


def _points(row: Row, rows: Sequence[Row]) -> float | None:
    """The difference to the model's own numbers, in points; None for those themselves."""
    if row["kv"] == "model":
        return None
    (own,) = (each for each in rows if (each["condition"], each["kv"]) == (row["condition"], "model"))
    ahead: int = row["right"] * own["count"] - own["right"] * row["count"]  # whole, so that a bar that is met is met
    return 100.0 * ahead / float(row["count"] * own["count"])


def _line(row: Row, rows: Sequence[Row]) -> str:
    points, (low, high) = _points(row, rows), row["interval_95"]
    share = f"{row['right']} of {row['count']} ({100 * low:.1f} to {100 * high:.1f} %)"
    beside = "" if points is None else f", {points:+.1f} points, at least {-row['bar']:g}"
    return f"{row['kv']}: {row['condition']}: {share}{beside}; {row['bytes_per_position']:.0f} bytes per position"


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument(
        "--kv", action="append", choices=get_args(KVName), help="a format beside model; default: int8, int4"
    )
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="0: no answers")
    parser.add_argument("--episodes", type=int, default=200, help="per condition; 0: none")
    parser.add_argument("--condition", action="append", choices=CONDITIONS, help="of the episodes; default: all")
    arguments = parser.parse_args()
    arguments.condition = arguments.condition or list(CONDITIONS)
    arguments.kv = ["model", *dict.fromkeys(each for each in arguments.kv or FORMATS if each != "model")]
    return arguments


if __name__ == "__main__":
    main()
