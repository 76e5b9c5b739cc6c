"""Commands that serve, and that ask whether the service is ready."""

from __future__ import annotations

import os
from contextlib import closing
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from edgeflow.commands.options import (
    AGE_HELP,
    DEPTH_HELP,
    MODE_HELP,
    PASSES_HELP,
    TOLERANCE_HELP,
    Json,
    OptionalInt,
    OptionalMode,
    OptionalPath,
    OptionalText,
)
from edgeflow.console import JsonPrinter, ServicePrinter
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import EdgeflowError, StartError

if TYPE_CHECKING:
    from edgeflow.service.host.output import Output
    from edgeflow.service.observe.log import EventLog, LogAnnouncer


def serve(
    context: typer.Context,
    config: Annotated[
        OptionalPath, typer.Option(help="Configuration file (JSON); see `edgeflow config schema`.")
    ] = None,
    model: Annotated[
        OptionalText, typer.Option(help="Checkpoint directory, hub id, or an embedded policy: demo, demo-flow.")
    ] = None,
    mode: Annotated[OptionalMode, typer.Option(metavar="MODE", help=MODE_HELP)] = None,
    depth: Annotated[OptionalInt, typer.Option(help=DEPTH_HELP)] = None,
    tolerance_bins: Annotated[OptionalInt, typer.Option(help=TOLERANCE_HELP)] = None,
    max_passes: Annotated[OptionalInt, typer.Option(help=PASSES_HELP)] = None,
    max_action_age_ms: Annotated[OptionalInt, typer.Option(help=AGE_HELP)] = None,
    device: Annotated[OptionalText, typer.Option(help="auto, cpu or cuda.")] = None,
    profile: Annotated[
        OptionalText, typer.Option(help="Slow passes down to a device's published times: none, orin, rtx5090, FILE.")
    ] = None,
    operators: Annotated[
        OptionalText, typer.Option(help="Operator overlay for the policy, from `edgeflow tune`.")
    ] = None,
    chat_operators: Annotated[OptionalText, typer.Option(help="Operator overlay for the chat model.")] = None,
    weights: Annotated[
        OptionalText,
        typer.Option(help="Weights of the language model: float, or fp8 (CUDA from sm_89; emulated on a CPU)."),
    ] = None,
    grpc_host: Annotated[OptionalText, typer.Option(help="Address of the gRPC server.")] = None,
    grpc_port: Annotated[OptionalInt, typer.Option(help="Port of the gRPC server; 0 = any free port.")] = None,
    http_host: Annotated[OptionalText, typer.Option(help="Address of the HTTP server.")] = None,
    http_port: Annotated[OptionalInt, typer.Option(help="Port of the HTTP server; 0 = any free port.")] = None,
    health_port: Annotated[OptionalInt, typer.Option(help="Port of the health listener; 0 = any free port.")] = None,
    tls_cert: Annotated[
        OptionalText, typer.Option(help="Certificate of the service (PEM); turns TLS on for gRPC and HTTP.")
    ] = None,
    tls_key: Annotated[OptionalText, typer.Option(help="Private key of the certificate (PEM).")] = None,
    tls_client_ca: Annotated[
        OptionalText, typer.Option(help="CA of client certificates (PEM); turns mutual TLS on.")
    ] = None,
    tokens: Annotated[OptionalText, typer.Option(help="File of access tokens; see `edgeflow token new`.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Permit addresses other than loopback without TLS and tokens.")
    ] = False,
    ready_file: Annotated[
        OptionalPath, typer.Option(help="File to write when ready: the grpc, http and health ports, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve a policy to robots over gRPC, with HTTP beside it. SIGTERM or Ctrl-C drains and exits with code 0."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise strangers' handshakes fill the log
    from edgeflow.service.host.output import Output
    from edgeflow.service.host.resources import check_limits
    from edgeflow.service.observe.log import EventLog

    overrides = {
        "model": model,
        "mode": mode.value if mode else None,
        "depth": depth,
        "tolerance_bins": tolerance_bins,
        "max_passes": max_passes,
        "max_action_age_ms": max_action_age_ms,
        "device": device,
        "profile": profile,
        "operators": operators,
        "chat.operators": chat_operators,
        "weights": weights,
        "grpc.host": grpc_host,
        "grpc.port": grpc_port,
        "http.host": http_host,
        "http.port": http_port,
        "health.port": health_port,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "tls.client_ca": tls_client_ca,
        "tokens_file": tokens,
        "insecure": insecure or None,
    }
    with Output() as output:
        log = EventLog(MonotonicClock(), output.lines)
        try:
            check_limits()
            from edgeflow.config.service import load_config
            from edgeflow.service.run import run_service

            settings = load_config(config, overrides)
            with closing(_announcer(output, log, as_json=as_json)) as announcer:
                code = run_service(
                    settings, announcer, ready_file=ready_file, log=output.lines, observers=context.obj or ()
                )
        except EdgeflowError as error:
            if output.lines.isatty():
                raise
            log.event("failed", text=" ".join(error.text.split()))
            code = 2 if isinstance(error, StartError) else 1
    raise typer.Exit(code)


def _announcer(output: Output, log: EventLog, *, as_json: bool) -> JsonPrinter | ServicePrinter | LogAnnouncer:
    """Announces without waiting for a reader: as JSON on standard output, or for people or in the log on the other."""
    from edgeflow.service.observe.log import LogAnnouncer

    if as_json:
        return JsonPrinter(output.results())
    if not output.lines.isatty():
        return LogAnnouncer(log)
    return ServicePrinter(Console(file=cast("IO[str]", output.lines)))


def health(
    config: Annotated[OptionalPath, typer.Option(help="Configuration file of the service.")] = None,
    health_port: Annotated[
        OptionalInt, typer.Option(help="Port of the service's health listener, if not the configured one.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds to wait for each part of the answer.")
    ] = 3.0,
) -> None:
    """Check that the service on this machine is ready to serve robots. Exits with code 1 if not."""
    from edgeflow.config.service import load_config
    from edgeflow.service.host.probe import probe

    print(probe(load_config(config, {"health.port": health_port}), timeout_s))
