"""The options of the load test. Loads nothing heavy: the run itself is imported when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.terminal import open_standard_streams, run, setting_command, settings_of
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

SENT, REPORT, LINK = "What is sent", "Report", "Connection"
RENAMED = {
    "burst": "pattern.frames",
    "burst-period": "pattern.period_s",
    "ramp": "pattern.first_hz=HZ --set pattern.last_hz",
    "ramp-step": "pattern.step_s",
    "instruction": "instructions",
    "with-chat": "chat.clients",
    "chat-tokens": "chat.max_tokens",
}
"""Settings whose names say something else than an option of that name would."""

OptionalInt = Optional[int]  # noqa: UP045 - typer reads these at run time
OptionalFloat = Optional[float]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
OptionalMode = Optional[Mode]  # noqa: UP045


def _option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


def loadtest(
    address: Annotated[str, typer.Argument(help="The service's gRPC address, host:port.")],
    rate: Annotated[
        OptionalFloat, _option(SENT, "Frames per second per robot (default: as fast as they are answered).")
    ] = None,
    robots: Annotated[OptionalInt, _option(SENT, "Number of robots, one session each (default: 1).")] = None,
    duration: Annotated[OptionalText, _option(SENT, "Time measured (default: 30s).", metavar="TIME")] = None,
    mode: Annotated[
        OptionalMode,
        _option(SENT, "serial, pipelined, depth, speculative or auto (default: the service's).", metavar="MODE"),
    ] = None,
    camera: Annotated[str, _option(SENT, "Size of the camera images.", metavar="WxH")] = "640x480",
    cameras: Annotated[
        str, _option(SENT, "Several cameras, instead of --camera.", metavar="NAME:WxH,...", show_default=False)
    ] = "",
    state: Annotated[
        str, _option(SENT, "State vectors that robots report.", metavar="NAME:SIZE,...", show_default=False)
    ] = "",
    image_format: Annotated[ImageFormat, _option(SENT, "Encoding of the images.", "--format")] = ImageFormat.JPEG,
    given: Annotated[
        list[str],
        _option(
            SENT,
            "Another field of the plan, of its session, pattern, limits or chat, such as pattern.window=4 or "
            "limits.max_misses=0; see docs/operate/load-test.md. Repeatable.",
            "--set",
            metavar="KEY=VALUE",
        ),
    ] = [],  # noqa: B006
    as_json: Annotated[bool, _option(REPORT, "Print the report as JSON.", "--json")] = False,
    out: Annotated[OptionalPath, _option(REPORT, "Folder for report.json, frames.csv and plots.")] = None,
    max_age_p99: Annotated[
        OptionalText,
        _option(
            REPORT,
            "Exit with code 1 if the 99th percentile of the action age is above.",
            metavar="TIME",
        ),
    ] = None,
    tls_ca: Annotated[OptionalPath, _option(LINK, "CA certificate to verify the service with (PEM).")] = None,
    tls_cert: Annotated[OptionalPath, _option(LINK, "Client certificate for mutual TLS (PEM).")] = None,
    tls_key: Annotated[OptionalPath, _option(LINK, "Private key of the client certificate (PEM).")] = None,
    token_file: Annotated[OptionalPath, _option(LINK, "File with the access token (default: EDGEFLOW_TOKEN).")] = None,
) -> None:
    """Load-test a service with simulated robots.

    Reports frames, rate, action age and times. Ctrl-C ends the test early and reports what was measured.

    Exit code 0: every threshold met; 1: a threshold missed, or a robot rejected; 2: the test could not run.
    """
    from edgeflow_client.loadtest.chat import default_address
    from edgeflow_client.loadtest.chat_clients import ChatLoad
    from edgeflow_client.loadtest.command import credentials_of, loadtest_command
    from edgeflow_client.loadtest.results import RATIO, read_limits
    from edgeflow_client.loadtest.robots.plan import filled, parse_cameras, parse_size, parse_state, read_plan

    options = {
        "pattern.rate_hz": rate,
        "robots": robots,
        "duration_s": duration,
        "session.mode": mode,
        "limits.max_age_p99": max_age_p99,
    }
    sections: dict[str, dict[str, object]] = {}
    for key, value in settings_of(given, options).items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    limits, asked = read_limits(sections.pop("limits", {})), sections.pop("chat", None)
    one = CameraSpec("camera", *parse_size(camera), image_format)
    plan = read_plan(sections, address, parse_cameras(cameras, image_format) if cameras else (one,), parse_state(state))
    credentials = credentials_of(tls_ca, tls_cert, tls_key, token_file)
    chat = None
    if asked is not None:
        where = default_address(address, encrypted=bool(tls_ca or tls_cert))
        chat = filled(ChatLoad, {"address": where, **asked}, "chat.")
    elif RATIO in limits:
        raise ConfigError("limits.max_jitter_ratio: needs chat: --set chat.clients=N")
    raise typer.Exit(loadtest_command(plan, limits, credentials, as_json=as_json, out=out, chat=chat))


def _keys() -> list[str]:
    """The keys of `--set`."""
    from dataclasses import fields

    from edgeflow_client.loadtest.chat_clients import ChatLoad
    from edgeflow_client.loadtest.results import FIGURES
    from edgeflow_client.loadtest.robots.plan import plan_keys

    limits = [f"limits.{name.replace('-', '_')}" for name in FIGURES]
    return [*plan_keys(), *limits, *(f"chat.{field.name}" for field in fields(ChatLoad))]


LoadtestCommand = setting_command(_keys, RENAMED)


def main() -> None:
    """Run `edgeflow-loadtest`."""
    open_standard_streams()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=LoadtestCommand)(loadtest)
    run(app, "edgeflow-loadtest")
