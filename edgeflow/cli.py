"""The commands. Each imports what it needs when it runs: `--help` is quick, and a missing extra is told."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Optional

if importlib.util.find_spec("typer") is None:
    print("edgeflow: the command needs more than the robot-side SDK: pip install 'edgeflow[server]'", file=sys.stderr)
    sys.exit(2)

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgeflow.console import ServicePrinter, reporting, table_console
from edgeflow.errors import CheckpointError, ConfigError, DependencyError, EdgeflowError, StartError
from edgeflow.loadtest.options import loadtest
from edgeflow.types import Mode

app = typer.Typer(
    name="edgeflow",
    help="Robot-control inference service: pipelined vision-language-action models over gRPC.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(help="The one JSON file that configures the service.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.command()(loadtest)
token_app = typer.Typer(help="The tokens that a service asks for.", no_args_is_help=True)
app.add_typer(token_app, name="token")

MODE_HELP = "serial: least age. pipelined: highest rate. depth: between them. auto: highest rate of an allowed age."
DEPTH_HELP = "Ticks a frame takes in mode depth: 1 (serial) to K (pipelined)."
AGE_HELP = "Age that mode auto keeps; an older action becomes HOLD."
OptionalMode = Annotated[Optional[Mode], typer.Option(help=MODE_HELP)]  # noqa: UP045 - typer reads it at run time
OptionalText = Optional[str]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
TlsCa = Annotated[OptionalPath, typer.Option(help="Whose certificate the service must show (PEM).")]
TlsCert = Annotated[OptionalPath, typer.Option(help="Own certificate, for mutual TLS (PEM).")]
TlsKey = Annotated[OptionalPath, typer.Option(help="Its private key (PEM).")]
TokenFile = Annotated[OptionalPath, typer.Option(help="Holds the token; else EDGEFLOW_TOKEN may.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on standard output.")]

ENDS = (Mode.SERIAL, Mode.PIPELINED)
VERDICT_STYLE = {"ok": "[green]ok[/]", "optional": "[yellow]optional[/]", "missing": "[red]missing[/]"}


def main() -> None:
    """Entry point: a StartError is one line on standard error and exit code 2."""
    try:
        app()
    except StartError as error:
        sys.exit(_fail(error.text, 2))
    except EdgeflowError as error:
        sys.exit(_fail(error.text, 1))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "edgeflow":
            raise
        missing = DependencyError(f"{error.name} is not installed; run `edgeflow doctor` for how to get it")
        sys.exit(_fail(missing.text, 2))


def _fail(text: str, code: int) -> int:
    print("edgeflow:", " ".join(text.split()), file=sys.stderr)
    return code


@app.command()
def serve(
    config: Annotated[OptionalPath, typer.Option(help="JSON file; see `edgeflow config schema`.")] = None,
    model: Annotated[OptionalText, typer.Option(help="Checkpoint directory, hub id, or demo (embedded).")] = None,
    mode: OptionalMode = None,
    depth: Annotated[OptionalInt, typer.Option(help=DEPTH_HELP)] = None,
    max_action_age_ms: Annotated[OptionalInt, typer.Option(help=AGE_HELP)] = None,
    device: Annotated[OptionalText, typer.Option(help="auto, cpu or cuda.")] = None,
    profile: Annotated[OptionalText, typer.Option(help="Hold passes to a device: none, orin, rtx5090, FILE.")] = None,
    grpc_host: Annotated[OptionalText, typer.Option(help="Address of the control plane.")] = None,
    grpc_port: Annotated[OptionalInt, typer.Option(help="0 takes a free port.")] = None,
    http_host: Annotated[OptionalText, typer.Option(help="Address of HTTP.")] = None,
    http_port: Annotated[OptionalInt, typer.Option(help="0 takes a free port.")] = None,
    tls_cert: Annotated[OptionalText, typer.Option(help="Certificate (PEM); gRPC and HTTP speak TLS.")] = None,
    tls_key: Annotated[OptionalText, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[OptionalText, typer.Option(help="Mutual TLS: whose certificates clients show.")] = None,
    tokens: Annotated[OptionalText, typer.Option(help="Who may do what; see `edgeflow token new`.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Off loopback without TLS or tokens.")] = False,
    ready_file: Annotated[OptionalPath, typer.Option(help="Written when ready: {grpc, http} ports as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Serve a policy: gRPC for robots, HTTP beside it. Ends with exit code 0 on SIGTERM or Ctrl-C."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else strangers' handshakes fill the log
    from edgeflow.config import load_config
    from edgeflow.service.app import run_service

    overrides = {
        "model": model,
        "mode": mode.value if mode else None,
        "depth": depth,
        "max_action_age_ms": max_action_age_ms,
        "device": device,
        "profile": profile,
        "grpc.host": grpc_host,
        "grpc.port": grpc_port,
        "http.host": http_host,
        "http.port": http_port,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "tls.client_ca": tls_client_ca,
        "tokens_file": tokens,
        "insecure": insecure or None,
    }
    settings = load_config(config, overrides)
    for text in settings.warnings:
        print(f"edgeflow: warning: {text}", file=sys.stderr)
    if as_json:
        code = run_service(
            settings, lambda status: print(json.dumps(asdict(status)), flush=True), ready_file=ready_file
        )
    else:
        with closing(ServicePrinter(Console(stderr=True))) as printer:
            code = run_service(settings, printer, ready_file=ready_file)
    raise typer.Exit(code)


@app.command()
def robot(
    address: Annotated[str, typer.Argument(help="The service's gRPC address, host:port.")],
    mode: Annotated[Mode, typer.Option(help=MODE_HELP)] = Mode.PIPELINED,
    depth: Annotated[int, typer.Option(min=0, help=DEPTH_HELP)] = 0,
    max_action_age_ms: Annotated[OptionalInt, typer.Option(min=1, help=AGE_HELP)] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 10,
    speed: Annotated[float, typer.Option(min=0, max=20, help="Speed of the objects, cm/s.")] = 0.0,
    anchored: Annotated[bool, typer.Option(help="Resolve actions against the pose of the frame answered.")] = True,
    frame_hz: Annotated[OptionalFloat, typer.Option(min=1, help="Camera frames a second.")] = None,
    seed: Annotated[int, typer.Option(help="First episode's seed.")] = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Connect the simulated robot to a service and let it work."""
    from edgeflow.client.credentials import Credentials
    from edgeflow.demo.command import robot_command
    from edgeflow.demo.driver import FRAME_HZ, RunPlan
    from edgeflow.demo.measure import FRESH_SEEDS

    plan = RunPlan(
        mode=mode,
        depth=depth,
        max_action_age_s=max_action_age_ms / 1000 if max_action_age_ms else None,
        episodes=episodes,
        anchored=anchored,
        object_speed=speed / 100,
        seed=FRESH_SEEDS + seed,
        frame_hz=frame_hz or FRAME_HZ,
    )
    credentials = Credentials.of(tls_ca, tls_cert, tls_key, token_file)
    raise typer.Exit(robot_command(address, plan, credentials, as_json))


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, help="Time for each mode.")] = 60.0,
    profile: Annotated[str, typer.Option(help="Hold passes to a device: none, orin, rtx5090, FILE.")] = "rtx5090",
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("demo-report"),
) -> None:
    """A robot moves: serve the embedded policy, connect the simulated robot, compare the modes."""
    from edgeflow.demo.command import demo_command

    raise typer.Exit(demo_command(seconds, profile, out))


@app.command()
def chat(
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, or demo-chat (embedded).")] = "demo-chat",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    capacity: Annotated[int, typer.Option(min=16, help="Tokens of the whole conversation.")] = 2048,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 256,
    temperature: Annotated[OptionalFloat, typer.Option(min=0, max=2, help="0 is greedy; else as trained.")] = None,
) -> None:
    """Talk to a model in the terminal. Ends with Ctrl-D."""
    from edgeflow.config import load_config
    from edgeflow.engine.chat_terminal import converse, open_conversation

    path = load_config(None, {"chat.model": model}).chat_path
    if path is None:
        raise CheckpointError("model: the embedded chat model is not installed: name a checkpoint with --model")
    with Console(stderr=True).status("loading"):
        conversation = open_conversation(path, device, capacity, max_tokens, temperature, system)
    prompt = "> " if sys.stdin.isatty() else ""
    converse(conversation, lambda: input(prompt), lambda text: print(text, end="", flush=True))


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="A checkpoint with recorded cases.")],
    mode: OptionalMode = None,
    as_json: Json = False,
) -> None:
    """Check a checkpoint's outputs against those of the original implementation, in fp32.

    Exit code 1 if any is off. Without --mode: serial and pipelined. Chat models are checked in modes of their own.
    """
    from edgeflow.engine.verify import verify_checkpoint

    if mode not in (None, *ENDS):
        raise ConfigError("mode: verify runs serial and pipelined")
    with reporting(Console(stderr=True)) as report:
        results = verify_checkpoint(directory, [mode] if mode else [], report)
    off = sum(not result.ok for _, result in results)
    if as_json:
        rows = [
            asdict(result)
            | {
                "mode": each,
                "ok": result.ok,
                "deviation": result.deviation if isfinite(result.deviation) else None,
            }
            for each, result in results
        ]
        print(json.dumps(rows, indent=2))
    else:
        title = escape(f"verify {directory}")
        table = Table("mode", "case", "quantity", "largest deviation", "tolerance", "", title=title)
        for each, result in results:
            verdict = "[green]ok[/]" if result.ok else "[red]off[/]"
            numbers = f"{result.deviation:.3g}", f"{result.tolerance:.3g}"
            table.add_row(each, escape(result.case), result.quantity, *numbers, verdict)
        table_console().print(table)
        print(f"{off} of {len(results)} comparisons are off" if off else f"all {len(results)} comparisons agree")
    raise typer.Exit(1 if off else 0)


@app.command("eval-demo")
def eval_demo(
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each condition and seed.")] = 200,
    mode: Annotated[list[Mode], typer.Option(help=f"Repeat for several. {MODE_HELP}")] = list(ENDS),
    depth: Annotated[int, typer.Option(min=0, help=DEPTH_HELP)] = 0,
    anchored: Annotated[
        str, typer.Option(help="yes, no or both: the pose relative actions are resolved against.")
    ] = "yes",
    speed: Annotated[list[float], typer.Option(help="Speed of the objects, cm/s; repeat for several.")] = [0.0],
    profile: Annotated[list[str], typer.Option(help="Pace of a device: none (this machine), orin, rtx5090, FILE.")] = [
        "none"
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Disjoint sets of episodes.")] = 1,
    frame_hz: Annotated[float, typer.Option(min=1, max=100, help="Camera frames a second.")] = 20.0,
    model: Annotated[str, typer.Option(help="Checkpoint directory, or demo (embedded).")] = "demo",
    out: Annotated[Path, typer.Option(help="Folder of report.json and success.png.")] = Path("eval-report"),
    as_json: Json = False,
) -> None:
    """Closed-loop evaluation of the embedded policy, in virtual time with the real scheduler and engine."""
    from edgeflow.demo.eval_command import eval_command
    from edgeflow.demo.evaluation import EvaluationPlan

    choices = {"yes": [True], "no": [False], "both": [True, False]}
    if anchored not in choices:
        raise ConfigError(f"anchored: {anchored!r} is none of yes, no, both")
    if Mode.AUTO in mode or (Mode.DEPTH in mode) != (depth > 0):
        raise ConfigError("mode: eval-demo takes serial, pipelined, and depth together with --depth")
    plan = EvaluationPlan(
        episodes,
        mode,
        choices[anchored],
        [each / 100 for each in speed],
        profile,
        range(seeds),
        1 / frame_hz,
        model,
        depth,
    )
    eval_command(plan, out, as_json=as_json)


@app.command("train-demo")
def train_demo(
    out: Annotated[Path, typer.Option(help="Folder of the data, the state to resume from and the policy.")] = Path(
        "train-demo"
    ),
    minutes: Annotated[
        OptionalFloat, typer.Option(help="Stop after so many minutes; the schedule fits itself to it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data, initial weights and batches.")] = 0,
    resume: Annotated[bool, typer.Option(help="Go on from the folder's state.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    chat: Annotated[bool, typer.Option("--chat", help="Train the chat model, not the policy.")] = False,
) -> None:
    """Train an embedded model from nothing.

    The policy: data from the scripted expert, then behaviour cloning. With --chat: the chat model, from generated
    questions about the robot's state.
    """
    if chat:
        from edgeflow.demo.chat.loop import train_chat as train
    else:
        from edgeflow.demo.training.loop import train_demo as train

    train(out, minutes, seed, resume, device)


@app.command("eval-chat")
def eval_chat(
    model: Annotated[OptionalPath, typer.Option(help="Checkpoint directory; the embedded chat model if none.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="Held-out questions.")] = 500,
    seed: Annotated[str, typer.Option(help="Of the questions.")] = "held out",
    as_json: Json = False,
) -> None:
    """Exact match of the embedded chat model on held-out questions. Exit code 1 below what shipping needs."""
    from edgeflow.demo.chat.command import eval_chat_command

    raise typer.Exit(eval_chat_command(model, questions, seed, as_json=as_json))


@app.command()
def ops(
    model: Annotated[str, typer.Option(help="Directory, demo, or a shape such as openvla-7b, qwen2.5-0.5b.")] = "demo",
    hardware: Annotated[str, typer.Option(help="cpu, cuda, or an architecture as in cuda_sm87.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a prefill.")] = 280,
    overlay: Annotated[OptionalPath, typer.Option(help="JSON file of entries that win over the built-in ones.")] = None,
    as_json: Json = False,
) -> None:
    """Which implementation serves each operator of a model on a device, and why."""
    from edgeflow.bench.ops_command import ops_command

    ops_command(model, hardware, dtype, rows, overlay, as_json=as_json)


@app.command()
def tune(
    model: Annotated[str, typer.Option(help="Directory, demo, or a shape such as openvla-7b, qwen2.5-0.5b.")] = "demo",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a prefill.")] = 280,
    out: Annotated[OptionalPath, typer.Option(help="The overlay; a run that was cut off goes on from it.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Timings of each candidate; their median counts.")] = 15,
    regress: Annotated[bool, typer.Option("--regress", help="Check the overlay again: right, and not slower?")] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest correct implementation of each operator on this machine and write them as an overlay."""
    from edgeflow.bench.ops_command import tune_command

    raise typer.Exit(tune_command(model, device, dtype, rows, out, samples, regress, as_json=as_json))


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine has, what is missing, and how to get it. Exit code 1 if something needed is missing."""
    from edgeflow.doctor import examine, healthy

    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("subject", "", "found", "how to get it")
        for finding in findings:
            table.add_row(finding.subject, VERDICT_STYLE[finding.verdict.value], finding.found, finding.advice)
        table_console().print(table)
    raise typer.Exit(0 if healthy(findings) else 1)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the configuration file."""
    from edgeflow.config import schema_json

    print(schema_json())


@config_app.command("check")
def config_check(path: Annotated[Path, typer.Argument(help="A configuration file.")]) -> None:
    """Check a configuration file and print it with all defaults."""
    from edgeflow.config import load_config

    print(load_config(path, {}).model_dump_json(indent=2))


@token_app.command("new")
def token_new(
    principal: Annotated[str, typer.Option(help="Whose it is: letters, digits, . _ - (64 at most).")],
    role: Annotated[list[str], typer.Option(help="control, observe, chat or admin; repeat for several.")],
    tokens: Annotated[str, typer.Option(help="The file that keeps its hash.")] = "tokens.json",
    days: Annotated[OptionalFloat, typer.Option(min=0, max=36500, help="It expires after so many days.")] = None,
) -> None:
    """Print a new token, once; the file keeps its SHA-256 only. A running service sees it within a second."""
    from edgeflow.service.auth import new_token

    print(new_token(tokens, principal, role, days))


if __name__ == "__main__":
    main()
