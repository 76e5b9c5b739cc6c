"""The options of the load test. Loads nothing heavy: the run itself is imported when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.robots.plan import (
    LoadPlan,
    Session,
    parse_cameras,
    parse_duration,
    parse_size,
    parse_state,
    pattern_of,
    period_s_of,
)
from edgeflow_client.loadtest.terminal import open_standard_streams, run
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

PACE, FRAMES, RUN, LINK = "Sending pattern", "Frames and session", "Robots and duration", "Connection and report"
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
    window: Annotated[int, _option(PACE, "Closed loop: frames in flight per robot.", min=1)] = 1,
    rate: Annotated[
        OptionalFloat, _option(PACE, "Open loop: frames per second per robot.", min=0.1, max=10_000)
    ] = None,
    burst: Annotated[OptionalInt, _option(PACE, "Bursts: frames per burst.", min=1, max=10_000)] = None,
    burst_period: Annotated[float, _time(PACE, "Time between bursts.", "1s")] = 1.0,
    ramp: Annotated[
        str, _option(PACE, "Ramp from FIRST to LAST Hz, until the service falls behind.", metavar="A:B")
    ] = "",
    ramp_step: Annotated[float, _time(PACE, "Length of a ramp step; each is 1.25 times as fast.", "5s")] = 5.0,
    camera: Annotated[str, _option(FRAMES, "Size of the camera images.", metavar="WxH")] = "640x480",
    cameras: Annotated[
        str, _option(FRAMES, "Several cameras, instead of --camera.", metavar="NAME:WxH,...", show_default=False)
    ] = "",
    state: Annotated[
        str, _option(FRAMES, "State vectors that robots report.", metavar="NAME:SIZE,...", show_default=False)
    ] = "",
    image_format: Annotated[ImageFormat, _option(FRAMES, "Encoding of the images.", "--format")] = ImageFormat.JPEG,
    frames: Annotated[OptionalPath, _option(FRAMES, "Folder of images (default: synthetic images).")] = None,
    seed: Annotated[int, _option(FRAMES, "Seed of the synthetic frames and of the robots' start times.")] = 0,
    instruction: Annotated[list[str], _option(FRAMES, "Repeatable; robots use them in turn.")] = [  # noqa: B006
        "grasp the red handle"
    ],
    control_period: Annotated[
        OptionalFloat, _time(FRAMES, "Period that robots declare (default: from the rate, else 50ms).")
    ] = None,
    mode: Annotated[
        OptionalMode,
        _option(FRAMES, "serial, pipelined, depth, speculative or auto (default: the service's).", metavar="MODE"),
    ] = None,
    depth: Annotated[int, _option(FRAMES, "Ticks per frame, with mode depth.", min=0)] = 0,
    tolerance_bins: Annotated[
        int, _option(FRAMES, "Bins that a token may be from its draft, with mode speculative.", min=0)
    ] = 0,
    max_passes: Annotated[int, _option(FRAMES, "Most passes per frame, with mode speculative; 0: K.", min=0)] = 0,
    max_action_age: Annotated[
        OptionalFloat, _time(FRAMES, "Limit sent to the service; an older action is a miss.")
    ] = None,
    model: Annotated[str, _option(FRAMES, "Alias of a model in the service (default: the service's).")] = "",
    unnorm_key: Annotated[str, _option(FRAMES, "Statistics used to un-normalise actions.")] = "",
    robots: Annotated[int, _option(RUN, "Number of robots, one session each.", min=1, max=256)] = 1,
    connections: Annotated[
        OptionalInt, _option(RUN, "Connections shared by the robots (default: one per robot).", min=1)
    ] = None,
    warm_up: Annotated[float, _time(RUN, "Time before the measurement.", "2s")] = 2.0,
    duration: Annotated[float, _time(RUN, "Time measured.", "30s")] = 30.0,
    count: Annotated[OptionalInt, _option(RUN, "Frames measured per robot, instead of a duration.", min=1)] = None,
    ramp_up: Annotated[float, _time(RUN, "Time over which the robots start, out of phase.", "1s")] = 1.0,
    with_chat: Annotated[bool, _option(CHAT, "Run the load without chat, then with it.", "--with-chat")] = False,
    chat_address: Annotated[str, _option(CHAT, "The service's HTTP address (default: port 8000 of the host).")] = "",
    chat_clients: Annotated[
        int, _option(CHAT, "Clients, each asking again as soon as it is answered.", min=1, max=64)
    ] = 1,
    chat_tokens: Annotated[int, _option(CHAT, "Most tokens per answer.", min=1, max=8192)] = 64,
    tls_ca: Annotated[
        OptionalPath, _option(LINK, "CA certificate that the service's certificate must chain to (PEM).")
    ] = None,
    tls_cert: Annotated[OptionalPath, _option(LINK, "This client's certificate (PEM), for mutual TLS.")] = None,
    tls_key: Annotated[OptionalPath, _option(LINK, "Private key of that certificate (PEM).")] = None,
    token_file: Annotated[OptionalPath, _option(LINK, "File with the token (default: EDGEFLOW_TOKEN).")] = None,
    as_json: Annotated[bool, _option(LINK, "Print the report as JSON.", "--json")] = False,
    out: Annotated[OptionalPath, _option(LINK, "Folder for report.json, frames.csv and plots.")] = None,
    max_age_p50: Annotated[OptionalFloat, _time(LIMITS, "Age (p50): frame due to action received.")] = None,
    max_age_p90: Annotated[OptionalFloat, _time(LIMITS, "Age (p90).")] = None,
    max_age_p99: Annotated[OptionalFloat, _time(LIMITS, "Age (p99).")] = None,
    max_age_p999: Annotated[OptionalFloat, _time(LIMITS, "Age (p99.9).")] = None,
    max_service_p99: Annotated[OptionalFloat, _time(LIMITS, "Time inside the service (p99).")] = None,
    max_jitter: Annotated[OptionalFloat, _time(LIMITS, "Standard deviation of the interval between actions.")] = None,
    max_start_jitter_p99: Annotated[OptionalFloat, _time(LIMITS, "Jitter of pass starts (p99).")] = None,
    max_jitter_ratio: Annotated[
        OptionalFloat, _option(LIMITS, "Pass-start jitter (p99) with chat divided by that without.", min=0)
    ] = None,
    min_fps: Annotated[OptionalFloat, _option(LIMITS, "Actions per second of the slowest robot.", min=0)] = None,
    max_misses: Annotated[OptionalInt, _option(LIMITS, "Actions that arrived too old.", min=0)] = None,
    max_gaps: Annotated[OptionalInt, _option(LIMITS, "Times a robot had no valid action.", min=0)] = None,
    max_superseded: Annotated[OptionalInt, _option(LIMITS, "Frames superseded by newer ones.", min=0)] = None,
    max_rejected: Annotated[OptionalInt, _option(LIMITS, "Frames refused as invalid.", min=0)] = None,
    max_dropped: Annotated[OptionalInt, _option(LIMITS, "Valid frames that the service dropped.", min=0)] = None,
    max_unanswered: Annotated[OptionalInt, _option(LIMITS, "Frames without an answer.", min=0)] = None,
) -> None:
    """Drive robots against a service and report frames, rate, age and times. Ctrl-C ends the test and reports it.

    Exit code 0: every threshold met; 1: a threshold missed, or a robot refused; 2: the test could not run.
    """
    from edgeflow_client.loadtest.chat import ChatPlan, default_address
    from edgeflow_client.loadtest.command import credentials_of, loadtest_command

    pattern = pattern_of(
        window=window, rate_hz=rate, burst=burst, burst_period_s=burst_period, ramp=ramp, ramp_step_s=ramp_step
    )
    one = CameraSpec("camera", *parse_size(camera), image_format)
    period_s = control_period or period_s_of(pattern)
    session = Session(
        cameras=parse_cameras(cameras, image_format) if cameras else (one,),
        state=parse_state(state),
        instructions=tuple(instruction),
        control_period_s=period_s,
        mode=mode,
        depth=depth,
        tolerance_bins=tolerance_bins,
        max_passes=max_passes,
        max_action_age_s=max_action_age,
        model=model,
        unnorm_key=unnorm_key,
    )
    plan = LoadPlan(
        address=address,
        session=session,
        pattern=pattern,
        robots=robots,
        connections=connections or robots,
        warm_up_s=warm_up,
        duration_s=duration,
        count=count,
        ramp_up_s=ramp_up,
        frames=frames,
        seed=seed,
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
        raise ConfigError("max-jitter-ratio: needs --with-chat")
    raise typer.Exit(loadtest_command(plan, given, credentials, as_json=as_json, out=out, chat=chat))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def main() -> None:
    """Run `edgeflow-loadtest`."""
    open_standard_streams()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(loadtest)
    run(app, "edgeflow-loadtest")
