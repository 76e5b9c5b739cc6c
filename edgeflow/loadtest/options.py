"""The options of `edgeflow loadtest`. Loads nothing heavy: the run itself is imported when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from edgeflow.errors import ConfigError
from edgeflow.loadtest.plan import LoadPlan, Session, parse_duration, parse_size, pattern_of, period_s_of
from edgeflow.types import CameraSpec, ImageFormat, Mode

PACE, FRAMES, RUN, LINK = "When frames are sent", "What is sent", "How many, how long", "Connection and report"
CHAT = "Chat beside the robots"
LIMITS = "Thresholds (exit code 1 when one is not met)"

OptionalInt = Optional[int]  # noqa: UP045 - typer reads these at run time
OptionalFloat = Optional[float]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
OptionalMode = Optional[Mode]  # noqa: UP045


def _option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


def _time(panel: str, text: str, default: str = "") -> Any:
    return typer.Option(
        help=text, rich_help_panel=panel, parser=_seconds, metavar="TIME", show_default=default or False
    )


def _seconds(value: str | float) -> float:
    return value if isinstance(value, float) else parse_duration(value)


def loadtest(
    address: Annotated[str, typer.Argument(help="The service's gRPC address, host:port.")],
    window: Annotated[int, _option(PACE, "Closed loop: frames of a robot under way.", min=1)] = 1,
    rate: Annotated[OptionalFloat, _option(PACE, "Open loop: frames a second of a robot.", min=0.1, max=10_000)] = None,
    burst: Annotated[OptionalInt, _option(PACE, "Bursts: frames at once.", min=1, max=10_000)] = None,
    burst_period: Annotated[float, _time(PACE, "From burst to burst.", "1s")] = 1.0,
    ramp: Annotated[str, _option(PACE, "Until a rate is not followed: FIRST:LAST, in Hz.", metavar="A:B")] = "",
    ramp_step: Annotated[float, _time(PACE, "Length of a ramp's step; each is 1.25 times as fast.", "5s")] = 5.0,
    camera: Annotated[str, _option(FRAMES, "Size of the camera's pictures.", metavar="WxH")] = "640x480",
    image_format: Annotated[ImageFormat, _option(FRAMES, "How they travel.", "--format")] = ImageFormat.JPEG,
    frames: Annotated[OptionalPath, _option(FRAMES, "A folder of images; without it, synthetic ones.")] = None,
    seed: Annotated[int, _option(FRAMES, "Of synthetic frames and of when robots begin.")] = 0,
    instruction: Annotated[list[str], _option(FRAMES, "Repeat for several; robots take turns.")] = [  # noqa: B006
        "grasp the red handle"
    ],
    control_period: Annotated[
        OptionalFloat, _time(FRAMES, "As declared; by default that of the rate, or 50ms.")
    ] = None,
    mode: Annotated[OptionalMode, _option(FRAMES, "serial, pipelined, depth, auto; without it, the service's.")] = None,
    depth: Annotated[int, _option(FRAMES, "Ticks a frame takes, with mode depth.", min=0)] = 0,
    max_action_age: Annotated[OptionalFloat, _time(FRAMES, "Told to the service; an older action is a miss.")] = None,
    model: Annotated[str, _option(FRAMES, "The service's alias of a model; without it, its default.")] = "",
    unnorm_key: Annotated[str, _option(FRAMES, "Which statistics un-normalise actions.")] = "",
    robots: Annotated[int, _option(RUN, "Each has a session of its own.", min=1, max=256)] = 1,
    connections: Annotated[OptionalInt, _option(RUN, "Shared by the robots; without it, one for each.", min=1)] = None,
    warm_up: Annotated[float, _time(RUN, "Not counted.", "2s")] = 2.0,
    duration: Annotated[float, _time(RUN, "Counted.", "30s")] = 30.0,
    count: Annotated[OptionalInt, _option(RUN, "Counted frames of each robot, instead of a duration.", min=1)] = None,
    ramp_up: Annotated[float, _time(RUN, "Over which the robots begin, out of phase.", "1s")] = 1.0,
    with_chat: Annotated[bool, _option(CHAT, "First the load without chat, then with it.", "--with-chat")] = False,
    chat_address: Annotated[str, _option(CHAT, "Of the service's HTTP; without it, port 8000 of the host.")] = "",
    chat_clients: Annotated[int, _option(CHAT, "Each asks again as soon as it was answered.", min=1, max=64)] = 1,
    chat_tokens: Annotated[int, _option(CHAT, "Of an answer, at most.", min=1, max=8192)] = 64,
    tls_ca: Annotated[OptionalPath, _option(LINK, "Whose certificate the service must show (PEM).")] = None,
    tls_cert: Annotated[OptionalPath, _option(LINK, "This client's certificate (PEM), for mutual TLS.")] = None,
    tls_key: Annotated[OptionalPath, _option(LINK, "Its key (PEM).")] = None,
    token_file: Annotated[OptionalPath, _option(LINK, "A file with the token; else EDGEFLOW_TOKEN.")] = None,
    as_json: Annotated[bool, _option(LINK, "The report as JSON on standard output.", "--json")] = False,
    out: Annotated[OptionalPath, _option(LINK, "Folder of report.json, frames.csv and pictures.")] = None,
    max_age_p50: Annotated[OptionalFloat, _time(LIMITS, "Due to received.")] = None,
    max_age_p90: Annotated[OptionalFloat, _time(LIMITS, "Due to received.")] = None,
    max_age_p99: Annotated[OptionalFloat, _time(LIMITS, "Due to received.")] = None,
    max_age_p999: Annotated[OptionalFloat, _time(LIMITS, "Due to received.")] = None,
    max_service_p99: Annotated[OptionalFloat, _time(LIMITS, "Inside the service.")] = None,
    max_jitter: Annotated[OptionalFloat, _time(LIMITS, "Deviation of the interval between actions.")] = None,
    max_start_jitter_p99: Annotated[OptionalFloat, _time(LIMITS, "Of pass starts.")] = None,
    max_jitter_ratio: Annotated[
        OptionalFloat, _option(LIMITS, "Pass-start jitter (p99) with chat, over that without.", min=0)
    ] = None,
    min_fps: Annotated[OptionalFloat, _option(LIMITS, "Actions a second of the slowest robot.", min=0)] = None,
    max_misses: Annotated[OptionalInt, _option(LIMITS, "Actions that came too old.", min=0)] = None,
    max_gaps: Annotated[OptionalInt, _option(LIMITS, "Times a robot was without a valid action.", min=0)] = None,
    max_superseded: Annotated[OptionalInt, _option(LIMITS, "Frames.", min=0)] = None,
    max_rejected: Annotated[OptionalInt, _option(LIMITS, "Frames.", min=0)] = None,
    max_dropped: Annotated[OptionalInt, _option(LIMITS, "Frames.", min=0)] = None,
    max_unanswered: Annotated[OptionalInt, _option(LIMITS, "Frames.", min=0)] = None,
) -> None:
    """Drive robots against a service and report frames, rate, age and times. Ctrl-C reports what there is.

    Exit code 0: every threshold met; 1: one was not, or a robot was refused; 2: the test could not run.
    """
    from edgeflow.loadtest.chat import ChatPlan, default_address
    from edgeflow.loadtest.command import credentials_of, loadtest_command

    pattern = pattern_of(window, rate, burst, burst_period, ramp, ramp_step)
    spec = CameraSpec("camera", *parse_size(camera), image_format)
    period_s = control_period or period_s_of(pattern)
    session = Session(spec, tuple(instruction), period_s, mode, depth, max_action_age, model, unnorm_key)
    plan = LoadPlan(
        address, session, pattern, robots, connections or robots, warm_up, duration, count, ramp_up, frames, seed=seed
    )
    limits = {
        "max-age-p50": _ms(max_age_p50),
        "max-age-p90": _ms(max_age_p90),
        "max-age-p99": _ms(max_age_p99),
        "max-age-p999": _ms(max_age_p999),
        "max-service-p99": _ms(max_service_p99),
        "max-jitter": _ms(max_jitter),
        "max-start-jitter-p99": _ms(max_start_jitter_p99),
        "max-jitter-ratio": max_jitter_ratio,
        "min-fps": min_fps,
        "max-misses": max_misses,
        "max-gaps": max_gaps,
        "max-superseded": max_superseded,
        "max-rejected": max_rejected,
        "max-dropped": max_dropped,
        "max-unanswered": max_unanswered,
    }
    given = {name: float(limit) for name, limit in limits.items() if limit is not None}
    credentials = credentials_of(tls_ca, tls_cert, tls_key, token_file)
    chat = None
    if with_chat:
        where = chat_address or default_address(address, encrypted=bool(tls_ca or tls_cert))
        chat = ChatPlan(where, chat_clients, chat_tokens)
    elif max_jitter_ratio is not None:
        raise ConfigError("max-jitter-ratio: goes with --with-chat")
    raise typer.Exit(loadtest_command(plan, given, credentials, as_json, out, chat))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
