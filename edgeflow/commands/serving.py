"""The commands of the service: serve, health, and those about its configuration and tokens."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape

from edgeflow.commands.options import (
    MODE_HELP,
    Json,
    OptionalFloat,
    OptionalInt,
    OptionalMode,
    OptionalPath,
    OptionalText,
    Settings,
    config_command,
    number,
    overrides_of,
)
from edgeflow.config.devices import PROFILE_HELP
from edgeflow.console import progress_bar
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import ConfigError, EdgeflowError, StartError

if TYPE_CHECKING:
    from edgeflow.service.host.output import Output
    from edgeflow.service.observe.log import EventLog, LineWriter, LogAnnouncer
    from edgeflow.service.status import ServiceStatus

LIVE_PORT = 8765  # where Foxglove looks unless another one is given
COLLECTOR = "http://127.0.0.1:4318"  # where collectors of OpenTelemetry listen unless told otherwise
COLLECTOR_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
ServeCommand = config_command("", {"tokens": "tokens_file"})


def serve(
    context: typer.Context,
    config: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="Configuration file (JSON); see `edgeflow config schema`.")
    ] = None,
    model: Annotated[
        OptionalText, typer.Option(help="Checkpoint directory, hub id, or an embedded policy: demo, demo-flow.")
    ] = None,
    mode: Annotated[OptionalMode, typer.Option(metavar="MODE", help=MODE_HELP)] = None,
    device: Annotated[OptionalText, typer.Option(help="auto, cpu or cuda.")] = None,
    profile: Annotated[
        OptionalText,
        typer.Option(help=PROFILE_HELP),
    ] = None,
    grpc_host: Annotated[OptionalText, typer.Option(help="Address of the gRPC server.")] = None,
    grpc_port: Annotated[OptionalInt, typer.Option(help="Port of the gRPC server; 0 = any free port.")] = None,
    http_host: Annotated[OptionalText, typer.Option(help="Address of the HTTP server.")] = None,
    http_port: Annotated[OptionalInt, typer.Option(help="Port of the HTTP server; 0 = any free port.")] = None,
    health_port: Annotated[OptionalInt, typer.Option(help="Port of the health listener; 0 = any free port.")] = None,
    robots_port: Annotated[
        OptionalInt, typer.Option(help="Port for openpi's and OpenVLA's clients; 0 = any free port.")
    ] = None,
    record: Annotated[
        OptionalText,
        typer.Option(metavar="DIR", help="Directory to record all robots to: observations, answers and passes."),
    ] = None,
    record_cameras: Annotated[
        OptionalText,
        typer.Option(metavar="IMAGES", help="Images in recordings: none, thumbnails or all (the default)."),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help=f"Show robots in Foxglove, at 127.0.0.1:{LIVE_PORT}, or the port in --set recording.live_port=N.",
        ),
    ] = False,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help=f"Send traces to a collector at {COLLECTOR}, in OTEL_EXPORTER_OTLP_ENDPOINT, or in "
            "--set trace.endpoint=URL.",
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses other than loopback without TLS and tokens.")
    ] = False,
    given: Settings = [],  # noqa: B006 - typer reads it
    ready_file: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="File to write the ports to (JSON) once the service is ready.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve a policy to robots over gRPC and HTTP.

    SIGTERM or Ctrl-C ends the sessions in an orderly way and exits with code 0.
    """
    threads = threading.enumerate()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise strangers' handshakes fill the log
    from edgeflow.service.host.output import Output
    from edgeflow.service.host.resources import check_limits
    from edgeflow.service.observe.log import EventLog

    other_port = any(each.startswith("recording.live_port=") for each in given)
    other_collector = any(each.startswith("trace.endpoint=") for each in given)
    options = {
        "model": model,
        "mode": mode.value if mode else None,
        "device": device,
        "profile": profile,
        "grpc.host": grpc_host,
        "grpc.port": grpc_port,
        "http.host": http_host,
        "http.port": http_port,
        "health.port": health_port,
        "frontends.port": robots_port,
        "recording.directory": record,
        "recording.cameras": record_cameras,
        "recording.live_port": LIVE_PORT if live and not other_port else None,
        "trace.endpoint": os.environ.get(COLLECTOR_VARIABLE, COLLECTOR) if trace and not other_collector else None,
        "insecure": insecure or None,
    }
    with Output() as output:
        log = EventLog(MonotonicClock(), output.lines)
        try:
            check_limits()
            from edgeflow.config.service import load_config
            from edgeflow.service.host.preflight import check_recording, check_trace, fetch_configured
            from edgeflow.service.run import run_service

            settings = load_config(config, overrides_of(given, options))
            if record == "":  # an unset variable: nobody means to record nothing
                raise ConfigError("record: is empty: name a directory, or leave --record out")
            if record_cameras is not None and not settings.recording.on:
                raise ConfigError("record-cameras: nothing is recorded: give --record DIR or --live, too")
            check_recording(settings.recording)
            check_trace(settings.trace)
            # before anything runs that a download would keep waiting
            fetch_configured(settings, lambda name: log.event("fetching", model=name))
            with closing(_announcer(output, log, as_json=as_json)) as announcer:
                code = run_service(
                    settings, announcer, ready_file=ready_file, log=output.lines, observers=context.obj or ()
                )
        except EdgeflowError as error:
            if output.lines.isatty():
                raise
            log.event("failed", text=" ".join(error.text.split()))
            code = 2 if isinstance(error, StartError) else 1
    if any(not each.daemon for each in threading.enumerate() if each not in threads):
        sys.stdout.flush()
        os._exit(code)  # a thread of a plug-in would keep the process
    raise typer.Exit(code)


def _announcer(output: Output, log: EventLog, *, as_json: bool) -> JsonPrinter | ServicePrinter | LogAnnouncer:
    """Prints announcements without waiting for a reader: JSON on standard output; else text or log lines on stderr."""
    from edgeflow.service.observe.log import LogAnnouncer

    if as_json:
        return JsonPrinter(output.results())
    if not output.lines.isatty():
        return LogAnnouncer(log)
    return ServicePrinter(Console(file=cast("IO[str]", output.lines)))


class JsonPrinter:
    """Prints every announcement as one line of JSON."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    def __call__(self, status: ServiceStatus) -> None:
        self._lines.write(f"{json.dumps(asdict(status))}\n")

    def close(self) -> None:
        """Wait briefly until everything is written."""
        self._lines.close()


class ServicePrinter:
    """Prints the start as a progress bar and every later phase as a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = progress_bar(console)
        self._task = self._progress.add_task("loading", total=None)
        self._progress.start()

    def __call__(self, status: ServiceStatus) -> None:
        match status.phase.value:
            case "starting" | "warming":
                self._progress.update(
                    self._task, description=status.step or "starting", completed=status.done, total=status.total or None
                )
            case "ready":
                self._progress.stop()
                self._console.print(
                    f"[green]ready[/]: {status.model} on {status.device}; "
                    f"gRPC {status.grpc_address}, HTTP and live page {status.http_address}/",
                    highlight=False,
                )
                lines = {"": status.memory, "plug-in: ": status.plugin, "chat: ": status.chat}
                for name, text in {
                    **lines,
                    "operators: ": status.operators,
                    "recording ": status.recording,
                    "traces: ": status.traces,
                }.items():
                    if text:
                        self._console.print(f"  {name}{text}", highlight=False, markup=False)
                for line in status.clients:
                    self._console.print(f"  {line}", highlight=False, markup=False)
                what = "actions" if status.horizon == 1 else f"chunks of {status.horizon} actions"
                for mode, fps, age_ms in status.forecasts:
                    self._console.print(
                        f"  {mode:>9}: a single robot gets {fps:.1f} {what} per second, latency {age_ms:.0f} ms",
                        highlight=False,
                    )
                for warning in status.warnings:
                    self._console.print(f"  [yellow]{escape(warning)}[/]", highlight=False)
            case phase:
                self._progress.stop()
                self._console.print(phase)

    def close(self) -> None:
        """Remove the progress bar."""
        self._progress.stop()


def health(
    config: Annotated[OptionalPath, typer.Option(help="Configuration file of the service.")] = None,
    health_port: Annotated[
        OptionalInt, typer.Option(help="Port of the service's health listener, if not the configured one.")
    ] = None,
    timeout_s: Annotated[float, number("Seconds to wait for each part of the answer, up to 60.", 0.1, 60)] = 3.0,
) -> None:
    """Check that the service on this machine is ready to serve robots.

    Exits with code 1 if it is not.
    """
    from edgeflow.config.service import load_config
    from edgeflow.service.host.probe import probe

    print(probe(load_config(config, overrides_of([], {"health.port": health_port})), timeout_s))


def config_schema() -> None:
    """Print the JSON schema of the configuration file."""
    from edgeflow.config.service import schema_json

    print(schema_json())


def config_example(
    name: Annotated[str, typer.Argument(help="Name of a family of policies, or chat.")],
) -> None:
    """Print a configuration to begin with; its values are examples."""
    from edgeflow.policies.registry import example_of

    print(json.dumps(example_of(name), indent=2))


def config_check(path: Annotated[Path, typer.Argument(help="Configuration file to check.")]) -> None:
    """Check a configuration file and the files it names, and print it with all defaults filled in."""
    from edgeflow.config.service import load_config
    from edgeflow.service.host.preflight import check_configured

    config = load_config(path, {})
    check_configured(config)
    print(config.model_dump_json(indent=2))


def token_new(
    principal: Annotated[
        str, typer.Option(help="Owner of the token: 1 to 64 letters, digits, dots, underscores or hyphens.")
    ],
    role: Annotated[list[str], typer.Option(metavar="ROLE", help="control, observe, chat or admin. Repeatable.")],
    tokens: Annotated[str, typer.Option(help="Tokens file to add the token's hash to.")] = "tokens.json",
    days: Annotated[OptionalFloat, number("Days until the token expires; default: never.", 0, 36500)] = None,
    out: Annotated[
        OptionalPath,
        typer.Option(metavar="FILE", help="New file for the token, readable only by you; default: print it."),
    ] = None,
) -> None:
    """Create an access token and print it.

    It cannot be printed again: the tokens file stores only its SHA-256. A running service accepts the token within a
    second.
    """
    from edgeflow.service.security.auth import new_token, secret_file

    if out is None:
        print(new_token(tokens, principal, role, days))
        return
    with secret_file(out) as file:
        file.write(new_token(tokens, principal, role, days) + "\n")
