"""Cost of saturating chat to the robots: one robot at a fixed rate through `edgeflow serve`, without chat and with it.

    .venv/bin/python -m benchmarks.chat_beside_control --json benchmarks/results/chat-beside-control-cpu.json

The embedded policy and, unless --chat-model names another, the embedded chat model. It runs `edgeflow loadtest
--with-chat` against a service that it starts itself. Targets: pass-start jitter, and that chat makes progress.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.command import keep, machine_facts, options
from benchmarks.serving import serving
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.errors import StartError
from edgeflow_client.loadtest.chat_clients import ChatPlan
from edgeflow_client.loadtest.command import measured
from edgeflow_client.loadtest.results import RATIO, results_json
from edgeflow_client.loadtest.robots.plan import Fixed, LoadPlan, parse_size
from edgeflow_client.loadtest.tables import print_results
from edgeflow_client.types import CameraSpec, ImageFormat, Mode

BAR = 1.2


def main() -> None:
    """Measure and print; exit code 1 when a target is missed."""
    arguments = _arguments()
    camera = CameraSpec("camera", *parse_size(arguments.camera), ImageFormat.JPEG)
    session = SessionSettings(cameras=(camera,), control_period_s=1 / arguments.rate, mode=Mode(arguments.mode))
    chat = {"model": arguments.chat_model} if arguments.chat_model else {}
    with serving({"chat": chat}) as service:
        plan = LoadPlan(
            address=service.address,
            session=session,
            pattern=Fixed(arguments.rate),
            warm_up_s=arguments.warm_up,
            duration_s=arguments.seconds,
        )
        beside = ChatPlan(service.http, arguments.clients, arguments.tokens)
        try:
            _, results = measured(plan, {RATIO: BAR}, Credentials(), Console(stderr=True), beside)
        except StartError as error:
            sys.exit(error.text)
    print_results(results, Console(width=140))
    model = arguments.chat_model or "embedded"
    report = {**machine_facts(), "chat_model": Path(model).name, **json.loads(results_json(results))}
    keep(arguments.json, report)
    sys.exit(0 if results.met else 1)


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--rate", type=float, default=20.0, help="frames per second")
    parser.add_argument("--mode", default="pipelined", choices=[each.value for each in Mode])
    parser.add_argument("--seconds", type=float, default=60.0, help="measured per half")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before each half")
    parser.add_argument("--camera", default="640x480")
    parser.add_argument("--chat-model", default="", help="checkpoint directory (default: the embedded model)")
    parser.add_argument("--clients", type=int, default=1, help="chat clients, each without a pause")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens per answer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
