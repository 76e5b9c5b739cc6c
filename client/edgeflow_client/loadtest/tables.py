"""Prints a finished run on a console, as tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from edgeflow_client.loadtest.chat import Beside, ChatSummary
from edgeflow_client.loadtest.results import Results
from edgeflow_client.loadtest.summary import RobotSummary
from edgeflow_client.loadtest.terminal import FoldingTable

TIMES = {
    "age": "age_ms",
    "latency at execution": "latency_at_execution_ms",
    "service": "service_ms",
    "  decode": "decode_ms",
    "  queue": "queue_ms",
    "  inference": "inference_ms",
    "transport": "transport_ms",
    "action interval": "interval_ms",
    "pass-start jitter": "start_jitter_ms",
    "pass": "pass_ms",
}
FRAMES = ("offered", "acted", "superseded", "rejected", "dropped", "unanswered")
SHARES = ("frames overtaken", "actions with unverified tokens", "chunks that continue another", "late chunks")
ACTIONS = ("FPS", "age p50", "age p99", "jitter", "misses", "gaps")
Cells = Callable[[RobotSummary], list[str]]


def print_results(results: Results, console: Console) -> None:
    """Print frames and rates per robot, the times of all robots together, then events and thresholds."""
    title = f"{escape(results.plan.address)}, {results.seconds:.1f} s" + (", interrupted" * results.interrupted)
    console.print(_robots_table(results, f"{title}: frames", FRAMES, _frame_cells))
    console.print(_robots_table(results, "actions", ACTIONS, _action_cells))
    console.print(_times_table(results.total))
    if results.beside is not None:
        console.print(_chat_table(results.beside.chat))
        console.print(_beside_table(results.beside, results.total))
    if any(results.predictions):
        console.print(_predictions_table(results))
    if results.steps:
        console.print(_steps_table(results))
    for line in _sentences(results):
        console.print(line, highlight=False)
    for check in results.checks:
        console.print(f"[{'green' if check.met else 'red'}]{check.text}[/]", highlight=False)


def _table(
    *names: str, numbers: Sequence[str], rows: Iterable[Sequence[str]], title: str, caption: str | None = None
) -> FoldingTable:
    """A table of columns with names, on the left, and with numbers, on the right."""
    table = FoldingTable(*names, title=title, caption=caption)
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _robots_table(results: Results, title: str, headings: Sequence[str], cells: Cells) -> FoldingTable:
    robots = enumerate(results.robots) if len(results.robots) > 1 else ()
    rows = [[str(number), *cells(robot)] for number, robot in robots]
    table = _table(numbers=("robot", *headings), rows=rows, title=title)
    table.add_section()
    table.add_row("all", *cells(results.total))
    return table


def _frame_cells(summary: RobotSummary) -> list[str]:
    frames = summary.frames
    refusals = (frames.rejected, frames.dropped, frames.unanswered)
    counts = [frames.offered, frames.acted, frames.superseded, *(sum(each.values()) for each in refusals)]
    return [*map(str, counts)]


def _action_cells(summary: RobotSummary) -> list[str]:
    times = [_ms(summary.age_ms.p50), _ms(summary.age_ms.p99), _ms(summary.jitter_ms)]
    return [f"{summary.fps:.1f}", *times, str(summary.misses), str(summary.gaps)]


def _times_table(total: RobotSummary) -> FoldingTable:
    points = ("p50", "p90", "p99", "p999", "max")
    rows = [[name, *(_number(getattr(getattr(total, key), point)) for point in points)] for name, key in TIMES.items()]
    return _table("times, ms", numbers=("p50", "p90", "p99", "p99.9", "max"), rows=rows, title="all robots")


def _chat_table(chat: ChatSummary) -> FoldingTable:
    times = [_ms(each) for times in (chat.first_ms, chat.gap_ms) for each in (times.p50, times.p99)]
    return _table(
        numbers=("answers", "tokens", "tokens/s", "first\np50", "first\np99", "between\np50", "between\np99"),
        rows=[[str(chat.requests), str(chat.tokens), f"{chat.tokens_per_s:.1f}", *times]],
        title=f"chat, {chat.clients} clients at a time" if chat.clients > 1 else "chat, one client",
        caption=f"rejected: {_reasons(chat.refused) or 'none'}",
    )


def _beside_table(beside: Beside, total: RobotSummary) -> FoldingTable:
    rows = []
    for name, each in (("without chat", beside.alone), ("with chat", total)):
        times = [_ms(time) for time in (each.age_ms.p50, each.age_ms.p99, each.start_jitter_ms.p99)]
        rows.append([name, f"{each.fps:.1f}", *times, str(each.misses)])
    numbers = ("FPS", "age p50", "age p99", "pass-start\njitter p99", "misses")
    caption = f"pass-start jitter p99: {_number(beside.jitter_ratio(total))} times the value without chat"
    return _table("robots", numbers=numbers, rows=rows, title="the same robots", caption=caption)


def _predictions_table(results: Results) -> FoldingTable:
    period_ms, rows = 1000 * results.plan.session.control_period_s, []
    for number, each in enumerate(results.predictions):
        if each is not None:
            mode = f"{each.mode} (depth {each.depth})" if each.depth else each.mode
            fps = (f"{each.fps:.1f}", f"{each.measured_fps:.1f}{_deviation(each.fps_deviation)}")
            age = (_number(each.age_ms), f"{_number(each.measured_age_ms)}{_deviation(each.age_deviation)}")
            rows.append([str(number), mode, *fps, *age])
    numbers = ("FPS\nforecast", "measured", "mean age, ms\nforecast", "measured")
    title = f"the service's forecast for a frame every {period_ms:.0f} ms"
    return _table("robot", "mode", numbers=numbers, rows=rows, title=title)


def _steps_table(results: Results) -> FoldingTable:
    rows = []
    for step in results.steps:
        rates = (f"{step.rate_hz:.1f}", f"{step.offered_hz:.1f}", f"{step.acted_hz:.1f}")
        rows.append([*rates, _ms(step.age_ms.p50), _ms(step.age_ms.p99), "yes" if step.followed else "no"])
    numbers = ("rate per robot", "offered, Hz", "acted, Hz", "age p50", "age p99", "followed")
    return _table(numbers=numbers, rows=rows, title="ramp")


def _sentences(results: Results) -> list[str]:
    total = results.total
    lines = [f"answers of {results.horizon} actions, {results.step_ms:g} ms apart"] if results.horizon > 1 else []
    lines += [f"pass-time jitter p99 / p50: {_number(total.pass_jitter)}", _passes_sentence(total)]
    if total.executions:
        lines.append(f"answers executed as: {_reasons(total.executions)}")
    refused = {name: getattr(total.frames, name) for name in ("rejected", "dropped", "unanswered")}
    events = {"HOLD": total.hold, "STOP": total.stop, "notices": total.notices, "streams lost": total.losses}
    lines += [f"{name}: {_reasons(counts)}" for name, counts in (refused | events).items() if counts]
    if total.gaps:
        held = f"; held {100 * total.held_share:.1f} % of the time" if total.held_ms else ""
        longest = f"longest interval {total.longest_gap_ms:.0f} ms"
        lines.append(f"{total.gaps} times a robot had no valid action; {longest}{held}")
    if total.contradictions:
        lines.append(f"[red]against the protocol: {_reasons(total.contradictions)}[/]")
    refusals = ((number, text) for number, text in enumerate(results.refusals) if text)
    lines += [f"[red]robot {number} rejected: {escape(text)}[/]" for number, text in refusals]
    if results.steps:
        best = results.knee
        lines.append(f"knee: {best.acted_hz:.1f} actions per second" if best else "knee: below the first rate")
    return lines + _generator_sentence(results)


def _passes_sentence(total: RobotSummary) -> str:
    passes = total.passes
    text = f"passes per action: mean {_number(passes.mean)}, p50 {_number(passes.p50)}, max {_number(passes.max)}"
    shares = zip(SHARES, total.frames.shares.values(), strict=True)
    return "; ".join([text, *(f"{what}: {100 * share:.1f} %" for what, share in shares if share > 0)])


def _generator_sentence(results: Results) -> list[str]:
    generator = results.generator
    late, lag = generator.lateness_ms.p99, generator.lag_ms.p99
    text = f"load generator: frames sent {_ms(late)} late, event loop {_ms(lag)} late (p99)"
    if not generator.is_bottleneck:
        return [text]
    return [f"[yellow]{text}: the generator was a bottleneck; lower the load or use an idle machine[/]"]


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{escape(reason) or 'no reason'} {count}" for reason, count in sorted(counts.items()))


def _ms(value: float) -> str:
    return f"{_number(value)} ms" if math.isfinite(value) else "-"


def _number(value: float) -> str:
    return f"{value:.{2 if abs(value) < 10 else 1}f}" if math.isfinite(value) else "-"


def _deviation(per_cent: float) -> str:
    return f" ({per_cent:+.0f} %)" if math.isfinite(per_cent) else ""
