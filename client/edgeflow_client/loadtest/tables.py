"""Prints a finished run on a console, as tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.markup import escape

from edgeflow_client.loadtest.chat import Beside, ChatSummary
from edgeflow_client.loadtest.measure import Distribution
from edgeflow_client.loadtest.results import Results
from edgeflow_client.loadtest.summary import Frames, Summary
from edgeflow_client.loadtest.terminal import FoldingTable

TIMES = {
    "age": "age_ms",
    "service": "service_ms",
    "  decode": "decode_ms",
    "  queue": "queue_ms",
    "  inference": "inference_ms",
    "transport": "transport_ms",
    "action interval": "interval_ms",
    "pass-start jitter": "start_jitter_ms",
    "pass": "pass_ms",
}


def print_results(results: Results, console: Console) -> None:
    """Print frames and rates per robot, the times of all robots together, then events and thresholds."""
    title = f"{escape(results.plan.address)}, {results.seconds:.1f} s" + (", interrupted" * results.interrupted)
    console.print(_frames_table(results, title))
    console.print(_actions_table(results))
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


def _frames_table(results: Results, title: str) -> FoldingTable:
    headings = ("offered", "acted", "superseded", "rejected", "dropped", "unanswered")
    return _robots_table(results, f"{title}: frames", headings, _frame_cells)


def _actions_table(results: Results) -> FoldingTable:
    headings = ("FPS", "age p50", "age p99", "jitter", "misses", "gaps")
    return _robots_table(results, "actions", headings, _action_cells)


def _robots_table(
    results: Results, title: str, headings: tuple[str, ...], cells: Callable[[Summary], list[str]]
) -> FoldingTable:
    table = FoldingTable(title=title)
    for heading in ("robot", *headings):
        table.add_column(heading, justify="right")
    if len(results.robots) > 1:
        for number, robot in enumerate(results.robots):
            table.add_row(str(number), *cells(robot))
        table.add_section()
    table.add_row("all", *cells(results.total))
    return table


def _frame_cells(summary: Summary) -> list[str]:
    frames = summary.frames
    refusals = (frames.rejected, frames.dropped, frames.unanswered)
    counts = [frames.offered, frames.acted, frames.superseded, *(sum(each.values()) for each in refusals)]
    return [*map(str, counts)]


def _action_cells(summary: Summary) -> list[str]:
    times = [_ms(summary.age_ms.p50), _ms(summary.age_ms.p99), _ms(summary.jitter_ms)]
    return [f"{summary.fps:.1f}", *times, str(summary.misses), str(summary.gaps)]


def _times_table(total: Summary) -> FoldingTable:
    table = FoldingTable("times, ms", title="all robots")
    for heading in ("p50", "p90", "p99", "p99.9", "max"):
        table.add_column(heading, justify="right")
    for name, key in TIMES.items():
        times: Distribution = getattr(total, key)
        table.add_row(name, *(_number(each) for each in (times.p50, times.p90, times.p99, times.p999, times.max)))
    return table


def _chat_table(chat: ChatSummary) -> FoldingTable:
    table = FoldingTable(title=f"chat, {chat.clients} clients at a time" if chat.clients > 1 else "chat, one client")
    for heading in ("answers", "tokens", "tokens/s", "first\np50", "first\np99", "between\np50", "between\np99"):
        table.add_column(heading, justify="right")
    times = [_ms(each) for times in (chat.first_ms, chat.gap_ms) for each in (times.p50, times.p99)]
    counts = (str(chat.requests), str(chat.tokens), f"{chat.tokens_per_s:.1f}")
    table.add_row(*counts, *times)
    table.caption = f"rejected: {_reasons(chat.refused) or 'none'}"
    return table


def _beside_table(beside: Beside, total: Summary) -> FoldingTable:
    table = FoldingTable("robots", title="the same robots")
    for heading in ("FPS", "age p50", "age p99", "pass-start\njitter p99", "misses"):
        table.add_column(heading, justify="right")
    for name, each in (("without chat", beside.alone), ("with chat", total)):
        times = [_ms(time) for time in (each.age_ms.p50, each.age_ms.p99, each.start_jitter_ms.p99)]
        table.add_row(name, f"{each.fps:.1f}", *times, str(each.misses))
    table.caption = f"pass-start jitter p99: {_number(beside.jitter_ratio(total))} times the value without chat"
    return table


def _predictions_table(results: Results) -> FoldingTable:
    period_ms = 1000 * results.plan.session.control_period_s
    table = FoldingTable("robot", "mode", title=f"the service's forecast for a frame every {period_ms:.0f} ms")
    for heading in ("FPS\nforecast", "measured", "mean age, ms\nforecast", "measured"):
        table.add_column(heading, justify="right")
    for number, each in enumerate(results.predictions):
        if each is not None:
            mode = f"{each.mode} (depth {each.depth})" if each.depth else each.mode
            fps = (f"{each.fps:.1f}", f"{each.measured_fps:.1f}{_deviation(each.fps_deviation)}")
            age = (_number(each.age_ms), f"{_number(each.measured_age_ms)}{_deviation(each.age_deviation)}")
            table.add_row(str(number), mode, *fps, *age)
    return table


def _steps_table(results: Results) -> FoldingTable:
    table = FoldingTable(title="ramp")
    for heading in ("rate per robot", "offered, Hz", "acted, Hz", "age p50", "age p99", "followed"):
        table.add_column(heading, justify="right")
    for step in results.steps:
        rates = (f"{step.rate_hz:.1f}", f"{step.offered_hz:.1f}", f"{step.acted_hz:.1f}")
        table.add_row(*rates, _ms(step.age_ms.p50), _ms(step.age_ms.p99), "yes" if step.followed else "no")
    return table


def _sentences(results: Results) -> list[str]:
    total = results.total
    lines = [f"answers of {results.horizon} actions, {results.step_ms:g} ms apart"] if results.horizon > 1 else []
    lines += [f"pass-time jitter p99 / p50: {_number(total.pass_jitter)}", _passes_sentence(total)]
    lines += [f"{name}: {_reasons(counts)}" for name, counts in _by_reason(total.frames).items() if counts]
    events = {"HOLD": total.hold, "STOP": total.stop, "notices": total.notices, "streams lost": total.losses}
    lines += [f"{name}: {_reasons(counts)}" for name, counts in events.items() if counts]
    if total.gaps:
        lines.append(f"{total.gaps} times a robot had no valid action; longest interval {total.longest_gap_ms:.0f} ms")
    if total.contradictions:
        lines.append(f"[red]against the protocol: {_reasons(total.contradictions)}[/]")
    refused = {number: text for number, text in enumerate(results.refusals) if text}
    lines += [f"[red]robot {number} refused: {escape(text)}[/]" for number, text in refused.items()]
    if results.steps:
        best = results.knee
        lines.append(f"knee: {best.acted_hz:.1f} actions per second" if best else "knee: below the first rate")
    return lines + _generator_sentence(results)


def _passes_sentence(total: Summary) -> str:
    frames, passes = total.frames, total.passes
    text = f"passes per action: mean {_number(passes.mean)}, p50 {_number(passes.p50)}, max {_number(passes.max)}"
    shares = {
        "frames overtaken": frames.overtaken_share,
        "actions with unsettled tokens": frames.unsettled_share,
        "chunks that continue another": frames.continued_share,
        "late chunks": frames.late_share,
    }
    return "; ".join([text, *(f"{what}: {100 * share:.1f} %" for what, share in shares.items() if share > 0)])


def _generator_sentence(results: Results) -> list[str]:
    generator = results.generator
    late, lag = generator.lateness_ms.p99, generator.lag_ms.p99
    text = f"load generator: frames sent {_ms(late)} late, event loop {_ms(lag)} late (p99)"
    if not generator.is_bottleneck:
        return [text]
    return [f"[yellow]{text}: the generator was a bottleneck; lower the load or use an idle machine[/]"]


def _by_reason(frames: Frames) -> dict[str, Mapping[str, int]]:
    return {"rejected": frames.rejected, "dropped": frames.dropped, "unanswered": frames.unanswered}


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{escape(reason) or 'no reason'} {count}" for reason, count in sorted(counts.items()))


def _ms(value: float) -> str:
    return f"{_number(value)} ms" if math.isfinite(value) else "-"


def _number(value: float) -> str:
    return f"{value:.{2 if abs(value) < 10 else 1}f}" if math.isfinite(value) else "-"


def _deviation(per_cent: float) -> str:
    return f" ({per_cent:+.0f} %)" if math.isfinite(per_cent) else ""
