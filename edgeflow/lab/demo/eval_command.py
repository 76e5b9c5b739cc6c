"""`edgeflow eval-demo`: run the grid, show the table, write report.json and success.png."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from edgeflow.lab.demo.evaluation import Condition, ConditionResult, EvaluationPlan, evaluate
from edgeflow.lab.progress import reporting
from edgeflow_client.loadtest.terminal import FoldingTable, table_console


def eval_command(plan: EvaluationPlan, out: Path, *, as_json: bool) -> None:
    """Evaluate, print the results, and write them into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    results: list[ConditionResult] = []
    with reporting(Console(stderr=True)) as report:
        for result in evaluate(plan, report):
            results.append(result)
            _write(results, plan, out)
    if as_json:
        print(json.dumps([result.as_json() for result in results], indent=2))
    else:
        table_console().print(_outcome_table(results, plan), _frame_table(results))
        print(f"written: {out}/report.json, {out}/success.png")


def _write(results: list[ConditionResult], plan: EvaluationPlan, out: Path) -> None:
    report = {
        "model": plan.model,
        "kv": plan.kv,
        "frame_hz": 1 / plan.period_s,
        "episodes": plan.episodes,
        "seeds": list(plan.seeds),
        "conditions": [result.as_json() for result in results],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    _plot(results, out / "success.png")


def _outcome_table(results: list[ConditionResult], plan: EvaluationPlan) -> FoldingTable:
    count = plan.episodes * len(plan.seeds)
    table = FoldingTable(
        "condition", "success", "s per\nsuccess", "actions/s", "age, ms\nmean, p50, p99",
        title=f"{plan.model}, {count} episodes per row, camera {1 / plan.period_s:g} Hz",
    )  # fmt: skip
    for result in results:
        low, high = result.success.interval
        table.add_row(
            _name(result.condition),
            f"{result.success.share:.1%}\n({100 * low:.1f} to {100 * high:.1f} %)",
            f"{result.seconds_per_success:.2f}",
            f"{result.fps:.1f}",
            f"{result.age_mean_ms:.0f}, {result.age_p50_ms:.0f}, {result.age_p99_ms:.0f}",
        )
    return table


def _frame_table(results: list[ConditionResult]) -> FoldingTable:
    table = FoldingTable("condition", "passes", "overtaken", "unsettled", "late", title="frames")
    for result in results:
        shares = (f"{share:.0%}" for share in (result.overtaken, result.unsettled, result.late))
        table.add_row(_name(result.condition), f"{result.passes_mean:.2f}", *shares)
    return table


def _name(condition: Condition) -> str:
    anchored = "" if condition.anchored else ", not anchored"
    chunks = f", {condition.execution.value}" if condition.execution else ""
    return f"{condition.profile}, {condition.mode}{chunks}{anchored}, {condition.speed * 100:g} cm/s"


def _plot(results: list[ConditionResult], path: Path) -> None:
    from matplotlib.figure import Figure

    labels = [_name(result.condition) for result in results]
    shares = [r.success.share for r in results]
    errors = [
        [share - r.success.interval[0] for share, r in zip(shares, results, strict=True)],
        [r.success.interval[1] - share for share, r in zip(shares, results, strict=True)],
    ]
    figure = Figure(figsize=(9, 0.6 * len(results) + 1.4), layout="constrained")
    axes = figure.subplots()
    axes.barh(labels, shares, xerr=errors, color="#4878a8", ecolor="#333333", capsize=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("success, with its 95 % interval")
    figure.savefig(path, dpi=110)
