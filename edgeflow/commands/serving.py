"""Commands that serve, and the robot that connects."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from edgeflow.clock import MonotonicClock
from edgeflow.commands.options import (
    AGE_HELP,
    DEPTH_HELP,
    EMBEDDED_POLICIES,
    MODE_HELP,
    PASSES_HELP,
    TOLERANCE_HELP,
    Json,
    OptionalEmbedded,
    OptionalFloat,
    OptionalInt,
    OptionalMode,
    OptionalPath,
    OptionalText,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
)
from edgeflow.console import JsonPrinter, ServicePrinter
from edgeflow.errors import EdgeflowError, StartError
from edgeflow.types import MOST_TOLERANCE_BINS

if TYPE_CHECKING:
    from edgeflow.service.host.output import Output
    from edgeflow.service.observe.log import EventLog, LogAnnouncer


def serve(
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
    from edgeflow.service.host.limits import check_limits
    from edgeflow.service.host.output import Output
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
            from edgeflow.config import load_config
            from edgeflow.service.run import run_service

            settings = load_config(config, overrides)
            with closing(_announcer(output, log, as_json=as_json)) as announcer:
                code = run_service(settings, announcer, ready_file=ready_file, log=output.lines)
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
    from edgeflow.config import load_config
    from edgeflow.service.observe.probe import probe

    print(probe(load_config(config, {"health.port": health_port}), timeout_s))


def robot(
    address: Annotated[str, typer.Argument(help="gRPC address of the service, host:port.")],
    mode: Annotated[OptionalMode, typer.Option(metavar="MODE", help=f"{MODE_HELP} Default: the service's.")] = None,
    depth: Annotated[int, typer.Option(metavar="N", min=0, help=DEPTH_HELP)] = 0,
    tolerance_bins: Annotated[int, typer.Option(metavar="N", min=0, max=MOST_TOLERANCE_BINS, help=TOLERANCE_HELP)] = 0,
    max_passes: Annotated[int, typer.Option(metavar="N", min=0, help=PASSES_HELP)] = 0,
    max_action_age_ms: Annotated[OptionalInt, typer.Option(metavar="N", min=1, help=AGE_HELP)] = None,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of episodes.")] = 10,
    speed: Annotated[float, typer.Option(metavar="N", min=0, max=20, help="Speed of the objects, in cm/s.")] = 0.0,
    present: Annotated[
        bool, typer.Option("--no-anchored", help="Apply actions to the present pose, not to that of their frame.")
    ] = False,
    frame_hz: Annotated[OptionalFloat, typer.Option(metavar="N", min=1, help="Camera frames per second.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the first episode.")] = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Run the simulated robot against a service."""
    from edgeflow.client.connection.credentials import Credentials
    from edgeflow.lab.demo.command import robot_command
    from edgeflow.lab.demo.driver import FRAME_HZ, RunPlan
    from edgeflow.lab.demo.measure import FRESH_SEEDS

    plan = RunPlan(
        mode=mode,
        depth=depth,
        tolerance_bins=tolerance_bins,
        max_passes=max_passes,
        max_action_age_s=max_action_age_ms / 1000 if max_action_age_ms else None,
        episodes=episodes,
        anchored=not present,
        object_speed=speed / 100,
        seed=FRESH_SEEDS + seed,
        frame_hz=frame_hz or FRAME_HZ,
    )
    credentials = Credentials.of(tls_ca, tls_cert, tls_key, token_file)
    raise typer.Exit(robot_command(address, plan, credentials, as_json))


def demo(
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds per mode; the last episode may begin just before and is finished.")
    ] = 45.0,
    speed: Annotated[float, typer.Option(min=0, max=20, help="Speed of the objects, in cm/s; 0: still.")] = 5.0,
    profile: Annotated[
        str, typer.Option(help="Slow passes down to a device's published times: none, orin, rtx5090, FILE.")
    ] = "rtx5090",
    model: Annotated[
        str, typer.Option(help="Checkpoint directory, hub id, demo or demo-flow; default: the embedded --policy.")
    ] = "",
    policy: OptionalEmbedded = None,
    out: Annotated[Path, typer.Option(help="Directory for the report.")] = Path("demo-report"),
) -> None:
    """Demonstrate the modes: serve a policy, run the simulated robot against it in each of its modes, and compare.

    With three modes of 45 seconds it takes about three minutes.

    The modes are those of the policy's family: serial, pipelined and speculative where actions are tokens, serial and
    pipelined where chunks are denoised, serial where a chunk takes one pass.
    """
    from edgeflow.lab.demo.command import demo_command

    like = EMBEDDED_POLICIES[policy] if policy else ""
    served = model or like or EMBEDDED_POLICIES["tokens"]
    raise typer.Exit(demo_command(seconds, speed / 100, profile, served, out, like=like))
